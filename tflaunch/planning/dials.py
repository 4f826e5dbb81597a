"""What the calls of a dial check say: which connections are blocked, and what to do; pure.

tflaunch.planning.dial_pattern says which calls there are.  Each host makes all of its calls at once, and they take no
longer than one does unless they are dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from tflaunch.hosts import fold
from tflaunch.planning.addresses import is_loopback
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol import dialling

TARGETS_SHOWN = 3
MARGIN_S = 15.0
SKIP = "--no-dial-check starts the tasks all the same"

_OPEN = (
    "open that port between the hosts, or name a range that is open by `ports:` in the hostfile; if they"
    " share another network, name it by `address:`"
)
NEXT_STEP = {
    dialling.REFUSED: _OPEN,
    dialling.SILENT: _OPEN,
    dialling.NO_ROUTE: "give addresses that the hosts reach each other by: `address:` in the hostfile",
    dialling.FORBIDDEN: "allow it to call that port, or name a range that is open by `ports:` in the hostfile",
    dialling.NO_NAME: "write an address that all hosts know: `address:` in the hostfile",
    dialling.STRANGER: "`address:` in the hostfile must lead to that very host, past proxies and port forwarding",
    dialling.NARROW: "give all hosts the MTU of the way between them: `ping -M do -s 1372 HOST` tries 1400,"
    " `ip link set dev eth0 mtu 1400` sets it; or let the router on the way clamp the MSS",
}
Result = float | tuple[str, str]  # milliseconds, or (verdict, detail)
PING_HEADERS = 28  # bytes of IPv4 and ICMP in a packet of ping


def narrow_step(size: int, address: str) -> str:
    """What to do where packets from `address` of more than `size` bytes are lost; 0: the size is not known."""
    if not size:
        return NEXT_STEP[dialling.NARROW]
    return (
        f"`ping -M do -s {size - PING_HEADERS} {address}` tries {size} bytes; give the hosts that MTU (`ip link set dev"
        f" eth0 mtu {size}`), or repair what loses larger packets: a tunnel, or a switch without jumbo frames"
    )


def needed(plan: ClusterPlan) -> bool:
    """Whether a connection may be blocked at all: not when all tasks are on this machine, over loopback."""
    return not all(is_loopback(task.address) for task in plan.tasks if task.port is not None)


def limit_s(targets: int) -> float:
    """Seconds that a host may take to call so many targets, name look-ups included; busy hosts answer late."""
    rounds = 1 + -(-targets // dialling.AT_ONCE)
    return rounds * dialling.ANSWER_SHARE * dialling.DIAL_S + MARGIN_S


def loads(host: str, wanted: Sequence[TaskPlan], before: Sequence[TaskPlan] = ()) -> list[int]:
    """Which of the calls of `host` bring a load: one to each other host, so every pair of hosts is tried both ways.

    `before` are its earlier calls, which have brought loads.
    """
    first: dict[str, int] = {}
    loaded = {host, *(task.host for task in before)}
    for number, task in enumerate(wanted):
        if task.host not in loaded:
            first.setdefault(task.host, number)
    return list(first.values())


def failed_ends(
    wanted: Mapping[str, Sequence[TaskPlan]],
    results: Mapping[str, Sequence[Result]],
    verdict: str = "",
) -> set[str]:
    """The hosts at both ends of the calls that were not answered, or of those with this verdict."""
    return {
        end
        for host, tasks in wanted.items()
        for task, result in zip(tasks, results[host], strict=True)
        if not isinstance(result, (int, float)) and result[0] == (verdict or result[0])
        for end in (host, task.host)
    }


def names_digests(found: Mapping[str, Iterable[str]], without: Collection[str]) -> dict[str, str]:
    """For each of these names, what an agent answers for all others, each with the addresses that it has `found`."""
    place = {name: number for number, name in enumerate(found)}
    lines = [f"{name} {' '.join(sorted(addresses))}\n" for name, addresses in found.items()]
    return {
        name: _digest(lines[: place[name]] + lines[place[name] + 1 :] if name in place else lines)
        for name in without
    }


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def share_words(share: float) -> str:
    """`3 % of the ways`; of all of them, nothing."""
    return "" if share >= 1 else f"{max(share * 100, 1):.0f} % of the ways between the hosts"


def to_wire(wanted: Iterable[TaskPlan]) -> list[list[object]]:
    """The `targets` of a `dial` message."""
    return [[task.address, task.port, task.host] for task in wanted]


def blocked(
    wanted: Mapping[str, Sequence[TaskPlan]],
    results: Mapping[str, Sequence[Result]],
    mtus: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], list[str]]:
    """Return ({host: what it cannot reach}, next steps for the user); both empty when every call was answered.

    `mtus` has the MTU of hosts: `1500 (eth0)`.
    """
    failures: dict[str, str] = {}
    steps: dict[str, None] = {}
    for host, tasks in wanted.items():
        by_verdict: dict[tuple[str, str], list[TaskPlan]] = {}
        for task, result in zip(tasks, results[host], strict=True):
            if not isinstance(result, (int, float)):
                verdict, detail = result
                by_verdict.setdefault((verdict, detail), []).append(task)
                if verdict == dialling.NARROW:
                    steps[narrow_step(dialling.arriving(detail), task.address)] = None
                elif verdict in NEXT_STEP:
                    steps[NEXT_STEP[verdict]] = None
        if by_verdict:
            failures[host] = "\n".join(
                f"cannot reach {_name(missed)}: {dialling.meaning(*result)}{_mtus(host, missed, result, mtus or {})}"
                for result, missed in by_verdict.items()
            )
    return failures, [*steps, SKIP] if failures else []


def _mtus(host: str, missed: Sequence[TaskPlan], result: tuple[str, str], mtus: Mapping[str, str]) -> str:
    """`; the MTU is 9000 (eth0) on gpu01 and 1500 (eth0) on gpu02`, where packets are lost for their size."""
    known = [
        f"{mtus[end]} on {end}"
        for end in dict.fromkeys([host, *(task.host for task in missed)])
        if end in mtus
    ]
    if result[0] != dialling.NARROW or not known or len(known) > TARGETS_SHOWN:
        return ""
    return f"; the MTU is {' and '.join(known)}"


def _name(tasks: Sequence[TaskPlan]) -> str:
    """`ps/0 at 10.0.0.1:2222`; of more than 3 tasks only the number, hosts and ports."""
    if len(tasks) <= TARGETS_SHOWN:
        ordered = sorted(tasks, key=lambda task: task.id)
        return ", ".join(f"{task.id} at {task.endpoint}" for task in ordered)
    hosts = fold(sorted({task.host for task in tasks}))
    ports = sorted({task.port for task in tasks if task.port is not None})
    span = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]}-{ports[-1]}"
    return f"{len(tasks)} tasks on {hosts} ({span})"
