"""Faults at random: each schedule follows from its seed, and its outcome from a rule.

    TFLAUNCH_SCHEDULES=100 .venv/bin/python -m pytest -n 2 tests/faults/test_schedules.py
    TFLAUNCH_SEED=17 TFLAUNCH_SCHEDULES=1 .venv/bin/python -m pytest tests/faults/test_schedules.py

A run with nothing but disturbances succeeds with every line.  One with a mortal fault ends with the code of one of
its mortal faults: which of several is seen first depends on how long each takes to be noticed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.faults import FULL, Trial
from tests.support.bed import BedHost

SCHEDULES = int(os.environ.get("TFLAUNCH_SCHEDULES", "100" if FULL else "6"))
SEED = int(os.environ.get("TFLAUNCH_SEED", "1"))
LEASE_S = 12
LINES = 1000  # at 100 a second: longer than the last fault takes
LONGEST_S = 5.0

Undo = Callable[[], None] | None
Act = Callable[[Trial, BedHost, random.Random], Undo]


@dataclass(frozen=True)
class Fault:
    """Something that befalls the run, by way of a host; `act` returns how it is made good again."""

    name: str
    act: Act
    code: int | None = None  # how the run ends by it; None: it goes on
    host_gone: bool = False  # nobody is left there who could send the last lines, or remove a socket
    agent_gone: bool = False


def cut(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    trial.bed.cut(host)
    return lambda: trial.bed.heal(host)


def cut_one_way(trial: Trial, host: BedHost, choice: random.Random) -> Undo:
    pair = (host, trial.bed.launcher)
    trial.bed.cut_one_way(*(pair if choice.random() < 0.5 else pair[::-1]))
    return lambda: trial.bed.heal(host)


def reset(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    host.reset_connections()
    return None


def kill_sessions(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    host.kill_sessions()
    return None


def kill_sshd(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    host.kill_sshd(sessions=True)

    def start() -> None:
        if host.pid and not host.listener:
            host.start_sshd()

    return start


def freeze(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    host.freeze()
    return host.thaw


def delay(trial: Trial, host: BedHost, choice: random.Random) -> Undo:
    trial.bed.delay(host, choice.uniform(10, 150), loss_percent=choice.uniform(0, 1))
    return None


def forget_names(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    for machine in (trial.bed.launcher, *trial.hosts):
        machine.forget_names()
    return trial.bed.name_all


def stop_launcher(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    trial.running.signal(signal.SIGSTOP)
    return lambda: trial.running.signal(signal.SIGCONT)


def kill_task(trial: Trial, host: BedHost, choice: random.Random) -> Undo:
    trial.task(choice.choice([task for task, where in trial.placement.items() if where is host])).kill()
    return None


def kill_agent(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    trial.agent(host)[0].kill()
    return None


def reboot(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    trial.bed.reboot(host)
    return None


def power_off(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    trial.bed.power_off(host)
    return None


def interrupt(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    trial.running.interrupt()
    return None


def kill_launcher(trial: Trial, host: BedHost, _: random.Random) -> Undo:
    trial.running.signal(signal.SIGKILL)
    return None


DISTURBANCES = (
    Fault("cut", cut),
    Fault("cut one way", cut_one_way),
    Fault("reset", reset),
    Fault("sessions killed", kill_sessions),
    Fault("sshd killed", kill_sshd),
    Fault("frozen", freeze),
    Fault("delayed", delay),
    Fault("names forgotten", forget_names),
    Fault("launcher stopped", stop_launcher),
)
INTERRUPT = Fault("Ctrl-C", interrupt, 130)
MORTAL = (
    Fault("task killed", kill_task, 137),
    Fault("agent killed", kill_agent, 76, agent_gone=True),
    Fault("rebooted", reboot, 76, host_gone=True),
    Fault("powered off", power_off, 76, host_gone=True),
    INTERRUPT,
    Fault("launcher killed", kill_launcher, -signal.SIGKILL),
)


@dataclass(frozen=True)
class Planned:
    """A fault, when it happens, for how long (if that is a question), and where."""

    at_s: float
    fault: Fault
    for_s: float
    host: int

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: host{self.host + 1} {self.fault.name} ({self.for_s:.1f} s)"


@dataclass(frozen=True)
class Schedule:
    """What happens in one run."""

    hosts: int
    workers: int
    code: int  # how its workers end, if they are let
    planned: tuple[Planned, ...]

    @classmethod
    def of(cls, choice: random.Random) -> Schedule:
        """Two to four hosts, one to three faults, half of the runs with a mortal one among them."""
        hosts = choice.randint(2, 4)
        kinds = [choice.choice(DISTURBANCES) for _ in range(choice.randint(1, 3))]
        if choice.random() < 0.5:
            kinds[choice.randrange(len(kinds))] = choice.choice(MORTAL)
        planned = [
            Planned(choice.uniform(0, 4), kind, choice.uniform(0.3, LONGEST_S), choice.randrange(hosts))
            for kind in kinds
        ]
        code = choice.choice([0, 0, 0, 5])
        return cls(
            hosts, choice.randint(hosts - 1, hosts), code, tuple(sorted(planned, key=lambda p: p.at_s))
        )

    @property
    def is_mortal(self) -> bool:
        return any(planned.fault.code is not None for planned in self.planned)

    def __str__(self) -> str:
        return f"{self.hosts} hosts, {self.workers} workers, code {self.code}; " + "; ".join(
            map(str, self.planned)
        )


def carry_out(schedule: Schedule, trial: Trial, choice: random.Random) -> list[Planned]:
    """Let it all happen, and make good what can be; returns what did happen before the run was over."""
    happened, undo = [], []
    started = time.monotonic()
    moments = sorted({planned.at_s for planned in schedule.planned})
    while moments or undo:
        due = min([*moments, *(at for at, _ in undo)])
        time.sleep(max(0.0, started + due - time.monotonic()))
        for planned in schedule.planned:
            host = trial.hosts[planned.host]
            if planned.at_s == due and host.pid and trial.running.process.poll() is None:
                how = planned.fault.act(trial, host, choice)
                happened.append(planned)
                if how is not None:
                    undo.append((due + planned.for_s, how))
        for moment, how in list(undo):
            if moment <= due:
                how()
                undo.remove((moment, how))
        moments = [moment for moment in moments if moment > due]
    return happened


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEDULES))
@pytest.mark.fault(
    "100 schedules of one to three faults at random, on two to four hosts",
    "what the rows above say of each",
    "what the rows above say of each",
)
def test_schedule(trial: Trial, seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311 - no secret hangs on it
    schedule = Schedule.of(choice)
    print(f"seed {seed}: {schedule}")
    trial.up(schedule.hosts)
    trial.start(
        lines=100_000 if schedule.is_mortal else LINES,
        code=schedule.code,
        workers=schedule.workers,
        lease_s=LEASE_S,
    )
    happened = carry_out(schedule, trial, choice)
    codes = {planned.fault.code for planned in happened} - {None}
    if schedule.is_mortal and not codes:  # its host was off before: nobody else would end this run
        trial.running.interrupt()
        codes = {INTERRUPT.code}
    gone = {trial.hosts[each.host] for each in happened if each.fault.host_gone or each.fault.agent_gone}
    if codes:  # nobody waits for a host that is out of reach when the run has to end
        gone |= {trial.hosts[each.host] for each in happened if each.fault.code is None}
    killed = trial.running.process.poll() == -signal.SIGKILL or codes == {-signal.SIGKILL}
    trial.check(
        None if killed else {code for code in codes if code is not None} or schedule.code,
        all_lines=0 if codes or schedule.code else LINES,
        gone=gone,
        sockets_left_on=[trial.hosts[each.host] for each in happened if each.fault.host_gone],
    )
