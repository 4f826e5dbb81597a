/* A command of a shell that another process runs: forked SOCKET PROGRAM [WORD...]

   Asks the server of preloaded.py at SOCKET to fork for PROGRAM, a text of Python, with these words and all that this
   process has: its environment, directory, namespaces and streams.  Signals to this process go there; it ends as that
   one does. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;
static pid_t child;

static void forward(int number) { if (child) kill(child, number); }

static void fail(const char *what) {
    perror(what);
    exit(127);
}

static void add(FILE *to, const char *field) {
    fputs(field, to);
    fputc(0, to);
}

int main(int count, char **words) {
    char *data, directory[4096], text[64];
    size_t size;
    FILE *fields = open_memstream(&data, &size);
    if (count < 3 || !fields || !getcwd(directory, sizeof directory)) fail("forked");
    add(fields, words[2]);
    add(fields, directory);
    add(fields, ""); /* the terminal of the shell stays with it */
    const char *namespaces[] = {"mnt", "uts", "net"};
    add(fields, "3");
    for (int each = 0; each < 3; each++) {
        snprintf(text, sizeof text, "/proc/%d/ns/%s", getpid(), namespaces[each]);
        add(fields, text);
    }
    snprintf(text, sizeof text, "%d", count - 3);
    add(fields, text);
    for (int each = 3; each < count; each++) add(fields, words[each]);
    for (char **each = environ; *each; each++) add(fields, *each);
    if (fclose(fields)) fail("forked");

    int told[2], asked = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    strncpy(place.sun_path, words[1], sizeof place.sun_path - 1);
    if (pipe(told) || connect(asked, (struct sockaddr *)&place, sizeof place)) fail(words[1]);
    int streams[] = {0, 1, 2, told[1]};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof streams)];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof streams), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.head), streams, sizeof streams);
    snprintf(text, sizeof text, "%-8zu", size);
    struct iovec part = {text, 8};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    if (sendmsg(asked, &message, 0) != 8) fail("sendmsg");
    for (size_t sent = 0; sent < size;) {
        ssize_t more = write(asked, data + sent, size - sent);
        if (more < 0) fail("write");
        sent += more;
    }
    close(told[1]);

    int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    sigset_t held, before;
    sigemptyset(&held);
    for (int each = 0; each < 4; each++) sigaddset(&held, signals[each]);
    sigprocmask(SIG_BLOCK, &held, &before); /* until there is somebody to whom they go */
    struct sigaction forwards = {.sa_handler = forward}; /* also of what is ignored: tflaunch handles it all the same */
    for (int each = 0; each < 4; each++) sigaction(signals[each], &forwards, NULL);
    memset(text, 0, sizeof text);
    if (recv(asked, text, 8, MSG_WAITALL) != 8) fail("recv");
    child = atoi(text);
    sigprocmask(SIG_SETMASK, &before, NULL);
    for (int stream = 0; stream < 3; stream++) close(stream); /* a reader sees the end when the command ends */

    ssize_t got;
    memset(text, 0, sizeof text);
    while ((got = read(told[0], text, sizeof text - 1)) < 0 && errno == EINTR) continue;
    if (got <= 0) return 127;
    int status = atoi(text);
    if (status >= 0) return status;
    signal(-status, SIG_DFL);
    raise(-status);
    return 128 - status;
}
