"""Carries a schedule out on a bed."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults import END, NUMBERS, Trial
from tests.faults.schedules.faults import NotThere, Undo
from tests.faults.schedules.schedule import Planned, Schedule
from tests.support.bed import BedHost
from tests.support.bed.disks import mend, own_disk
from tests.support.launcher import Process, Running, parents
from tests.support.patience import PATIENCE_S

LEASE_S = 8
LINES = 200  # of each worker or trial, at 100 a second
DISK_BYTES = 4 << 20
HANDED = re.compile(r"(\S+) goes on by itself")
CONNECT = "--connect-timeout=10"
QUICK = (f"--lease={LEASE_S}", "--grace=1", CONNECT)
KILLED = -signal.SIGKILL
MANY = 8  # commands
TRY_S = 0.05


class Play:
    """A run, what befalls it, and everything that was typed."""

    def __init__(self, trial: Trial, schedule: Schedule) -> None:
        self.trial = trial
        self.schedule = schedule
        self.bed = trial.bed
        self.far = trial.far
        self.kind = schedule.kind
        self.hosts = trial.up(schedule.hosts)
        self.happened: list[Planned] = []
        self.calls: list[tuple[str, Running]] = []  # each command after the first, with its verb
        self.disks = {
            self.hosts[each.host - 1]: each.fault.disk
            for each in sorted(schedule.planned, key=lambda each: each.fault.disk == "own")
            if each.fault.disk
        }
        for host, disk in self.disks.items():
            if disk == "small":
                host.small_disk("/var/tmp", DISK_BYTES)
            else:
                own_disk(host, "/var/tmp", DISK_BYTES)
        self.hostfile = self._hostfile()
        self.words = self._words()
        self.main = self.far.start(*self.words)

    # -- what is typed

    @property
    def works(self) -> list[str]:
        """The tasks that have work to do."""
        if self.kind == "sweep":
            return [f"trial/{number}" for number in range(2 * len(self.hosts))]
        if self.kind == "up":
            return []
        return [f"worker/{number}" for number in range(len(self.hosts))]

    @property
    def again_s(self) -> float:
        """For how long trials may run that are tried again on one host that is left."""
        return len(self.works) * LINES / 100 if self.kind == "sweep" else 0.0

    @property
    def detaches(self) -> bool:
        """Whether the run's own command ends once the tasks run."""
        return self.kind in ("detached", "up")

    def _hostfile(self) -> Path:
        wire = "openssh" if self.kind == "openssh" else "ssh"
        python = {"python": sys.executable} if self.kind == "up" else {}  # one that has TensorFlow
        return self.far.hostfile(self.hosts, gpus=None, connection=wire, **python)

    def _words(self) -> tuple[str | Path, ...]:
        if self.kind == "up":
            return ("up", self.hostfile, "--ps=1", "--workers=1", *QUICK, "--yes")
        last = self.works[-1] if self.kind == "sweep" else ""
        env = (f"NUMBERS={LINES} 100 0", "MANNERS=", f"END={END}", f"LAST={last}")
        work = (self.hostfile, self.far.script(NUMBERS), *(f"--env={each}" for each in env), *QUICK)
        if self.kind == "sweep":
            values = ",".join(map(str, range(len(self.works))))
            return ("sweep", *work, f"--grid=x={values}", "--yes")
        more = ("--ps=1", f"--workers={len(self.works)}", "--ps-grace=0.2", *self.ssh)
        return ("run", *(("--detach",) if self.kind == "detached" else ()), *work, *more)

    @property
    def ssh(self) -> tuple[str | Path, ...]:
        """The system's ssh looks for its files in the home directory of the account, whatever HOME says."""
        return ("-F", self.far.home / ".ssh/config") if self.kind == "openssh" else ()

    @property
    def run_id(self) -> str:
        """The run's id; "" as long as the launcher has said none."""
        found = re.search(r"^(?:run|sweep|servers?) ([a-z][\w-]*-\w{6})\b", self.main.err, re.MULTILINE)
        found = found or HANDED.search(self.main.err)
        return found[1] if found else ""

    @property
    def on_record(self) -> bool:
        """Whether this machine knows the run: what could not start has no record, but may have left one on hosts."""
        return (self.bed.launcher.path(self.far.state / self.run_id) / "run.json").exists()

    @property
    def handed(self) -> bool:
        """Whether the run goes on without its launcher."""
        return HANDED.search(self.main.err) is not None or (
            self.kind == "up" and self.main.process.poll() == 0
        )

    @property
    def watching(self) -> Running | None:
        """The last `attach`."""
        return next((each for verb, each in reversed(self.calls) if verb == "attach"), None)

    @property
    def command(self) -> Running:
        """What the user has in front of him."""
        if self.main.process.poll() is not None and self.watching is not None:
            return self.watching
        return self.main

    def call(self, verb: str) -> Undo:
        """Type another command about the run; raises NotThere while it has no name."""
        if not self.run_id:
            raise NotThere
        self.calls.append((verb, self.ask(verb)))
        return None

    def ask(self, verb: str) -> Running:
        """Start a command about the run."""
        hosts = ("--hosts", self.hostfile, *self.ssh)
        if verb == "ps":
            return self.far.start(verb, "-a", "--json", *hosts, CONNECT)
        about = (self.run_id, *(("--json",) if verb == "status" else ()))
        return self.far.start(verb, *about, *(() if self.on_record else hosts), CONNECT)

    def watch(self) -> None:
        """Begin to watch a run that goes on by itself, also after who watched it was killed, or could not come."""
        if self.handed and self.run_id and len(self.calls) < MANY:
            watching = self.watching
            code = watching and watching.process.poll()
            if watching is None or code in (69, 130, KILLED):
                self.call("attach")
        names = {each.name for each in self.happened}
        both = "agent-and-guard-killed" in names or names >= {"agent-killed", "guard-killed"}
        gone = both and self.handed and self.run_id
        typed = any(verb == "ps" and each.process.poll() is not None for verb, each in self.calls[-1:])
        if gone and not typed and all(each.process.poll() is not None for _, each in self.commands()):
            self.call("ps")  # what an agent and its guard have left behind ends with whoever comes there next

    def stop_command(self) -> Undo:
        """SIGSTOP for it."""
        command = self._alive()
        command.signal(signal.SIGSTOP)
        return lambda: command.signal(signal.SIGCONT) if command.process.poll() is None else None

    def kill_command(self) -> Undo:
        """SIGKILL for it."""
        self._alive().signal(signal.SIGKILL)
        return None

    def interrupt(self) -> Undo:
        """Ctrl-C."""
        self._alive().interrupt()
        return None

    def _alive(self) -> Running:
        if self.command.process.poll() is not None:
            raise NotThere
        return self.command

    # -- its processes

    def agent(self, host: BedHost) -> Process:
        """The agent of the run there."""
        return self._of_agent(host, "pid")

    def guard(self, host: BedHost) -> Process:
        """Its guard."""
        return self._of_agent(host, "guard")

    def _of_agent(self, host: BedHost, key: str) -> Process:
        for path in host.disk.glob(f"tflaunch-*/*/{host.name}/agent.json"):
            try:
                pid = host.outside(json.loads(path.read_text())[key])
            except (OSError, ValueError, KeyError):  # it is just being written, or removed
                continue
            if pid:
                return Process(pid, (), {})
        raise NotThere

    def coordinator(self) -> Process:
        """What decides for a detached run: a child of an agent."""
        for host in self.hosts:
            agents = {each.pid for each in host.processes() if each.is_agent and not each.asks}
            own = self._pid(lambda host=host: self.agent(host))
            for each in agents:
                if own and parents(each) == own:
                    return Process(each, (), {})
        raise NotThere

    @staticmethod
    def _pid(find: Callable[[], Process]) -> int:
        try:
            return find().pid
        except NotThere:
            return 0

    def task(self, host: BedHost) -> Process:
        """The first process of a task there that has work to do, or of any."""
        found = [each for each in host.processes() if each.env.get("TFLAUNCH_TASK")]
        if not found:
            raise NotThere
        return min(found, key=lambda each: (each.env["TFLAUNCH_TASK"] not in self.works, each.pid))

    def begun(self) -> bool:
        """Whether the tasks were let go; of a run that needs no launcher, whether it goes on by itself."""
        if self.detaches:
            return self.handed
        return ("has started" if self.kind == "sweep" else "training") in self.main.err

    # -- the play

    def carry_out(self) -> None:
        """Let it all happen, and make good again what is to be; `happened` is what has befallen something."""
        started = time.monotonic()
        begun: float | None = None
        due = list(self.schedule.planned)
        undo: list[tuple[float, Callable[[], None]]] = []
        while due or undo:
            now = time.monotonic()
            if begun is None and self.begun():
                begun = now
            if begun is None and self.main.process.poll() is not None and not self.handed:
                due = [each for each in due if each.phase == "start"]  # it has never begun
            over = self.main.process.poll() is not None and not self.handed
            for each in list(due):
                since = started if each.phase == "start" else begun
                if since is None or now < since + each.at_s:
                    continue
                late = now > since + each.at_s + PATIENCE_S / 10
                if over or late or self._befalls(each, now, undo):
                    due.remove(each)
            for moment, act in list(undo):
                if moment <= now:
                    undo.remove((moment, act))
                    act()
            assert now < started + PATIENCE_S, f"the run never began\n{self.story()}"
            time.sleep(TRY_S)
            self.watch()

    def _befalls(self, each: Planned, now: float, undo: list[tuple[float, Callable[[], None]]]) -> bool:
        """Whether it has happened, or never will."""
        host = self.hosts[each.host - 1]
        if not host.pid:
            return True
        try:
            how = each.fault.act(self, host)
        except NotThere:
            return False  # tried again
        self.happened.append(each)
        if how is not None and each.for_s is not None:
            undo.append((now + each.for_s, self._while_on(host, how)))
        return True

    def _while_on(self, host: BedHost, how: Callable[[], None]) -> Callable[[], None]:
        return lambda: how() if host.pid else None

    def start_sshd(self, host: BedHost) -> None:
        """Start it again, if it is not there."""
        if host.pid and not host.listener:
            host.start_sshd()

    def empty(self, host: BedHost) -> None:
        """Make room on its disk."""
        for path in host.disk.glob("filler*"):
            path.unlink(missing_ok=True)
        (host.disk / "last").unlink(missing_ok=True)

    # -- afterwards

    def let_end(self) -> None:
        """Let the tasks end; what cannot end by itself is stopped."""
        for host in self.hosts:
            (host.directory / END.strip("/")).touch()
        hung = any(each.name == "task-hung" and each.for_s is None for each in self.happened)
        alive = self.handed or self.main.process.poll() is None
        if (self.kind == "up" or hung) and alive and self.run_id:
            self.call("stop")
        if (
            self.handed
            and self.run_id
            and (self.watching is None or self.watching.process.poll() is not None)
        ):
            self.call("attach")

    def commands(self) -> Iterator[tuple[str, Running]]:
        """Everything that was typed, with its verb."""
        yield str(self.words[0]), self.main
        yield from self.calls

    def repair(self) -> None:
        """All is well again on hosts and networks."""
        self.bed.heal()
        self.bed.name_all()
        for host in self.hosts:
            if not host.pid:
                self.bed.boot(host)
            host.thaw()
            self.bed.delay(host, 0)
            self.start_sshd(host)
            if self.disks.get(host) == "own" and host.path("/var/tmp").is_mount():
                mend(host, "/var/tmp")
            self.empty(host)

    def story(self) -> str:
        """What was typed, and what was said."""
        parts = [f"{self.schedule.command}\nhappened: {'; '.join(map(str, self.happened)) or 'nothing'}"]
        for verb, each in self.commands():
            quiet = [line for line in each.out.splitlines() if "│" not in line][-20:]
            parts.append(
                "\n".join([f"--- {verb}: exit code {each.process.poll()}", each.err.rstrip(), *quiet])
            )
        return "\n".join(parts)
