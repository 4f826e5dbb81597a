"""A task on this host: made ready behind a gate, started by opening it, its log a plain file."""

import errno
import os
import time

from tflaunch.agent import processes
from tflaunch.agent.files.rundir import HostError, RunDirectory, explain
from tflaunch.agent.tasks import container, shell, stacks
from tflaunch.agent.tasks.logs import TaskLogs
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional

READY = b"tflaunch-ready\n"

# The shell that a task begins as.  Its input is the gate, its output says that it is ready, its error output
# is the log; the task itself gets none of them but the log.  The command is data: no shell parses it.
GATE = """\
case "$1" in
*/*) test -f "$1" && test -x "$1" ;;
*) command -v -- "$1" >/dev/null 2>&1 ;;
esac || { echo "tflaunch: no program $1 on this host" >&2; exit 127; }
echo tflaunch-ready
read -r go || exit 125
exec "$@" </dev/null >&2
"""


class Task:
    """One task from its stage to its last log byte; started again it is the same task, with another attempt."""

    def __init__(
        self, directory: RunDirectory, request: "Dict[str, Any]", attempt: int = 0, marked: bool = True
    ) -> None:
        """Without `marked` it is none of the run's processes."""
        self.id = request["id"]  # type: str
        self.request = request
        self.logs = TaskLogs(directory, self.id, attempt)
        self.wanted = attempt  # what was asked for; `logs.attempt` is the present one
        self.waits = True  # for `release`; one that is started again does not
        self.unwanted = False  # that attempt was told to stop before it was there
        self.alone = False  # others take its place: nothing of it may live on once its end is told
        self._directory = directory
        self._marked = marked
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the attempt that begins."""
        self.ready = False
        self.reads = (
            ""  # the program's file, if its interpreter is to read that before it is ready (agent.syntax)
        )
        self.released_at = None  # type: Optional[float]
        self.stopped = False  # somebody asked it to end
        self.kill_at = None  # type: Optional[float]
        self._stacks_due = False  # they are to be written before it is killed
        self.process = None  # type: Optional[processes.Process]
        self.code = None  # type: Optional[int]
        self.signal = None  # type: Optional[int]
        self.seconds = 0.0
        self.untold = False  # it has ended, and what it left is being swept
        self._sweep = None  # type: Optional[processes.Sweep]
        self._gate = -1
        self._heard = b""
        self.ready_pipe = -1

    def stage(self) -> None:
        """Start its shell, which does the setup and then waits at the gate; raises HostError."""
        request = self.request
        cwd = os.path.expanduser(request["cwd"]) if request["cwd"] else self._work()
        if not os.path.isdir(cwd):
            raise HostError("%s: no such directory" % cwd, "make it on this host, or correct `workdir:`")
        marks = {}  # type: Dict[str, str]
        if self._marked:
            marks = {
                processes.RUN_MARK: self._directory.run,
                processes.HOST_MARK: self._directory.host,
                processes.TASK_MARK: self.id,
                processes.ATTEMPT: str(self.logs.attempt),
            }
        told = {**request["env"], **marks}
        # What is meant for the task may harm the engine of its container: HOME, LD_LIBRARY_PATH.
        env = {**os.environ, **(marks if self._contained else told)}
        log_path = self._directory.log_path(self.id, self.logs.attempt)
        argv = [os.path.expanduser(request["argv"][0]), *request["argv"][1:]]  # `python: ~/venv/bin/python`
        try:
            words = self._shell(told, cwd)
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise explain(error, log_path) from error
        theirs, ours = [log], []  # type: List[int], List[int]
        try:
            for kept in (1, 0):  # the gate, and what says that it is ready
                pipe = os.pipe()
                ours.append(pipe[kept])
                theirs.append(pipe[1 - kept])
            pid = _spawn([*words, *argv], env, cwd, (theirs[1], theirs[2], log))
        except OSError as error:
            for each in ours:
                os.close(each)
            why = explain(error, argv[0]) if error.errno == errno.EAGAIN else HostError(str(error))
            raise HostError("%s cannot start: %s" % (self.id, why.reason), why.hint) from error
        finally:
            for each in theirs:
                os.close(each)
        self._gate, self.ready_pipe = ours
        os.set_blocking(self.ready_pipe, False)
        self.process = processes.read(pid) or processes.Process(pid, os.getpid(), "?", 0, "?")

    def _work(self) -> str:
        if not self.alone:
            return self._directory.work
        try:
            return self._directory.own_work(self.id)
        except OSError as error:
            raise explain(error, self._directory.path) from error

    def _shell(self, told: "Dict[str, str]", cwd: str) -> "List[str]":
        """The command that does the setup, here or in a container, and then is the gate. Raises OSError, HostError."""
        gate = GATE
        if self.reads:
            from tflaunch.agent.tasks import syntax

            gate = gate.replace("echo " + READY.decode(), syntax.check(self.reads) + "echo " + READY.decode())
        if not (self._contained or self.request["setup"]):
            return ["/bin/sh", "-c", gate, "tflaunch"]
        path = os.path.join(self._directory.path, self.id.replace("/", "-") + ".setup")
        decided = shell.exports([*self.request["decided"], *processes.MARKS], told)
        gate = gate.replace("on this host", "in this image") if self._contained else gate
        shell.write(path, told, self.request["setup"], decided, gate)
        if self._contained:
            return container.command(self._directory, self.request, self.logs.attempt, cwd, path)
        return shell.login(path)

    @property
    def _contained(self) -> bool:
        return bool(self.request.get("container"))

    @property
    def root(self) -> int:
        """The process that is the task, 0 when there is none; in a container the first below process 1."""
        inside = self._inside()
        return (inside[1:] or inside)[0].pid if inside else self.process.pid if self.process else 0

    def _inside(self) -> "List[processes.Process]":
        if not self._contained:
            return []
        return container.inside(self._directory.run, self._directory.host, self.id)

    def hear(self) -> "Optional[bool]":
        """What came through the ready pipe: True it waits at the gate, False nothing will, None not yet."""
        try:
            data = os.read(self.ready_pipe, 4096)
        except BlockingIOError:
            return None
        self._heard = (self._heard + data)[-8192:]  # a login profile may print before it
        if data and READY not in self._heard:
            return None
        self.ready = bool(data)
        os.close(self.ready_pipe)
        self.ready_pipe = -1
        return self.ready

    def release(self) -> None:
        """Open the gate."""
        self.released_at = time.monotonic()
        if self._gate < 0:
            return  # its shell has died
        try:
            os.write(self._gate, b"go\n")
        except OSError:  # it is dying; the loop hears of that
            pass
        os.close(self._gate)
        self._gate = -1

    @property
    def alive(self) -> bool:
        return self.process is not None and self.code is None and self.signal is None

    def ended(self, status: int) -> None:
        """Its wait status came."""
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        else:
            self.code = os.WEXITSTATUS(status)
        self.seconds = time.monotonic() - self.released_at if self.released_at else 0.0
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    def stop(self, grace_s: float, with_stacks: bool = False) -> None:
        """TERM to its process group now, KILL after the grace; asked again, the sooner end counts.

        An attempt that was asked for and is still to come ends as soon as it is there.  `with_stacks`: it is stuck,
        and is to write where before it ends.
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
            self._signal(signal.SIGCONT)  # a stopped process takes no TERM
        self.stopped = True

    def enforce(self, now: float) -> None:
        """KILL when the grace is over."""
        if self.alive and self.kill_at is not None and now >= self.kill_at:
            if self._write_stacks(even_if_term_is_caught=True):
                self.kill_at = now + stacks.DUMP_S
                return
            self._signal(signal.SIGKILL)
            self.kill_at = now + 1.0

    def _write_stacks(self, even_if_term_is_caught: bool) -> bool:
        """If that is due, and it can: whether it does now and then ends."""
        if not self._stacks_due or self.process is None:
            return False
        done = stacks.abort(self.root, even_if_term_is_caught)
        self._stacks_due = not (done or even_if_term_is_caught)
        return done

    def lingers(self, now: float) -> bool:
        """Whether others of its process group, told to end, may use up their grace (a wrapper that ended first)."""
        if self.alive or self.process is None or self.kill_at is None or now >= self.kill_at:
            return False
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def _signal(self, number: int) -> None:
        # In a container not the engine's client, which ends by itself and clears up: process 1 passes it on.
        inside = self._inside()
        for process in inside if number == signal.SIGKILL else inside[:1]:
            processes.send(process, number)
        if inside:
            return
        try:
            # Not reaped yet, so the pid, which is also its group and session, can be nobody else's.
            os.killpg(self.process.pid, number)  # type: ignore[union-attr]
        except (ProcessLookupError, PermissionError):
            pass

    def again(self) -> bool:
        """Whether it can be staged as the attempt that is wanted; kills on the way what is left of the present one."""
        if self.wanted <= self.logs.attempt:
            return False
        if self.alive:
            self._end(0.0)
            return False
        if not self.left_nothing():
            return False
        self._forget()
        self.waits = False
        self.logs.attempt = self.wanted
        return True

    def left_nothing(self) -> bool:
        """Kill what the attempt that has ended left behind; whether that is done."""
        if self._sweep is None:
            run, host = self._directory.run, self._directory.host
            self._sweep = processes.Sweep(
                lambda: processes.marked(processes.every().values(), run, host, self.id)
            )
        if not self._sweep.step():
            return False
        self._sweep = None
        return True

    def start_again(self, attempt: int) -> None:
        """Ask for that attempt; one that was asked for before is no news."""
        if attempt > self.wanted:
            self.wanted, self.unwanted = attempt, False

    def cannot_start(self, reason: str) -> None:
        """It ends with code 70 before it began; its log says why, if the disk takes it."""
        self.code = 70
        self.released_at = time.monotonic()
        try:
            with open(self._directory.log_path(self.id, self.logs.attempt), "a") as log:
                log.write("tflaunch: %s\n" % reason)
        except OSError:
            pass


def _spawn(words: "List[str]", env: "Dict[str, str]", cwd: str, streams: "Iterable[int]") -> int:
    """Start that command in a session of its own, with these descriptors and no others; raises OSError.

    Not with a fork, which copies the tables of all that this process has in memory, nor with `subprocess`, which
    takes longer to load than all else that a task costs its agent.
    """
    become = [(os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(streams)]
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # by Python; what it catches ends with it
    os.chdir(cwd)
    try:
        try:
            return os.posix_spawn(words[0], words, env, file_actions=become, setsid=True, setsigdef=ignored)
        except NotImplementedError:  # an older C library
            words = ["/usr/bin/setsid", *words]
            return os.posix_spawn(words[0], words, env, file_actions=become, setsigdef=ignored)
    except ValueError as error:  # a NUL in an argument
        raise OSError(str(error)) from error
    finally:
        os.chdir("/")
