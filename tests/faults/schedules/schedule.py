"""A schedule: data, a line of text that can be cut shorter by hand, and what follows from a seed.

detached on 3 hosts: start+0.4 agent-hung host2; run+1.2 cut host1 for 3.1; run+2.0 stop
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tests.faults.schedules.faults import FAULTS, Fault

KINDS = {
    "run": 4,
    "openssh": 2,  # a run over the system's ssh
    "detached": 5,  # run --detach; attach watches it
    "sweep": 3,
    "up": 1,
}  # what is run -> how often, beside the others
START_S = 2.5  # the start of a run takes about so long
RUN_S = 3.0  # faults in the run happen within so long
LONGEST_S = 3.5  # two of them, one after the other, are over before the lease is
_LINE = re.compile(r"(\w+) on (\d) hosts?: (.*)")
_PART = re.compile(r"(start|run)\+([\d.]+) ([a-z-]+)(?: host(\d))?(?: for ([\d.]+))?")


@dataclass(frozen=True)
class Planned:
    """A fault, and when it happens: so many seconds after the start, or after the tasks have started."""

    phase: str  # start, run
    at_s: float
    name: str
    host: int = 0  # counted from 1; 0: it befalls no single host
    for_s: float | None = None  # None: nobody makes it good

    @property
    def fault(self) -> Fault:
        return FAULTS[self.name]

    def __str__(self) -> str:
        where = f" host{self.host}" if self.host else ""
        return f"{self.phase}+{self.at_s:.1f} {self.name}{where}" + (
            f" for {self.for_s:.1f}" if self.for_s is not None else ""
        )


@dataclass(frozen=True)
class Schedule:
    """What is run on how many hosts, and what befalls it."""

    kind: str
    hosts: int
    planned: tuple[Planned, ...]

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that a line says; raises AssertionError where it says none."""
        line = _LINE.fullmatch(text.strip())
        assert line and line[1] in KINDS, f"no schedule: {text}"
        planned = []
        for part in filter(None, (part.strip() for part in line[3].split(";"))):
            found = _PART.fullmatch(part)
            assert found and found[3] in FAULTS, f"no fault: {part}"
            phase, at, name, host, seconds = found.groups()
            planned.append(
                Planned(phase, float(at), name, int(host or 0), None if seconds is None else float(seconds))
            )
        assert all(each.host <= int(line[2]) for each in planned), f"too few hosts: {text}"
        return cls(line[1], int(line[2]), tuple(planned))

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """One to three faults; a third of the schedules have one before the tasks run."""
        choice = random.Random(seed)  # noqa: S311 - no secret hangs on it
        [kind] = choice.choices([*KINDS], [*KINDS.values()])
        hosts = choice.randint(2, 3)
        names = [name for name, fault in FAULTS.items() if kind in fault.kinds]
        planned = []
        for _ in range(choice.randint(1, 3)):
            [name] = choice.choices(names, [FAULTS[each].often for each in names])
            fault = FAULTS[name]
            early = not fault.needs_run and choice.random() < 0.35
            at_s = choice.uniform(0, START_S if early else RUN_S)
            host = choice.randint(1, hosts) if fault.on_host else 0
            for_s = choice.uniform(0.3, LONGEST_S) if fault.undone(choice.random()) else None
            planned.append(Planned("start" if early else "run", at_s, name, host, for_s))
        return cls.parse(
            str(cls(kind, hosts, tuple(sorted(planned, key=lambda each: (-ord(each.phase[0]), each.at_s)))))
        )

    def __str__(self) -> str:
        return f"{self.kind} on {self.hosts} hosts: " + "; ".join(map(str, self.planned))

    @property
    def command(self) -> str:
        """The command that plays exactly this."""
        return f"TFLAUNCH_SCHEDULE='{self}' .venv/bin/python -m pytest -n 0 tests/faults/test_schedules.py"
