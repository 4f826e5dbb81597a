"""A task on this host: a shell that waits at a gate, then the program; its log is a plain file."""

import errno
import os
import time

from tflaunch.agent.host import cores, processes
from tflaunch.agent.host.rundir import HostError, RunDirectory, explain, must_answer
from tflaunch.agent.tasks.gate import GATE, READY, Gate, by_numactl, spawn
from tflaunch.agent.tasks.logs import TaskLogs
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    from tflaunch.agent.tasks.log_signs import LogSigns

DUMP_S = 2.0  # how long a program may take to write the stacks of a hundred threads


def _marks(directory: RunDirectory, task: str, attempt: int) -> "Dict[str, str]":
    """The variables by which all processes of an attempt are known."""
    return {
        processes.RUN_MARK: directory.run,
        processes.HOST_MARK: directory.host,
        processes.TASK_MARK: task,
        processes.ATTEMPT: str(attempt),
    }


class Task:
    """One task, from its staging to the last byte of its log.  A restart is a new attempt of the same task."""

    def __init__(
        self, directory: RunDirectory, request: "Dict[str, Any]", attempt: int = 0, marked: bool = True
    ) -> None:
        """Without `marked`, the task's processes do not carry the run's marks, as they do not belong to the run."""
        self.id = request["id"]  # type: str
        self.request = request
        self.logs = TaskLogs(directory, self.id, attempt)
        self.wanted = attempt  # the attempt that the launcher wants; `logs.attempt` is the present one
        self.awaits_release = True  # a restarted task starts as soon as it is ready
        self.unwanted = False  # the wanted attempt was stopped before it began
        self.sweep_first = False  # what an attempt leaves is killed before its exit is told: others come
        self.fork = no_fork  # type: Callable[..., Optional[Gate]]  # as tasks.preloading.Preloading.gate
        self._directory = directory
        self._marked = marked
        self._reset()

    def _reset(self) -> None:
        """Begin an attempt."""
        self.ready = False
        # A file that the interpreter must be able to read before the task is ready (tasks.syntax).
        self.reads = ""
        self.asks_keras = False  # the shell says which Keras the program gets, before the task is ready
        self.released_at = None  # type: Optional[float]
        self.stopped = False  # the launcher, or the agent at the end of the run, has stopped it
        self.warned = False  # it got SIGUSR1: the time limit is near
        self.kill_at = None  # type: Optional[float]
        self._stacks_due = False  # the program writes its stacks before it is killed
        self.process = None  # type: Optional[processes.Process]
        self.code = None  # type: Optional[int]
        self.signal = None  # type: Optional[int]
        self.seconds = 0.0
        self.log_signs = None  # type: Optional[LogSigns]  # what the looks have found in the attempt's log
        self.peak_bytes = 0  # the most memory that a process of the attempt had
        self.open_files = 0  # how many the program might open
        self.unreported = False  # the process has ended, and what it left is still being swept
        self._purge = None  # type: Optional[processes.Purge]
        self.gate = None  # type: Optional[Gate]
        self.cwd = ""

    def stage(self, patience_s: float) -> None:
        """Start the shell, which runs the setup and then waits at the gate; raises HostError.

        `patience_s`: how long a file server may take.
        """
        request = self.request
        cwd = self.cwd = os.path.expanduser(request["cwd"]) if request["cwd"] else self._work()
        if request["cwd"]:
            must_answer(cwd, "workdir:", patience_s)
        if not os.path.isdir(cwd):
            raise HostError("%s: no such directory" % cwd, "make it on this host, or correct `workdir:`")
        marks = _marks(self._directory, self.id, self.logs.attempt) if self._marked else {}
        variables = {**request["env"], **marks}
        # The task's own variables (HOME, LD_LIBRARY_PATH) may harm the container's engine.
        env = {**os.environ, **(marks if self._contained else variables)}
        log_path = self.log_path
        argv = [os.path.expanduser(request["argv"][0]), *request["argv"][1:]]  # `python: ~/venv/bin/python`
        try:
            words = self._shell(variables, cwd)
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise explain(error, log_path) from error
        try:
            cpus = cores.listed(request.get("cpus", ""))
            self.gate = self.fork(request, argv, variables, (cwd, log, cpus)) or Gate(
                log, lambda streams: spawn([*words, *argv], env, cwd, streams, cpus)
            )
        except OSError as error:
            why = explain(error, argv[0]) if error.errno == errno.EAGAIN else HostError(str(error))
            raise HostError("%s cannot start: %s" % (self.id, why.reason), why.hint) from error
        finally:
            os.close(log)
        pid = self.gate.pid
        self.process = processes.read(pid) or processes.Process(pid, os.getpid(), "?", 0, "?")

    def _work(self) -> str:
        if not self.sweep_first:
            return self._directory.work
        try:
            return self._directory.own_work(self.id)
        except OSError as error:
            raise explain(error, self._directory.path) from error

    def _shell(self, variables: "Dict[str, str]", cwd: str) -> "List[str]":
        """The command that runs the setup and then the gate, on the host or in a container.

        Raises OSError, HostError.
        """
        gate = GATE
        if self.request.get("stacks", True):
            from tflaunch.agent.host import python_site

            gate = gate.replace('exec "$@"', python_site.prefix(self._directory.path) + 'exec "$@"')
        if self.reads:
            from tflaunch.agent.tasks import syntax

            gate = gate.replace("echo " + READY.decode(), syntax.check(self.reads) + "echo " + READY.decode())
        if self.asks_keras:
            from tflaunch.agent.tasks import keras

            gate = gate.replace("echo " + READY.decode(), keras.ask() + "echo " + READY.decode())
        if self.request.get("numactl"):
            gate = by_numactl(gate, self.request["numactl"])
        if not (self._contained or self.request["setup"]):
            return ["/bin/sh", "-c", gate, "tflaunch"]
        from tflaunch.agent.tasks import shell

        path = os.path.join(self._directory.path, self.id.replace("/", "-") + ".setup")
        decided = shell.exports([*self.request["decided"], *processes.MARKS], variables)
        gate = gate.replace("on this host", "in this image") if self._contained else gate
        shell.write(
            path, variables, self.request["setup"], decided, gate, yielding=self.request.get("yielding", ())
        )
        if self._contained:
            from tflaunch.agent.host import container

            return container.command(self._directory, self.request, self.logs.attempt, cwd, path)
        return shell.login(path)

    @property
    def log_path(self) -> str:
        """The log of the present attempt."""
        return self._directory.log_path(self.id, self.logs.attempt)

    @property
    def _contained(self) -> bool:
        return bool(self.request.get("container"))

    @property
    def places(self) -> "List[str]":
        """The directories that hold the task's own code."""
        cwd = self.request["cwd"]
        own = os.path.join(self._directory.own, self.id.replace("/", "-"))
        return [os.path.expanduser(cwd)] if cwd else [self._directory.work, own]

    @property
    def root(self) -> int:
        """The pid of the program, 0 when there is none; in a container the first process below process 1."""
        inside = self._inside()
        return (inside[1:] or inside)[0].pid if inside else self.process.pid if self.process else 0

    def _inside(self) -> "List[processes.Process]":
        if not self._contained:
            return []
        from tflaunch.agent.host import container

        return container.inside(self._directory.run, self._directory.host, self.id)

    @property
    def keras_3(self) -> str:
        """The version of the Keras 3 that the program gets; "" where it gets none, or that was not asked."""
        if not self.asks_keras:
            return ""
        from tflaunch.agent.tasks import keras

        return keras.version_in(self.gate.said if self.gate is not None else b"")

    def read_gate(self) -> "Optional[bool]":
        """As Gate.read; then the task is `ready`, or not."""
        there = self.gate.read() if self.gate is not None else False
        if there is not None:
            self.ready = there
        return there

    def release(self) -> None:
        """Open the gate: the program starts."""
        self.released_at = time.monotonic()
        if self.request.get("cpus"):
            _bind(self._inside(), self.request["cpus"])
        if self.gate is not None:
            self.gate.open()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.code is None and self.signal is None

    def ended(self, status: int) -> None:
        """The process has ended with this wait status."""
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        else:
            self.code = os.WEXITSTATUS(status)
        self.seconds = time.monotonic() - self.released_at if self.released_at else 0.0
        if self.gate is not None:
            self.gate.shut()

    def warn(self) -> None:
        """Send SIGUSR1 to the program, once and if it runs; not to its helpers, which may have no handler for it."""
        root = self.root if self.alive and self.released_at is not None and not self.stopped else 0
        process = processes.read(root) if root and not self.warned else None
        if process is not None:
            self.warned = True
            processes.send(process, signal.SIGUSR1)

    def stop(self, grace_s: float, with_stacks: bool = False) -> None:
        """Send SIGTERM to the process group now, SIGKILL after the grace; of several calls the earliest end counts.

        An attempt that is still to be staged ends as soon as it is staged.  `with_stacks`: the program hangs, and
        must write its stacks before it ends.
        """
        self.unwanted = self.wanted > self.logs.attempt
        if self.alive:
            self._stacks_due = with_stacks
            self._end(grace_s)

    def _end(self, grace_s: float) -> None:
        kill_at = time.monotonic() + grace_s
        if self.kill_at is None or kill_at < self.kill_at:
            self.kill_at = kill_at
        if not self.stopped and grace_s > 0 and not self._write_stacks(even_if_term_is_caught=False):
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process takes no SIGTERM
        self.stopped = True

    def enforce(self, now: float) -> None:
        """Send SIGKILL when the grace is over."""
        if self.alive and self.kill_at is not None and now >= self.kill_at:
            if self._write_stacks(even_if_term_is_caught=True):
                self.kill_at = now + DUMP_S
                return
            self._signal(signal.SIGKILL)
            self.kill_at = now + 1.0

    def _write_stacks(self, even_if_term_is_caught: bool) -> bool:
        """Have the program write its stacks if that is due; returns whether it does so now, and then ends."""
        if not self._stacks_due or self.process is None:
            return False
        from tflaunch.agent.tasks import stacks

        done = stacks.abort(self.root, even_if_term_is_caught)
        self._stacks_due = not (done or even_if_term_is_caught)
        return done

    def lingers(self, now: float) -> bool:
        """Whether other processes of the group still have some grace left (when a wrapper ended first)."""
        if self.alive or self.process is None or self.kill_at is None or now >= self.kill_at:
            return False
        return processes.send_to_group(self.process.pid, 0)

    def _signal(self, number: int) -> None:
        # In a container signal process 1, which passes the signal on; the engine's client then ends and cleans up.
        inside = self._inside()
        for process in inside if number == signal.SIGKILL else inside[:1]:
            processes.send(process, number)
        if inside:
            return
        # The process is not reaped yet.  So no other process can have its pid, which is also its group and session.
        processes.send_to_group(self.process.pid, number)  # type: ignore[union-attr]

    def next_attempt(self) -> bool:
        """End the present attempt and begin the wanted one; returns True once that can be staged."""
        if self.wanted <= self.logs.attempt:
            return False
        if self.alive:
            self._end(0.0)
            return False
        if not self.sweep_step():
            return False
        self._reset()
        self.awaits_release = False
        self.logs.attempt = self.wanted
        return True

    def sweep_step(self) -> bool:
        """Kill what the ended attempt left behind; call it until it returns True."""
        if self._purge is None:
            run, host = self._directory.run, self._directory.host
            self._purge = processes.Purge(
                lambda: processes.marked(processes.every().values(), run, host, self.id)
            )
        if not self._purge.step():
            return False
        self._purge = None
        return True

    def restart(self, attempt: int) -> None:
        """Have that attempt replace the present one; if the launcher has asked for it before, do nothing."""
        if attempt > self.wanted:
            self.wanted, self.unwanted = attempt, False

    def cannot_start(self, reason: str) -> None:
        """End the task with code 70 before it starts; the log says why, if the disk has room."""
        self.code = 70
        self.released_at = time.monotonic()
        try:
            with open(self.log_path, "ab") as log:
                log.write(b"tflaunch: %s\n" % reason.encode("utf-8", "backslashreplace"))
        except OSError:
            pass


def no_fork(*_: object) -> None:
    """No gate: the task starts as a shell."""


def _bind(inside: "List[processes.Process]", cpus: str) -> None:
    """Bind what runs in a container: newer versions of runc undo what it has inherited."""
    for process in inside:
        try:
            os.sched_setaffinity(process.pid, cores.listed(cpus))
        except OSError:
            pass  # it has ended
