"""The shell that a task begins as: it waits at a gate, and becomes the program once that is opened.

The shell's input is the gate, its output says that it is ready, its error output is the log.  The program only gets the
log; its words are arguments, which no shell parses.  A forked process (tasks.preloading) waits in the same way.
"""

import os

from tflaunch.agent.host import cores
from tflaunch.agent.host.journal import note
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Optional, Tuple

READY = b"tflaunch-ready\n"
SAID_BYTES = 8192  # a login profile may print before READY

GATE = """\
case "$1" in
*/*) test -f "$1" && test -x "$1" ;;
*) command -v -- "$1" >/dev/null 2>&1 ;;
esac || {
    test -d "$1" && directory=": it is a directory"
    echo "tflaunch: no program $1 on this host$directory" >&2; exit 127; }
echo tflaunch-ready
read -r go || exit 125
exec "$@" </dev/null >&2
"""

NUMACTL = """\
command -v numactl >/dev/null 2>&1 || {
    echo "tflaunch: --memory-policy: numactl is not on this host: install it" >&2; exit 127; }
numactl OPTION true || {
    echo "tflaunch: --memory-policy: numactl OPTION does not work on this host" >&2; exit 127; }
"""


def by_numactl(gate: str, option: str) -> str:
    """The same gate for a program that numactl starts with that option."""
    return NUMACTL.replace("OPTION", option) + gate.replace('exec "$@"', 'exec numactl %s "$@"' % option)


class Gate:
    """One such shell, and the two pipes to it."""

    def __init__(self, log: int, start: "Callable[[Tuple[int, int, int]], int]") -> None:
        """Have `start` start it with these descriptors as 0, 1, 2, and return its pid; raises what that raises."""
        self.said = b""  # what it has printed so far, or the end of it
        theirs, self._key = os.pipe()
        try:
            self.pipe, ready = os.pipe()  # `pipe`: what is ready to be read when it has said something
        except OSError:
            os.close(theirs)
            self.shut()
            raise
        try:
            self.pid = start((theirs, ready, log))
        except BaseException:
            self.shut()
            self.leave()
            raise
        finally:
            os.close(theirs)
            os.close(ready)
        os.set_blocking(self.pipe, False)

    def read(self) -> "Optional[bool]":
        """True: the shell waits at the gate; False: it has ended before that; None: neither yet."""
        try:
            data = os.read(self.pipe, 4096)
        except BlockingIOError:
            return None
        self.said = (self.said + data)[-SAID_BYTES:]
        if data and READY not in self.said:
            return None
        self.leave()
        return bool(data)

    def leave(self) -> None:
        """Read no more."""
        os.close(self.pipe)
        self.pipe = -1

    def open(self) -> None:
        """The program starts, if the shell lives."""
        if self._key < 0:
            return
        try:
            os.write(self._key, b"go\n")
        except OSError:  # the shell is dying; the loop reaps it
            pass
        self.shut()

    def shut(self) -> None:
        """The gate is not opened any more."""
        if self._key >= 0:
            os.close(self._key)
            self._key = -1


def spawn(
    words: "List[str]", env: "Dict[str, str]", cwd: str, streams: "Iterable[int]", cpus: "List[int]"
) -> int:
    """Start that command in a session of its own, with only these descriptors, as 0, 1, 2; raises OSError.

    It and all that it starts run on these `cpus`; on any that this process may use, without some.

    It does not fork, which would copy the page tables of this process, and does not use `subprocess`, which takes
    longer to load than everything else that a task costs the agent.
    """
    become = [(os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(streams)]
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # this Python ignores them; exec resets all handlers anyway
    before = os.sched_getaffinity(0)
    os.chdir(cwd)
    try:
        if cpus:
            cores.bind(cpus)
        try:
            return os.posix_spawn(words[0], words, env, file_actions=become, setsid=True, setsigdef=ignored)
        except NotImplementedError:  # an older C library
            words = ["/usr/bin/setsid", *words]
            return os.posix_spawn(words[0], words, env, file_actions=become, setsigdef=ignored)
    except ValueError as error:  # a NUL in an argument
        raise OSError(str(error)) from error
    finally:
        os.chdir("/")
        try:
            if cpus:
                cores.bind(before)
        except OSError as error:  # what has started must have an owner
            note("%s" % error)
