"""What each task has used so far, from the looks at it: counters, so that looks between two of them can be left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.paces import pressure_of
from tflaunch.diagnosis.signs import LOSS, loss_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Look = Mapping[str, Any]
    Tally = list[Any]

EVERY_S = 5.0  # the agents are asked as often
EARLY = 0.9  # of that time: a look may come a little before it is due

# A tally: the counters cpu_s, bytes sent, received, exchanged with tasks of the run, and of files; then quiet_s, step,
# loss, use (percent), power (watts) and bytes of its GPUs, where NVML has GPM what it tells (gpus/use.py), and what the
# task has done by now.  null: not known.
COUNTERS = 5
DID = ("printed", "listens", "peers")  # a bit each, the lowest first
# A host's: ms in which programs have waited for each of these, and of which only those in the agent's cgroup count: a
# bit each.  null: not known.
PRESSURES = ("cpu", "memory", "io")


class Tallies:
    """The tallies of the tasks of a run."""

    def __init__(
        self,
        ports: Mapping[str, int | None],
        gpus: Mapping[str, Sequence[str]],
        cluster: set[tuple[str, int]],
    ) -> None:
        """Of each task its port and its GPUs' UUIDs; `cluster` has address and port of all."""
        self._ports, self._gpus, self._cluster = ports, gpus, cluster
        self._flows: dict[str, Any] = {}  # task -> those of the last look that had some
        self._moved: dict[str, list[int]] = {}  # task -> bytes sent, received, among tasks of the run
        self._did: dict[str, int] = {}

    def of(self, task: str, look: Look, gpus: Mapping[str, Any]) -> Tally:
        """The tally of a task by its next look; `gpus` is that field of the same `looked` message."""
        flows = look.get("flows")
        moved = self._moved.setdefault(task, [0, 0, 0])
        if flows is not None:
            self._add(moved, flows, self._flows.get(task, ()), self._ports.get(task))
            self._flows[task] = flows
        did = (look["log_bytes"] > 0) + 2 * bool(look["listens"]) + 4 * (moved[2] > 0)
        self._did[task] = did = self._did.get(task, 0) | did
        counters = [look["cpu_s"], *(moved if flows is not None else [None] * 3), look.get("io")]
        told = [look["quiet_s"], look.get("step"), _loss(look)]
        return [*counters, *told, *self._of_gpus(task, gpus), did]

    def _add(self, moved: list[int], flows: Any, before: Any, port: int | None) -> None:
        old = {tuple(flow[:3]): flow for flow in before}
        for flow in flows:
            was = old.get(tuple(flow[:3]), (0, 0, 0, 0, 0))
            out, into = max(0, flow[3] - was[3]), max(0, flow[4] - was[4])
            moved[0] += out
            moved[1] += into
            if (flow[0], flow[1]) in self._cluster or (port is not None and flow[2] == port):
                moved[2] += out + into

    def _of_gpus(self, task: str, gpus: Mapping[str, Any]) -> list[float | None]:
        own = [gpus[uuid] for uuid in self._gpus.get(task, ()) if uuid in gpus]

        def known(name: str) -> list[Any]:
            return [each[name] for each in own if each.get(name) is not None]

        use, watts, memory = known("use"), known("power_w"), known("memory_bytes")
        of_gpm = [round(sum(part) / len(part), 1) for part in zip(*known("gpm"))]  # noqa: B905  Python 3.8
        return [
            round(sum(use) / len(use), 1) if use else None,
            sum(watts) if watts else None,
            sum(memory) if memory else None,
            *of_gpm,
        ]


def of_host(machine: Look) -> Tally | None:
    """The tally of a host by that field of a `looked` message; None where its kernel does not tell."""
    own, whole = machine.get("own_pressure", {}), machine.get("pressure", {})
    found = [pressure_of(own, whole, name) for name in PRESSURES]
    if not any(found):
        return None
    own_bits = sum(each.own << bit for bit, each in enumerate(found) if each)
    return [*(each and each.ms for each in found), own_bits]


def _loss(look: Look) -> float | None:
    """The last loss in its log; of that line a look for another host has the number alone (agent/tasks/look.py)."""
    try:
        line = look["signs"][LOSS][1]
        value = float(loss_in(line) or line)
    except (KeyError, ValueError):
        return None
    return value if value - value == 0 else None  # JSON has neither infinity nor NaN


def tallies_of(watched: Mapping[str, Any]) -> Tallies:
    """Of the tasks of a watchdog, by its `data`."""
    places = watched["places"].values()
    cluster = {
        (address, port)
        for _, named, port in places
        if port is not None
        for address in (named, *watched["names"].get(named, ()))
    }
    ports = {task: port for task, (_, _, port) in watched["places"].items()}
    return Tallies(ports, watched["settings"].get("gpus", {}), cluster)


class Spacing:
    """Leaves out tallies that follow the last one of their task, or host, sooner than `every_s`.

    Unless the task did something new.
    """

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._last: dict[str, tuple[float, int]] = {}

    def kept(self, at: float, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
        """Those that are kept; `at` is their time in seconds."""
        made = {}
        for task, tally in tallies.items():
            last = self._last.get(task)
            if last is None or at - last[0] >= self.every_s * EARLY or tally[-1] != last[1]:
                self._last[task] = at, tally[-1]
                made[task] = tally
        return made


def thinned(spacing: Spacing, lines: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    """[seconds, {task: tally}] of those lines, as far as that spacing keeps them."""
    for at, tallies in lines:
        if kept := spacing.kept(at, tallies):
            yield [at, kept]
