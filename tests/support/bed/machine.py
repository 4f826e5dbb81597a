"""The far end of a bed's machine: makes its namespaces, waits for the cable, becomes its first process.

    python3 -I -S machine.py '{"namespaces": [...], "binds": [...], ...}'

It prints the pid of the first process as the test sees it, and goes on when a line comes to its input.  Whatever
ends the test, kill -9 included, ends this process, and with it every process of the machine: the kernel then
takes namespaces, mounts and network interfaces away, so that nothing is left to be cleaned up.
Standard library only; it runs in front of the bed's other files and imports none of them.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
FLAGS = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "pid": 0x20000000, "net": 0x40000000}
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
PR_SET_PDEATHSIG = 1


def call(what: str, result: int) -> None:
    """Raise OSError when the C function failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); raises OSError."""
    words = (source.encode(), target.encode(), kind.encode() or None)
    call(f"mount {source} on {target}", LIBC.mount(*words, flags, options.encode() or None))


def end_with_parent(parent: int) -> None:
    """KILL for this process when its parent ends, or has ended already."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    config = json.loads(sys.argv[1])
    end_with_parent(config["parent"])
    flags = 0
    for name in config["namespaces"]:
        flags |= FLAGS[name]
    call("unshare", LIBC.unshare(flags))
    if "pid" in config["namespaces"]:
        keeper = os.getpid()
        if pid := os.fork():
            print(pid, flush=True)
            _, status = os.waitpid(pid, 0)  # the kernel has then ended everything else in there, too
            sys.exit(os.waitstatus_to_exitcode(status) != 0)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if not os.path.isdir(f"/proc/{keeper}"):  # noqa: PTH112 - this is still the outer /proc
            os._exit(1)
        os.setsid()
    else:
        print(os.getpid(), flush=True)
    if "mount" in config["namespaces"]:
        furnish(config)
    if config["hostname"]:
        call("sethostname", LIBC.sethostname(config["hostname"].encode(), len(config["hostname"])))
    if "net" in config["namespaces"]:
        for which in ("all", "default"):  # no address detection, no neighbours that nobody asked for
            with contextlib.suppress(OSError):
                Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
    if not sys.stdin.readline():  # the cable comes now
        os._exit(1)
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.closerange(3, 256)
    os.execve("/bin/sh", ["init", "-c", config["init"]], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})  # noqa: S606


def furnish(config: "dict") -> None:
    """Its own /proc, what others must not see of it or it of them, and what all share."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    # All are opened first: what is mounted on /tmp hides what lies below it.
    binds = [(os.open(source, os.O_PATH), target) for source, target in config["binds"]]
    shared = [(os.open(place, os.O_PATH), place) for place in config["share"]]
    if "pid" in config["namespaces"]:
        mount("proc", "/proc", "proc")
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")
    groups = os.open("/sys/fs/cgroup", os.O_PATH)
    mount("sysfs", "/sys", "sysfs")  # /sys/class/net is that of this network
    mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", "", MS_BIND | MS_REC)
    for descriptor, target in binds:
        if os.path.exists(target):  # noqa: PTH110 - not every system has every file
            mount(f"/proc/self/fd/{descriptor}", target, "", MS_BIND)
    for descriptor, place in shared:
        os.makedirs(place, exist_ok=True)  # noqa: PTH103
        mount(f"/proc/self/fd/{descriptor}", place, "", MS_BIND)


main()
