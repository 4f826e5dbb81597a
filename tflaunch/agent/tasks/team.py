"""All tasks of one run on this host: staged together, released together; each exit goes to the journal."""

import os
import time

from tflaunch.agent.host import processes
from tflaunch.agent.host.guard import FIRST_LEASE_S
from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import HostError, must_answer
from tflaunch.agent.tasks.end_facts import EndFacts
from tflaunch.agent.tasks.gate import Gate
from tflaunch.agent.tasks.meetings import Meetings
from tflaunch.agent.tasks.task import Task, no_fork
from tflaunch.protocol import wire
from tflaunch.protocol.machine import pid_namespace, this_machine
from tflaunch.protocol.selector import EVENT_READ
from tflaunch.text.numbers import agreeing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional

    from tflaunch.agent.host.journal import Journal
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.tasks.logs import TaskLogs
    from tflaunch.agent.tasks.preloading import Preloading
    from tflaunch.protocol.selector import Selector


TURN_S = 0.2  # for added tasks in one turn of the agent's loop: to make a working directory may take long


def _signal_name(number: "Optional[int]") -> str:
    """This host's name for that signal; the launcher's system may have other numbers."""
    if number is None:
        return ""
    import signal  # its enumerations take longer to load than most other work of an agent

    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def _remedy(reason: str) -> str:
    """The next step for the user when a task cannot be staged for that reason."""
    if "no program" in reason and reason.endswith("it is a directory"):
        return "name the interpreter in it by `python:` in the hostfile, as ~/venv/bin/python3, or use `venv: ~/venv`"
    if "no program" in reason:
        return (
            "name the interpreter of the tasks there by `python:` in the hostfile, or install what the program's "
            "first line names"
        )
    if "container-init" in reason:
        return "install catatonit on that host"  # podman's --init
    return "correct `setup:`, `conda:` or `venv:` in the hostfile" if "setup failed" in reason else ""


def _why_not_ready(task: Task) -> "Dict[str, str]":
    """The `reason` and `hint` of a task that has ended at its gate."""
    # Without the task's name: when several hosts give the same cause, the launcher shows it once for all of them.
    log = task.logs.tail(0).decode("utf-8", "replace").strip()
    if task.reads:
        from tflaunch.agent.tasks import syntax

        error = syntax.error_in(log) if task.code == syntax.UNREADABLE else ""
        if error:
            return {"reason": error, "hint": syntax.REMEDY}
    lines = log.splitlines()[-10:]
    how = "code %d" % task.code if task.code is not None else "signal %d" % (task.signal or 0)
    reason = "\n".join(lines) or "the shell of a task ended with %s" % how
    return {"reason": reason.replace("tflaunch: ", ""), "hint": _remedy(reason)}


def _served_by(directory: "RunDirectory") -> "Dict[str, Any]":
    """What agent.json tells of this agent, its guard and its host."""
    guard = processes.read(os.getppid())
    me = processes.read(os.getpid())
    return {
        "wire": wire.PROTOCOL,
        "run": directory.run,
        "host": directory.host,
        "pid": os.getpid(),
        "start": me.start if me else 0,
        "guard": os.getppid(),
        "guard_start": guard.start if guard else 0,
        "machine": this_machine(),
        "namespace": pid_namespace(),
        "user": os.environ.get("USER") or str(os.getuid()),
    }


class Team:
    """The tasks, by name."""

    def __init__(
        self,
        directory: "RunDirectory",
        journal: "Journal",
        selector: "Selector",
        send_to_launcher: "Callable[..., None]",
    ) -> None:
        self.tasks = {}  # type: Dict[str, Task]
        self.ran = []  # type: List[processes.Process]  # all programs that were released
        self.ending = False  # the run ends on this host
        self.lease_s = FIRST_LEASE_S
        self.facts = EndFacts(directory)
        self._directory = directory
        self._journal = journal
        self._selector = selector
        self._send_to_launcher = send_to_launcher
        self._started = 0.0  # when the first tasks were staged, by this host's clock
        self._staging = False
        self._added = []  # type: List[Task]  # still to be staged
        self._meetings = Meetings()
        self._preloading = None  # type: Optional[Preloading]

    def logs(self) -> "Dict[str, TaskLogs]":
        """The logs by task."""
        return {name: task.logs for name, task in self.tasks.items()}

    @property
    def patience_s(self) -> float:
        """How long one thing may hold up the agent, whose lease and whose guard's patience must not run out by it."""
        return self.lease_s / 4

    # -- their start

    def stage(
        self,
        requests: "List[Dict[str, Any]]",
        attempt: int,
        programs: "Optional[Mapping[str, Any]]" = None,
        asks_keras: bool = False,
    ) -> None:
        """Have these tasks wait at their gates, then send `staged`; raises HostError.

        `programs` names the files that the tasks' interpreters must be able to parse (`wire`, message `stage`).  With
        `asks_keras` the first task finds out whether its program gets Keras 3.
        """
        for python in {request["argv"][0] for request in requests}:
            if "/" in python:
                must_answer(os.path.dirname(os.path.expanduser(python)), "python:", self.patience_s)
        reads = {}  # type: Dict[str, str]
        if programs:
            from tflaunch.agent.tasks import syntax

            reads = syntax.who_checks(requests, programs)
        for request in requests:
            task = Task(self._directory, request, attempt)
            task.reads = reads.get(task.id, "")
            task.asks_keras = asks_keras and request is requests[0]
            task.stage(self.patience_s)
            self.tasks[task.id] = task
            self._listen_to(task)
        self._staging = True
        self.record()
        self._send_staged()

    def preload(self, wanted: "Dict[str, Any]") -> None:
        """Have a process fork for the tasks that are added, where it can: field `preload` of the message `stage`."""
        from tflaunch.agent.tasks.preloading import Preloading

        self._preloading = Preloading(
            self._directory, wanted, lambda text: self._journal.add("said", text=text, replanned=False)
        )

    def _listen_to(self, task: Task) -> None:
        gate = task.gate
        if gate is not None:
            pipe = gate.pipe
            self._selector.register(pipe, EVENT_READ, lambda: self._read_gate(task, gate, pipe))

    def _read_gate(self, task: Task, gate: Gate, pipe: int) -> None:
        if gate is not task.gate:  # that of an attempt that was given up before it was ready
            self._selector.unregister(pipe)
            gate.leave()
            return
        ready = task.read_gate()
        if ready is not None:
            self._selector.unregister(pipe)
            self._send_staged()
        if ready and not task.awaits_release:
            self._release(task)

    def _send_staged(self) -> None:
        if self._staging and all(task.ready for task in self.tasks.values()):
            self._staging = False
            found = [task.keras_3 for task in self.tasks.values() if task.keras_3]
            self._send_to_launcher("staged", **({"keras": found[0]} if found else {}))

    def release(self) -> None:
        """Start the tasks that wait at their gates."""
        for task in self.tasks.values():
            if task.released_at is None and not self.ending:
                self._meetings.serve(task)
        for task in self.tasks.values():
            if task.released_at is None and not self.ending:
                self._release(task)

    def _release(self, task: Task) -> None:
        if not self.ran:
            self.facts.begin()
        task.release()
        if task.process:
            self.ran.append(task.process)
        pid = task.process.pid if task.process else 0
        self._journal.add("started", task=task.id, attempt=task.logs.attempt, pid=pid)
        if not task.alive:
            self._report_exit(task)

    def add(self, requests: "List[Dict[str, Any]]", attempt: int, own_directory: bool = True) -> None:
        """Start these tasks, too, each as soon as it is ready; restart a task that was on this host before.

        With `own_directory`, each new one has a working directory of its own, and all that it leaves is killed.
        """
        for request in requests:
            task = self.tasks.get(request["id"])
            if task is None:
                task = self.tasks[request["id"]] = Task(self._directory, request, attempt)
                task.awaits_release, task.sweep_first = False, own_directory
                task.fork = self._preloading.gate if self._preloading is not None else no_fork
                self._added.append(task)
                self._meetings.serve(task)
            elif attempt > task.wanted:
                task.request = request
                self._meetings.serve(task)
                task.restart(attempt)
        plan = self._directory.read("plan.json")
        everything = [each.request for each in self.tasks.values()]
        try:
            self._directory.write(
                "plan.json", dict(plan, tasks=everything)
            )  # for those who ask what runs here
        except OSError as error:
            note("plan.json: %s" % error)
        self.record()

    def take_over(self, tasks: "List[str]") -> None:
        """Tell all who watch, before anything else of them, which tasks have moved to this host."""
        new = [task for task in tasks if task not in self.tasks]
        if new:
            text = "%s %s on this host from now on" % (", ".join(new), agreeing(len(new), "is", "are"))
            self._journal.add("said", text=text, replanned=False, moved=new)

    def restart(self, attempts: "Mapping[str, int]") -> None:
        """Restart these tasks, each as that attempt."""
        for name, attempt in attempts.items():
            task = self.tasks[name]
            if attempt > task.wanted and not self.ending:
                self._meetings.serve(task)
            task.restart(attempt)

    def _stage_later(self, task: Task) -> None:
        """Stage a task that was added or restarted; if that fails, that task ends and the others go on."""
        try:
            task.stage(self.patience_s)
            self._listen_to(task)
            if task.unwanted:
                task.stop(0.0)
            return
        except HostError as error:
            reason = error.reason
        except Exception as error:
            import traceback

            note(traceback.format_exc())
            reason = "a defect of tflaunch's agent: %r; see agent.log there" % error
        task.cannot_start(reason)
        self._report_exit(task)

    # -- their life

    @property
    def restless(self) -> bool:
        """Whether `tick` has to come again soon."""
        changing = any(task.unreported or task.wanted > task.logs.attempt for task in self.tasks.values())
        return changing or bool(self._added)

    def tick(self, now: float) -> None:
        """Kill tasks whose grace is over; go on with tasks that were added, restarted, or have ended."""
        while self._added:
            self._stage_later(self._added.pop(0))
            if time.monotonic() - now >= TURN_S:
                break
        for task in self.tasks.values():
            task.enforce(now)
            task.logs.note_time(now)
            if task.unreported and (self.ending or task.sweep_step()):
                self._report_exit(task)
            if not (self.ending or task.unreported or task in self._added) and task.next_attempt():
                self._stage_later(task)

    def stop(self, wanted: "Optional[List[str]]", grace_s: float) -> None:
        """SIGTERM to these tasks (None: to all), SIGKILL after the grace."""
        for task in self.tasks.values():
            if wanted is None or task.id in wanted:
                task.stop(grace_s)

    def warn(self, attempts: "Mapping[str, int]") -> None:
        """SIGUSR1 to the programs of these attempts that run, once to each: the time limit is near."""
        for name, attempt in attempts.items():
            task = self.tasks.get(name)
            if task is not None and task.logs.attempt == attempt:
                task.warn()

    # -- their end

    def dead(self, pid: int) -> None:
        """Look at the child process that has ended, and is about to be reaped."""
        for task in self.tasks.values():
            if task.process and task.alive and task.process.pid == pid and task.released_at is not None:
                from tflaunch.agent.tasks import exit_facts

                task.open_files = exit_facts.open_files(pid)

    def reaped(self, pid: int, status: int, peak_bytes: int) -> bool:
        """Whether the child process that has ended was one of these tasks, or serves them."""
        if self._meetings.reaped(pid) or (self._preloading is not None and self._preloading.reaped(pid)):
            return True
        for task in self.tasks.values():
            if task.process and task.alive and task.process.pid == pid:
                task.peak_bytes = peak_bytes
                self._ended(task, status)
                return True
        return False

    def _ended(self, task: Task, status: int) -> None:
        task.ended(status)
        if task.sweep_first and not self.ending:
            task.unreported = True
        elif task.released_at is not None or not task.awaits_release:
            self._report_exit(task)
        elif self._staging:
            self._staging = False
            self._send_to_launcher("failed", **_why_not_ready(task))

    def _report_exit(self, task: Task) -> None:
        if task.sweep_first and not self.ending:  # nothing is left that could write more
            task.logs.end()
        if not self.ending:
            self._meetings.ended(task.id)
        task.unreported = False
        self._journal.add(
            "exit",
            task=task.id,
            attempt=task.logs.attempt,
            code=task.code,
            signal=task.signal,
            signal_name=_signal_name(task.signal),
            seconds=round(task.seconds, 3),
            stopped=task.stopped,
            log_bytes=task.logs.size(task.logs.attempt),
            **self.facts.of(task, self.ending),
        )

    def end(self, grace_s: float, with_stacks: bool) -> None:
        """Stop all tasks and start no more; `with_stacks`: the tasks hang, and write their stacks first."""
        self.ending = True
        self._staging = False
        self._added.clear()
        self._meetings.close()
        if self._preloading is not None:
            self._preloading.end()
        for task in self.tasks.values():
            task.stop(grace_s if task.released_at is not None else 0.0, with_stacks)

    def may_end(self, now: float) -> bool:
        """Whether a process of the tasks still has grace left to end by itself."""
        return any(task.alive or task.lingers(now) for task in self.tasks.values())

    @property
    def contained(self) -> bool:
        """Whether some tasks run in containers."""
        return any(task.request.get("container") for task in self.tasks.values())

    def record(self, over: bool = False) -> None:
        """Write agent.json: which processes serve the run here; visits and later agents read it."""
        self._started = self._started or time.time()
        try:
            self._directory.write(
                "agent.json",
                dict(
                    _served_by(self._directory),
                    lease_s=self.lease_s,
                    started=self._started,
                    tasks=list(self.tasks),
                    over=over,
                ),
            )
        except OSError as error:
            note("agent.json: %s" % error)
