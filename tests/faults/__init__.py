"""The fault suite: what befalls hosts, networks and processes while a run is under way, and what is left of it.

Each test lets one fault happen to a run of numbered lines (NUMBERS) on a test bed (tests.support.bed), and then checks
the same invariants (`Trial.check`):

    no process of the run is alive anywhere that should not be
    every line is there exactly once and in order, on the hosts, in the launcher's record and on its stdout
    the exit code is right
    no GPU is leased any more
    no socket of an agent is left

The marker `fault(NAME, WHAT_HAPPENS, WHAT_IS_LOST)` of each test is its row in docs/reliability.md, which
`scripts/faults` writes anew, with the times that the suite has measured.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from tests.support.bed import Bed, BedHost, FarLauncher
from tests.support.launcher import Process, Running, parents
from tests.support.patience import PATIENCE_S, until

FULL = os.environ.get("TFLAUNCH_FAULTS") == "full"  # else as much of it as every run of all tests can bear
FIGURES = "TFLAUNCH_FIGURES"  # a file to which each test adds a line with its times

# Prints `worker/0 00000001` and so on, so many lines at so many a second; a ps does so for ever.  Before its last line
# a worker, or the task $LAST, waits for the file $END, so that no run is over before its fault has happened; one in a
# flood does not.
NUMBERS = """\
import os, signal, subprocess, sys, time

task = os.environ["TFLAUNCH_TASK"]
manners = os.environ["MANNERS"].split()
count, rate, code = (float(word) for word in os.environ["NUMBERS"].split())

if "deaf" in manners:  # ignores every polite signal, and so do its children
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
if "daemon" in manners and os.fork() == 0:  # escapes as a daemon does: twice forked, a session of its own
    os.setsid()
    if os.fork():
        os._exit(0)
    os.environ.clear()
    time.sleep(3600)
if "wait" in manners:
    print(task, "waits", flush=True)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)
if "fork" in manners and task.startswith("worker"):  # to the limit of processes, and past it
    try:
        while True:
            if os.fork() == 0:
                time.sleep(3600)
    except OSError as error:
        print("cannot fork:", error, file=sys.stderr, flush=True)
        time.sleep(3600 if "stay" in manners else 0)
        sys.exit(3)

if not rate and task.startswith("worker"):  # as fast as it goes, 100 bytes a line
    for first in range(1, int(count) + 1, 1000):
        for number in range(first, min(first + 1000, int(count) + 1)):
            sys.stdout.write("%s %08d %s\\n" % (task, number, "." * 81))
        sys.stdout.flush()
    sys.exit(int(code))
waits = task.startswith("worker") or task == os.environ.get("LAST")
started = time.monotonic()
number = 0
while number < count or task.startswith("ps"):
    number += 1
    while number == count and waits and not os.path.exists(os.environ["END"]):
        time.sleep(0.05)
    sys.stdout.write("%s %08d\\n" % (task, number))
    sys.stdout.flush()
    time.sleep(max(0.0, started + number / (rate or 10) - time.monotonic()))
sys.exit(int(code))
"""
SHOWN = re.compile(r"^(\w+/\d+) +│ (?:\w+/\d+) (\d{8})", re.MULTILINE)
# What the launcher says of a host.
TROUBLE = re.compile(r"(\S+) (?:is lost|is out of reach)")
BACK = re.compile(r"(\S+) is back after")
# What else a task may say: that it waits, why it failed.
NOISE = re.compile(rb"\S+ waits$|cannot fork: |Terminated$|Traceback |  |OSError: ")
NOTHING = "nothing"
# Faults of the connection happen to both kinds of it: paramiko's, and the system's `ssh`.
over_both_wires = pytest.mark.parametrize("trial", ["ssh", "openssh"], indirect=True)
QUICK = ("--grace=1", "--ps-grace=0.2", "--connect-timeout=10")
END = "/tmp/end"  # on each host


class Trial:
    """One run on a bed, what befell it and when, and what must hold after it."""

    def __init__(self, bed: Bed, far: FarLauncher, gpus: Path, name: str, wire: str = "ssh") -> None:
        self.bed = bed
        self.far = far
        self.hosts: list[BedHost] = []
        self.placement: dict[str, BedHost] = {}
        self.running: Running
        self.run_id = ""
        self.detached = False
        self.times: dict[str, float] = {}  # what happened how many seconds after the fault
        self.wire = wire
        self._gpus = gpus
        self._name = name
        self._lines = 0
        self._at: float | None = None

    # -- the run

    def up(self, count: int, *, clock: bool = False) -> list[BedHost]:
        """So many hosts with a GPU each."""
        self.hosts = self.bed.up(count, clock=clock)
        for host in self.hosts:
            host.give_gpus(self._gpus, f"gpu uuid=GPU-{host.name}")
        return self.hosts

    def start(
        self,
        *,
        lines: int = 300,
        rate: float = 100,
        code: int = 0,
        ps: int = 1,
        workers: int = 1,
        manners: str = "",
        lease_s: float = 60,
        detached: bool = False,
        more: Sequence[str] = (),
    ) -> Running:
        """Start it, and wait until every task has printed a line; a worker has `lines` of them, and then `let_end`."""
        words = (
            *(
                "run",
                self.far.hostfile(self.hosts, gpus=None, connection=self.wire),
                self.far.script(NUMBERS),
            ),
            # The home directory of ssh is that of the account, whatever HOME says.
            *(("-F", self.far.home / ".ssh/config") if self.wire == "openssh" else ()),
            *(f"--ps={ps}", f"--workers={workers}", f"--lease={lease_s}", *QUICK),
            *(f"--env=NUMBERS={lines} {rate} {code}", f"--env=MANNERS={manners}", f"--env=END={END}", *more),
        )
        self._lines = lines
        if detached:
            done = self.far.run(*words[:1], "--detach", *words[1:]).ran()
            [self.run_id] = re.findall(r"(\S+) goes on by itself", done.err)
            self.attach()
        else:
            self.running = self.far.start(*words)
            self.run_id = self.running.run_id
        self.detached = detached
        tasks = [*(f"ps/{n}" for n in range(ps)), *(f"worker/{n}" for n in range(workers))]
        for task in tasks:
            self.running.wait_for(f"{task} ")
        found = ((each.env.get("TFLAUNCH_TASK"), host) for host in self.hosts for each in host.processes())
        self.placement = {task: host for task, host in found if task}
        assert sorted(self.placement) == sorted(tasks)
        return self.running

    def attach(self) -> Running:
        """Watch the run, which is a detached one, from now on."""
        self.running = self.far.start("attach", self.run_id)
        return self.running

    @property
    def record(self) -> Path:
        """The launcher's directory of the run, on its own machine."""
        return self.bed.launcher.path(self.far.state / self.run_id)

    def directory(self, host: BedHost) -> Path:
        """The run's directory on a host."""
        [found] = host.disk.glob(f"tflaunch-*/{self.run_id}/{host.name}")
        return found

    # -- its processes, in the numbers of the test

    def task(self, name: str) -> Process:
        """The first process of a task."""
        marked = [each for each in self.placement[name].processes() if each.env.get("TFLAUNCH_TASK") == name]
        return min(marked, key=lambda each: each.pid)

    def agent(self, host: BedHost) -> tuple[Process, Process]:
        """The agent itself, and its guard."""
        about = json.loads((self.directory(host) / "agent.json").read_text())
        agent, guard = (Process(host.outside(about[key]), (), {}) for key in ("pid", "guard"))
        return agent, guard

    def started_by_sshd(self, host: BedHost) -> Process:
        """What holds the channel for the agent."""
        agent, guard = (each.pid for each in self.agent(host))
        agents = [each for each in host.processes() if each.is_agent and each.pid not in (agent, guard)]
        [started] = [each for each in agents if parents(each.pid) != agent]
        return started

    def coordinator(self) -> Process:
        """What decides for a detached run: on the host of worker/0, a child of the agent."""
        host = self.placement["worker/0"]
        agent, _ = self.agent(host)

        def find() -> list[Process]:
            children = [each for each in host.processes() if each.is_agent and parents(each.pid) == agent.pid]
            found = [each for each in children if not each.asks]
            return found if len(found) == 1 else []  # one that asks has its name a moment after its start

        [coordinator] = until(find, "a coordinator")
        return coordinator  # type: ignore[no-any-return]

    # -- what befalls it

    def now(self) -> None:
        """The fault happens in this moment."""
        self._at = time.monotonic()

    def after(self, what: str) -> None:
        """This has happened now."""
        if self._at is not None and what not in self.times:
            self.times[what] = round(time.monotonic() - self._at, 1)

    def wait_until_noticed(self, hosts: int = 1) -> None:
        """Until the launcher says that something is wrong with so many hosts."""
        until(lambda: len({*TROUBLE.findall(self.running.err)}) >= hosts, "a word of it")
        self.after("noticed")

    def wait_until_back(self, hosts: int = 1) -> None:
        """Until the launcher says that so many hosts are back."""
        until(lambda: len({*BACK.findall(self.running.err)}) >= hosts, "hosts that are back")
        self.after("back")

    def seen(self, task: str) -> int:
        """The last number of that task that was shown."""
        return max((int(n) for name, n in SHOWN.findall(self.running.out) if name == task), default=0)

    def wait_for_more(self, task: str, lines: int = 20) -> None:
        """Until its numbers have gone on, or all that may come have come: the run is well."""
        enough = min(self.seen(task) + lines, self._lines - 1)
        until(lambda: self.seen(task) >= enough, f"{task} to go on")
        self.after("goes on")

    def let_end(self) -> None:
        """Let the workers print their last line."""
        for host in self.hosts:
            (host.directory / END.strip("/")).touch()

    # -- what must hold

    def check(
        self,
        code: int | Collection[int] | None,
        *,
        all_lines: int = 0,
        gone: Collection[BedHost] = (),
        sockets_left_on: Collection[BedHost] = (),
        shown: bool = True,
        record: bool = True,
        logs: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Let the workers end, wait for the end of all and check all invariants.

        `code` None: the launcher was killed.  `all_lines`: what each worker has printed.  `gone`: hosts whose
        last lines cannot be asked of the launcher.  `sockets_left_on`: where nobody is left to remove them.
        `shown`: the launcher shows all that is there.  `record`: it records it, too.  `logs` False: the test looks
        at them itself.
        """
        self.let_end()
        self._wait_for_the_end(patience_s)
        if code is not None:
            allowed = {code} if isinstance(code, int) else {*code}
            assert self.running.process.returncode in allowed, self.story()
            assert "Traceback" not in self.running.err, self.story()
        if logs:
            self._check_logs(code is None, all_lines, gone, shown, record)
        for host in self.hosts:
            if host.pid:
                held = host.held_leases()
                assert held == [], f"{host.name} still leases {held}"
            if host not in sockets_left_on:
                left = sorted(host.disk.glob("tflaunch-*/*/*/agent.sock"))
                assert left == [], f"sockets left: {left}"
        # That a launcher was killed, or that the work was done, tells nothing of the fault.
        meaningless = ("ended",) if code is None else ("ended", "gone") if code == 0 else ()
        self.times = {key: value for key, value in self.times.items() if key not in meaningless}
        self._write_figures()

    def _wait_for_the_end(self, patience_s: float) -> None:
        """Of the launcher, and of all processes of the run, whichever is first."""
        deadline = time.monotonic() + patience_s
        ended = gone = False
        while not (ended and gone):
            assert time.monotonic() < deadline, (
                f"not over within {patience_s:g} s; alive: {[*map(str, self.far.leftovers())]}\n{self.story()}"
            )
            if not ended and self.running.process.poll() is not None:
                ended = True
                self.after("ended")
            if not gone and not self.far.leftovers():
                gone = True
                self.after("gone")
            time.sleep(0.2)  # looking at every process has its price

    def _check_logs(
        self, killed: bool, all_lines: int, gone: Collection[BedHost], shown: bool, whole_record: bool
    ) -> None:
        printed = self._shown()
        for task, host in self.placement.items():
            torn = killed or host in gone
            file = f"{task.replace('/', '-')}.log"
            truth = next(host.disk.glob(f"tflaunch-*/{self.run_id}/{host.name}/logs/{file}"), None)
            assert truth or host in gone, f"no log of {task} on {host.name}"
            written = count(task, truth) if truth else None
            if not self.detached:  # then nobody keeps a record
                record = self.record / "logs" / file
                recorded = count(task, record)
                if truth:
                    assert begins_with(truth, record), f"{task}: record and log on {host.name} differ"
                if truth and whole_record and not torn:
                    lost = truth.stat().st_size - record.stat().st_size
                    assert not lost, f"{task}: {lost} bytes are not recorded\n{self.story()}"
                if shown and whole_record and not killed:
                    assert printed[task] == recorded, f"{task}: {printed[task]} shown, {recorded} recorded"
            if written is not None:
                lost = written - printed[task]
                assert lost >= 0
                assert torn or not shown or not lost, f"{task}: {lost} lines are not shown\n{self.story()}"
            if all_lines and task.startswith("worker"):
                assert printed[task] == all_lines, f"{task}: {printed[task]} of {all_lines} lines"

    def _shown(self) -> dict[str, int]:
        """How many lines of each task were shown: from the first on, none missing, none twice."""
        counted = dict.fromkeys(self.placement, 0)
        with self.running.stdout.open("rb") as lines:
            for line in lines:
                task, _, text = line.partition(b"\xe2\x94\x82 ")  # the bar
                name = task.strip().decode()
                if (
                    name in counted
                    and text.startswith(name.encode() + b" ")
                    and text[len(name) + 1 :][:1].isdigit()
                ):
                    expected = b"%s %08d" % (name.encode(), counted[name] + 1)
                    whole = text.startswith(expected)
                    counted[name] += whole
                    torn = expected.startswith(text.rstrip(b"\n"))  # by a full disk
                    assert whole or torn, f"shown instead of {expected!r}: {line!r}"
        return counted

    def _write_figures(self) -> None:
        if path := os.environ.get(FIGURES):
            with Path(path).open("a") as file:
                file.write(json.dumps({"fault": self._name, **self.times}) + "\n")

    def story(self) -> str:
        """What the launcher said, without the numbers."""
        lines = [line for line in self.running.out.splitlines() if not SHOWN.match(line)]
        return "\n".join([f"exit code {self.running.process.poll()}", self.running.err, *lines])


def count(task: str, path: Path) -> int:
    """How many lines are in a log: from the first on, none missing, none twice, only the last perhaps not whole."""
    counted, strange = 0, []
    with path.open("rb") as lines:
        for line in lines:
            expected = b"%s %08d" % (task.encode(), counted + 1)
            if line.startswith(expected):  # also without its end: that is shown as a line, too
                counted += 1
            elif not expected.startswith(line[: len(expected)]) and not NOISE.match(line):
                strange.append((counted, line))
    assert not strange, f"{path}: after so many lines comes {strange[:3]}"
    return counted


def begins_with(whole: Path, part: Path) -> bool:
    """Whether a file begins with all that is in the other one."""
    with whole.open("rb") as one, part.open("rb") as other:
        while piece := other.read(1 << 20):
            if one.read(len(piece)) != piece:
                return False
    return True
