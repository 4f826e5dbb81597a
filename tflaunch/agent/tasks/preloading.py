"""A process that has imported modules, and forks for each trial of a sweep: `--preload`.

It starts with the first trial, and as that does: with the same Python, variables and setup.  Until it is ready, and
where it cannot stand in for a new Python, trials start as ever; why, the user is told.  tflaunch.in_task.preloader is
what it runs; that text comes with the message `stage`.
"""

import os
import sys
import time

from tflaunch.agent.host import processes, python_site
from tflaunch.agent.host.rundir import replace
from tflaunch.agent.tasks import shell
from tflaunch.agent.tasks.gate import Gate, spawn
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from tflaunch.agent.host.rundir import RunDirectory

ROOM = "TFLAUNCH_ROOM", 16384  # bytes, for the variables of a trial in /proc
ROOM_FOR_WORDS = 4096
ANSWER_S = 10.0  # a fork copies the page tables of some gigabytes at most
END_S = 1.0
WHY = 300  # characters of a reason, which may be that of any exception
ENDED = "the process that has imported it has ended"


class Preloading:
    """That process, from the first trial to the end of the run."""

    def __init__(
        self, directory: "RunDirectory", wanted: "Dict[str, Any]", tell: "Callable[[str], None]"
    ) -> None:
        """`wanted`: field `preload` of the message `stage`.  `tell` gets each sentence for the user once."""
        self.pid = 0
        self._directory = directory
        self._modules = wanted["modules"]
        self._text = wanted["text"]
        self._own = {*wanted["own"], processes.TASK_MARK, processes.ATTEMPT}
        self._tell = tell
        self._told = set()  # type: set[str]
        self._alike = {}  # type: Dict[str, Any]  # what all trials must have as the first one has it
        self._socket = None  # type: Optional[socket.socket]
        self._said = b""
        self._ready = False

    def gate(
        self,
        request: "Dict[str, Any]",
        argv: "List[str]",
        variables: "Dict[str, str]",
        where: "Tuple[str, int, List[int]]",
    ) -> "Optional[Gate]":
        """The gate at which a process waits that is forked for this task; None: the task starts as ever.

        `where`: its directory, the descriptor of its log, and its CPUs.
        """
        cwd, log, cpus = where
        site = python_site.put(self._directory.path) if request.get("stacks", True) else ""
        shared = {name: value for name, value in variables.items() if name not in self._own}
        alike = dict(shared, **{"its Python": argv[0], "setup:": request["setup"], "its CPUs": len(cpus)})
        own = {name: value for name, value in variables.items() if name in self._own}
        about = {"argv": argv, "cwd": cwd, "cpus": cpus, "own": own}
        about["site"] = site and os.path.join(site, "sitecustomize.py")
        try:
            self._check(request, argv, alike)
            if not self._alike:
                self._alike = alike
                self._start(request, argv[0], shared, cwd, cpus)
            if self._socket is None or not self._is_ready():
                return None
            return Gate(log, lambda streams: self._fork(about, streams))
        except _Refused as refused:
            self._say("some trials", refused)
        except (OSError, ValueError) as error:
            self.end()
            self._say("trials", error)
        return None

    def reaped(self, pid: int) -> bool:
        """Whether the child process that has ended was this one."""
        if not pid or pid != self.pid:
            return False
        self.pid = 0
        return True

    def end(self) -> None:
        """End it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        deadline = time.monotonic() + END_S
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # it is not reaped yet
        while self.pid and time.monotonic() < deadline:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
            else:
                time.sleep(0.005)

    def _say(self, which: str, why: Exception) -> None:
        text = "--preload %s: %s start without it: %s" % (",".join(self._modules), which, str(why)[:WHY])
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _check(self, request: "Dict[str, Any]", argv: "List[str]", alike: "Dict[str, Any]") -> None:
        """Raise _Refused if a fork cannot be what a new process would be."""
        if request.get("container"):
            raise _Refused("it runs in a container")
        if request.get("numactl"):
            raise _Refused("numactl starts it")
        if len(argv) < 2 or not (argv[1] == "-m" or argv[1].endswith(".py")):
            raise _Refused("it is no Python program")
        used = sorted(name for name in self._own if any(name in line for line in request["setup"]))
        if used:
            raise _Refused("its setup uses %s, and would run once for all trials" % used[0])
        first = self._alike or alike
        differ = sorted(name for name in {*first, *alike} if first.get(name) != alike.get(name))
        if differ:
            raise _Refused("it differs from the first one in " + ", ".join(differ))

    def _start(
        self, request: "Dict[str, Any]", python: str, shared: "Dict[str, str]", cwd: str, cpus: "List[int]"
    ) -> None:
        path = os.path.join(self._directory.path, "preload")
        replace(path + ".py", self._text)
        words = ["/bin/sh", "-c", 'exec "$@"', "tflaunch"]
        if request["setup"]:
            decided = shell.exports([*request["decided"], *processes.MARKS], shared)
            yielding = request.get("yielding", ())
            shell.write(path + ".setup", shared, request["setup"], decided, 'exec "$@"\n', yielding=yielding)
            words = shell.login(path + ".setup")
        log = os.open(path + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._socket, theirs = socket.socketpair()
        words += [python, path + ".py", *self._modules, "-" * ROOM_FOR_WORDS]
        name, size = ROOM
        env = {**os.environ, **shared, name: "-" * size}
        try:
            self.pid = spawn(words, env, cwd, (theirs.fileno(), log, log), cpus)
        finally:
            os.close(log)
            theirs.close()

    def _is_ready(self) -> bool:
        if not self.pid:
            raise OSError(ENDED)
        if not self._ready:
            answer = self._answer(0.0)
            if answer is None:
                return False
            if answer["why"]:
                raise OSError(answer["why"])
            self._ready = True
        return True

    def _fork(self, about: "Dict[str, Any]", streams: "Tuple[int, int, int]") -> int:
        """The pid of a process with these streams; raises OSError, _Refused."""
        text = wire.dumps(about).encode("ascii")
        numbers = b"".join(each.to_bytes(4, sys.byteorder) for each in streams)
        self._socket.settimeout(ANSWER_S)  # type: ignore[union-attr]
        self._socket.sendmsg(  # type: ignore[union-attr]
            [b"%-8d" % len(text)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
        )
        self._socket.sendall(text)  # type: ignore[union-attr]
        answer = self._answer(ANSWER_S)
        if answer is None:
            raise OSError("it has not answered within %g s" % ANSWER_S)
        if "why" in answer:
            raise _Refused(answer["why"])
        return int(answer["pid"])

    def _answer(self, patience_s: float) -> "Optional[Dict[str, Any]]":
        """What it says next; None where that has not come yet.  Raises OSError, once it has ended."""
        self._socket.settimeout(patience_s)  # type: ignore[union-attr]
        while b"\n" not in self._said:
            try:
                data = self._socket.recv(4096)  # type: ignore[union-attr]
            except (BlockingIOError, socket.timeout):
                return None
            if not data:
                raise OSError(ENDED)
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return wire.loads(line.decode("ascii"))  # type: ignore[no-any-return]


class _Refused(OSError):
    """Why this trial starts as ever; others may fork."""
