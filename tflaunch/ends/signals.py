"""Rules: what a signal means that ended a task."""

from tflaunch.ends.end_rule import SignalRule
from tflaunch.ends.out_of_memory import BAD_ALLOC

_LESS = "give it less to hold (smaller batches, shuffle buffers, caches), or spread the tasks over more hosts"
_VECTORS = (
    "the processor of {host} has no {lacks} (it has {cpu}), and the program's libraries were built for it: "
    "--exclude {host}, or install packages that were built without (an older TensorFlow, or one built there)"
)
_SHM = (
    "/dev/shm of {host} ({shm}) is full, and the program's processes share memory there: enlarge it (mount -o "
    "remount,size=16G /dev/shm; in a container --shm-size), use fewer loader processes, or remove what old runs left"
)

# With facts: they say more than any line of a log.
KNOWN = (
    SignalRule(
        "SIGKILL",
        "the memory limit of its cgroup{limit_text} is reached: the kernel killed {oom_cgroup} of its "
        "processes on {host} (oom_kill), {task} among them{peak_text}: raise the limit (container, SLURM's "
        "--mem, systemd's MemoryMax), or " + _LESS,
        ("oom_cgroup",),
    ),
    SignalRule(
        "SIGKILL",
        "the memory of {host}{memory_text} ran out: the kernel killed {oom} processes there during the run "
        "(oom_kill){peak_text}: " + _LESS,
        ("oom",),
    ),
    SignalRule(
        "SIGKILL",
        "SLURM ended it for its memory: ask for more (sbatch --mem=...), or " + _LESS,
        words=r"slurmstepd: error: .{0,80}(?:oom|memory)",
    ),
    SignalRule(
        "SIGKILL",
        "{task}{peak_text} came near to the {near_limit} that there is on {host} when it was killed, though "
        "the kernel counts no oom_kill: a watchdog of memory (earlyoom, systemd-oomd) or of the cluster did "
        "it; " + _LESS,
        ("near_limit",),
    ),
    SignalRule("SIGBUS", _SHM, ("shm_full",)),
    SignalRule(
        "SIGBUS",
        "{disk_full}, and the program writes there by mmap: make room, or send its files elsewhere",
        ("disk_full",),
    ),
    SignalRule(
        "SIGUSR1",
        "--warn-before sent SIGUSR1 to {task}, whose program has no handler for it: set one as its first step "
        "(Python: signal.signal(signal.SIGUSR1, save)), or leave --warn-before out",
        ("warned",),
    ),
    SignalRule("SIGILL", _VECTORS.replace("{lacks}", "{no_avx}"), ("no_avx",)),
    SignalRule("SIGILL", _VECTORS.replace("{lacks}", "{no_avx2}"), ("no_avx2",)),
)

# Where the log says nothing either.
LIKELY = (
    SignalRule(
        "SIGKILL",
        "SIGKILL was sent to {task}{peak_text} on {host}, not by tflaunch, and for no lack of memory: the "
        "kernel counts no oom_kill there since the start{memory_now}; the cluster's own limits (SLURM, a "
        "memory watchdog) send it, or a person does: ask the administrators of {host}",
        ("counted",),
    ),
    SignalRule(
        "SIGKILL",
        "the kernel may have killed it when memory ran out: ssh {host} 'dmesg -T | grep -i oom' shows whether",
    ),
    SignalRule(
        "SIGTERM",
        "someone on {host} sent SIGTERM to {task}, not tflaunch: SLURM or PBS at the end of their time, a "
        "shutdown, or a person; --restarts 1 starts it again",
    ),
    SignalRule(
        "SIGINT",
        "someone on {host} sent SIGINT to {task}, not tflaunch: a person, or a script there that stops all "
        "Pythons",
    ),
    SignalRule(
        "SIGHUP",
        "someone sent SIGHUP to {task} on {host}: its session was ended there (a logout that kills "
        "processes: `tflaunch check` shows it; loginctl enable-linger)",
    ),
    SignalRule(
        "SIGBUS",
        "{task} read a mapped file or shared memory that was not there any more ({place}): a file was made "
        "shorter while it was read, its disk is full, or /dev/shm was full{shm_text}: let each task have its "
        "own copy, and see `df -h` on {host}",
    ),
    SignalRule(
        "SIGILL",
        "the program has an instruction that the processor of {host} does not have ({cpu_text}) at {place}: "
        "a library was built for a newer one; --exclude {host}, or install one that was built for it",
    ),
    SignalRule(
        "SIGSEGV",
        "native code that the program called ({place}) wrote or read where it must not: mostly packages "
        "whose binaries do not fit together (TensorFlow, PyTorch, protobuf, NumPy of other versions), or a "
        "stack that is too small (`ulimit -s unlimited` in the hostfile's `setup:`); import one framework "
        "only, install them anew by --requirements",
    ),
    SignalRule(
        "SIGABRT",
        "a check of TensorFlow's native code failed: its line (F ..., Check failed) stands in the log, and "
        "says at which place; versions that differ{differ_text}, a full /dev/shm{shm_text}, or a shape of "
        "2^31 or more are usual",
        words=(
            r"Check failed: ",
            r"^F\d{4} ",
            r": F tensorflow",
            r": F external",
        ),
    ),
    SignalRule(
        "SIGABRT",
        "native code ended the program by itself ({place}): its reason stands in the lines above (a failed "
        "check, a C++ exception, a damaged heap)",
    ),
    SignalRule("SIGFPE", "native code divided by zero ({place}): an empty batch or shape, mostly"),
    SignalRule(
        "SIGXCPU",
        "{task} reached the limit of processor time on {host} (`ulimit -t`): raise it in the hostfile's "
        "`setup:` by `ulimit -t unlimited`, or ask the cluster for more",
    ),
    SignalRule(
        "SIGXFSZ",
        "{task} reached the limit of a file's size on {host} (`ulimit -f`): raise it in the hostfile's "
        "`setup:` by `ulimit -f unlimited`, or write several files",
    ),
    SignalRule("SIGPIPE", "a program that {task} wrote to had ended: what it pipes into failed first"),
    SignalRule(
        "SIGSYS",
        "{task} made a system call that {host} forbids (seccomp, a container): run it without the container, "
        "or allow that call",
    ),
    SignalRule("SIGQUIT", "someone on {host} sent SIGQUIT to {task}, not tflaunch"),
    SignalRule(
        "SIGUSR1",
        "{task} got SIGUSR1 and has no handler for it: SLURM sends it before its time limit (--signal); "
        "handle it, or leave that option out",
    ),
    SignalRule("SIGUSR2", "{task} got SIGUSR2 and has no handler for it: a scheduler or a person sent it"),
    SignalRule("SIGALRM", "a time limit that the program set itself (signal.alarm, `timeout`) was reached"),
)

# What native code says before it aborts.
ABORTS = (
    SignalRule(
        "SIGABRT",
        "the program holds more than memory allows{memory_text} (std::bad_alloc){peak_text}: give it less to "
        "hold",
        words=BAD_ALLOC,
    ),
    SignalRule(
        "SIGABRT",
        "native code damaged its memory, or freed it twice ({place}): mostly packages whose binaries do not "
        "fit together; install them anew by --requirements, import one framework only, and try without "
        "LD_PRELOAD (tcmalloc)",
        words=(
            r"double free",
            r"corrupted (?:size|unsorted|double)",
            r"free\(\): invalid",
            r"malloc\(\): ",
            r"munmap_chunk",
            r"heap corruption",
        ),
    ),
    SignalRule(
        "SIGABRT",
        "the program starts native threads, and was forked after that ({place}): start processes by "
        "multiprocessing's `spawn`, before TensorFlow is used",
        words=(
            r"fork.{0,60}(?:thread|grpc)",
            r"prefork",
            r"ev_epoll1_linux",
        ),
    ),
)
