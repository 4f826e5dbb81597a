"""Packets between two tasks that are lost in the middle of a run.

    packets between worker/1 on host3 and ps/0 on host1 have been lost for 25 s: a new connection is silently dropped,
    too; `ping 10.0.0.1` on host3; look at the cable, the switch and the firewalls between them

The sign: a connection of a task has bytes in its send queue, and the kernel has sent the oldest of them again and again
(`lost_retransmits` times, each after twice the time), in `lost_looks` looks running, while nothing was acknowledged.  A
lossy, a slow or a far network does not show it: there, one of so many tries gets through.

Then both hosts dial the other's task once more, with load: that shows whether all is lost, or large packets only, or
only the old connection, which a firewall or NAT may have forgotten.  If both dials get through, the network may be
back, and the kernel's next try, which may be two minutes away, will show it: then the user hears only of a connection
that was tried again after the dials, in vain.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Tuple

from tflaunch.diagnosis.rule import Rule, Sentence, names_of
from tflaunch.protocol.dialling import DIAL_S, NARROW, REFUSED, SILENT, STRANGER, arriving, meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Place, Watched
    from tflaunch.protocol.outcome import TaskExit

ANSWER_S = 40.0  # a dial whose result has not come by then is not waited for
MEMORY_S = 120.0  # a task that fails so long after the loss may have failed for it
PING_HEADERS = 28  # bytes of IPv4 and ICMP in a packet of ping

_Key = Tuple[str, str, int, int]  # task, address and port of the other end, own port
_Pair = Tuple[str, str]  # two hosts


class _Flow(NamedTuple):
    """A connection of a task, as a look shows it (protocol/messages.py)."""

    address: str  # of its other end
    port: int
    own_port: int
    acked: int
    received: int
    queued: int
    retransmits: int
    rtt_ms: float


class _Stuck:
    """A connection without progress."""

    def __init__(self, since: float, flow: _Flow, now: float) -> None:
        self.since = since
        self.flow = flow
        self.at = now  # of the last look
        self.looks = 1


class _Way:
    """Two hosts between which packets are lost."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.ends: list[tuple[str, str]] = []  # of each connection: a task, and its peer or ""
        self.asked: float | None = None  # when the first of the last dials was asked for
        self.results: list[Any] = [None, None]  # of these dials, there and back
        self.dialled: float | None = None  # when their results were there
        self.retransmits: int | None = None  # how often was tried again, at the first look after these dials
        self.text = ""  # what was told
        self.ended: float | None = None  # when packets arrived again


class _Words:
    """Says which packets are lost, and what to try."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places

    def between(self, pair: _Pair, way: _Way) -> str:
        """`worker/1 on host3 and ps/0 on host1`."""
        words = []
        for host in pair:
            tasks = sorted(
                {task for end in way.ends for task in end if task and self._places[task].host == host}
            )
            words.append(f"{names_of(tasks)} on {host}" if tasks else host)
        return " and ".join(words)

    def tell(self, pair: _Pair, way: _Way, now: float) -> str:
        lost = f"packets between {self.between(pair, way)} have been lost for {now - way.since:.0f} s"
        there, back = way.results
        fails = [_fails(there), _fails(back)]
        if there is None and back is None:
            return f"{lost}; {self._step(*pair, [SILENT, ''])}"
        if not any(fails):
            return (
                f"{lost}, though a new connection works: a firewall or NAT between them may have forgotten the old one;"
                " raise its time limit for idle connections"
            )
        if all(fails):
            other = "" if list(there) == list(back) else f"; the other way, {_proof(back)}"
            return f"{lost}: {_proof(there)}{other}; {self._step(*pair, there)}"
        ends = pair if fails[0] else pair[::-1]
        bad, good = (there, back) if fails[0] else (back, there)
        works = f", one from {ends[1]} works" if good is not None else ""
        return f"{lost}: {_proof(bad, ends[0])}{works}; {self._step(*ends, bad)}"

    def _step(self, source: str, target: str, result: Sequence[str]) -> str:
        places = self._places.values()
        address = next((place.address for place in places if place.host == target), target)
        if result[0] == NARROW:
            size = arriving(result[1])
            ping = (
                f"`ping -M do -s {size - PING_HEADERS} {address}` on {source} tries {size} bytes; "
                if size
                else ""
            )
            return f"{ping}give both hosts the MTU of the way between them"
        return f"`ping {address}` on {source}; look at the cable, the switch and the firewalls between them"


class LostPackets(Rule):
    """Takes looks and results of dials, and tells between which hosts packets are lost."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._limits = watched.thresholds
        self._words = _Words(watched.places)
        self._tasks: dict[tuple[str, int], str] = {}  # endpoint -> task
        self._hosts: dict[str, str] = {}  # address -> host
        for task, place in watched.places.items():
            for address in (place.address, *watched.names.get(place.address, ())):
                self._hosts[address] = place.host
                if place.port is not None:
                    self._tasks[address, place.port] = task
        self._own_ports: dict[tuple[str, int], str] = {}  # (host, port of a connection there) -> task
        self._moved: dict[_Key, float] = {}  # when a connection was last seen without trouble
        self._stuck: dict[_Key, _Stuck] = {}
        self._ways: dict[_Pair, _Way] = {}  # no two are opposite
        self._asked: dict[str, list[tuple[_Pair, int]]] = {}  # host -> what it dials
        self._cpu_s: dict[str, tuple[float, float]] = {}  # task -> when, and the processor time so far
        self._idle: set[str] = set()  # tasks that did nothing between their last two looks
        self._hidden: set[str] = set()  # tasks whose connections their host does not show
        self._over: list[Sentence] = []
        self._past: list[tuple[_Pair, _Way]] = []  # the last that was told and is over
        self._ended: set[str] = set()

    # -- what happens

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        for task, look in fields["tasks"].items():
            if task not in self._watched.places or task in self._ended:
                continue
            at, before = self._cpu_s.get(task, (now, 0.0))
            if now > at and look["cpu_s"] - before < self._limits.idle_cores * (now - at):
                self._idle.add(task)
            else:
                self._idle.discard(task)
            self._cpu_s[task] = (now, look["cpu_s"])
            if look.get("flows") is None:
                self._hidden.add(task)
            else:
                self._hidden.discard(task)
                self._take(task, [_Flow(*flow) for flow in look["flows"]], now)

    def _take(self, task: str, flows: Sequence[_Flow], now: float) -> None:
        seen = set()
        for flow in flows:
            key = (task, flow.address, flow.port, flow.own_port)
            seen.add(key)
            self._own_ports[self._watched.places[task].host, flow.own_port] = task
            stuck = self._stuck.get(key)
            if stuck is not None and (flow.acked > stuck.flow.acked or not flow.queued):
                del self._stuck[key]
                pair = self._pair(key)
                if pair is not None and pair in self._ways:
                    self._end(pair, now)
                stuck = None
            if stuck is not None:
                stuck.looks, stuck.flow, stuck.at = stuck.looks + 1, flow, now
            elif flow.queued and flow.retransmits >= self._limits.lost_retransmits:
                self._stuck[key] = _Stuck(self._moved.get(key, now), flow, now)
            else:
                self._moved[key] = now
        self._drop(task, seen)  # what TensorFlow has given up

    def _drop(self, task: str, seen: AbstractSet[_Key] = frozenset()) -> None:
        for key in [each for each in [*self._moved, *self._stuck] if each[0] == task and each not in seen]:
            self._moved.pop(key, None)
            self._stuck.pop(key, None)

    def _end(self, pair: _Pair, now: float) -> None:
        """The packets of these hosts arrive again."""
        way = self._ways.pop(pair)
        if way.text:
            way.ended = now
            self._past = [(pair, way)]
            text = f"packets between {self._words.between(pair, way)} arrive again, after {now - way.since:.0f} s"
            self._over.append(Sentence(text, True))

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        if type != "dialled":
            return
        for (pair, end), result in zip(self._asked.pop(host, []), fields["results"]):  # noqa: B905  Python 3.8
            if pair in self._ways:
                self._ways[pair].results[end] = result

    def why_ended(self, exit: TaskExit, now: float) -> str:
        """The packets that are lost, or were lost until just now, of that task, or else of others in the run."""
        told = [(pair, way) for pair, way in self._ways.items() if way.text]
        for pair, way in [*told, *self._past]:
            ended = now if way.ended is None else way.ended
            if now - ended <= MEMORY_S:
                return self._why(
                    exit, self._words.between(pair, way), f"were lost for {ended - way.since:.0f} s"
                )
        for key, stuck in self._stuck.items():
            hosts = self._pair(key)
            if key[0] == str(exit.task) and hosts is not None:
                return self._why(
                    exit, " and ".join(hosts), f"were not acknowledged for {now - stuck.since:.0f} s"
                )
        return ""

    @staticmethod
    def _why(exit: TaskExit, between: str, lasts: str) -> str:
        return f"{exit.task} on {exit.host} may have failed for this: packets between {between} {lasts}"

    def exited(self, exit: TaskExit, now: float) -> None:
        self.lost(str(exit.task), now)

    def lost(self, task: str, now: float) -> None:
        self._ended.add(task)
        self._idle.discard(task)
        self._drop(task)
        for pair, way in list(self._ways.items()):
            if all(not self._ended.isdisjoint(end) for end in way.ends):
                del self._ways[pair]
                if way.text:
                    way.ended = now
                    self._past = [(pair, way)]

    def started(self, task: str, now: float) -> None:
        self._ended.discard(task)
        self._cpu_s.pop(task, None)

    # -- between which hosts

    def _pair(self, key: _Key) -> _Pair | None:
        """The two hosts of a connection, as `_ways` has them; None: it stays on one, or leads out of the run."""
        here, there = self._watched.places[key[0]].host, self._hosts.get(key[1])
        if there is None or there == here:
            return None
        return (there, here) if (there, here) in self._ways else (here, there)

    def _update(self, now: float) -> None:
        """Bring the ways up to date with the connections that are stuck, and with the dials."""
        found: set[_Pair] = set()
        for key, stuck in self._stuck.items():
            pair = self._pair(key)
            if pair is None or stuck.looks < self._limits.lost_looks:
                continue
            found.add(pair)
            way = self._ways.setdefault(pair, _Way(stuck.since))
            way.since = min(way.since, stuck.since)
            peer = self._tasks.get((key[1], key[2])) or self._own_ports.get((self._hosts[key[1]], key[2]), "")
            end = (key[0], peer)
            if end not in way.ends and end[::-1] not in way.ends:
                way.ends.append(end)
        for pair, way in list(self._ways.items()):
            self._settle(pair, way, now)
            if pair not in found and not way.text:
                del self._ways[pair]
            elif pair not in found and way.dialled is not None and not any(map(_fails, way.results)):
                self._end(pair, now)  # TensorFlow has given the connections up, and can make new ones

    def _settle(self, pair: _Pair, way: _Way, now: float) -> None:
        """Once the results of its dials are there, or late: from now on they count."""
        if way.asked is None or way.dialled is not None:
            return
        missing = [
            target
            for result, target in zip(way.results, pair[::-1])  # noqa: B905  Python 3.8
            if result is None and self._called(way, target)
        ]
        if not missing or (len(missing) == 1 and now - way.asked > ANSWER_S):
            way.dialled = now

    def _retries(self, pair: _Pair, since: float) -> int | None:
        """How often the connections of a way were tried again, as a look later than `since` shows it."""
        seen = [each for key, each in self._stuck.items() if self._pair(key) == pair and each.at > since]
        return max((each.flow.retransmits for each in seen), default=None)

    # -- dials

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """Dials with load, there and back."""
        self._update(now)
        calls: dict[str, list[tuple[_Pair, int, str]]] = {}
        for pair, way in self._ways.items():
            if way.asked is not None and now - way.asked < self._limits.dial_again_s:
                continue
            if any(self._busy(source) for source in pair):
                continue
            way.asked, way.dialled, way.results = now, None, [None, None]
            for end, (source, target) in enumerate((pair, pair[::-1])):
                task = self._called(way, target)
                if task:
                    calls.setdefault(source, []).append((pair, end, task))
        asked = []
        for host, wanted in calls.items():
            self._asked[host] = [(pair, end) for pair, end, _ in wanted]
            places = [self._watched.places[task] for _, _, task in wanted]
            targets = [[place.address, place.port, place.host] for place in places]
            asked.append((host, "dial", {"key": "", "targets": targets, "patience_s": DIAL_S, "load": True}))
        return asked

    def _busy(self, host: str) -> bool:
        """Whether that host still dials for a way that was asked for a short time ago."""
        waits = [self._ways[pair] for pair, _ in self._asked.get(host, []) if pair in self._ways]
        return any(way.dialled is None for way in waits)

    def _called(self, way: _Way, host: str) -> str:
        """The task on `host` to dial: one of those that the connections lead to, else any that lives; "": none."""
        for task in (*(task for end in way.ends for task in end if task), *self._watched.places):
            place = self._watched.places[task]
            if place.host == host and place.port is not None and task not in self._ended:
                return task
        return ""

    # -- in words

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        self._update(now)
        said, self._over = self._over, []
        for pair, way in self._ways.items():
            if way.text or way.dialled is None:
                continue
            if any(map(_fails, way.results)) or way.results == [None, None]:
                way.text = self._words.tell(pair, way, now)
            else:
                retries = self._retries(pair, way.dialled)
                if way.retransmits is None:
                    way.retransmits = retries
                elif retries is not None and retries > way.retransmits:
                    way.text = self._words.tell(pair, way, now)
            if way.text:
                said.append(Sentence(way.text, False))
        return said

    def explains(self, now: float) -> Iterable[str]:
        """The tasks at both ends, and those that do nothing meanwhile: they may wait for these."""
        told = [way for way in self._ways.values() if way.text]
        ends = {task for way in told for end in way.ends for task in end if task}
        return sorted(ends | self._idle) if told else []

    def holds(self) -> Iterable[str]:
        return [way.text for way in self._ways.values() if way.text]

    def blind(self) -> Iterable[str]:
        unknown = [
            place.host
            for place in self._watched.places.values()
            if place.address not in self._watched.names and not _is_ip_address(place.address)
        ]
        if unknown and len({place.host for place in self._watched.places.values()}) > 1:
            hosts = names_of(sorted(set(unknown)))
            yield (
                f"whether packets to {hosts} are lost: names stand for their addresses, and only the dial check "
                "looks names up"
            )
        if self._hidden:
            tasks = names_of(sorted(self._hidden))
            yield f"whether packets of {tasks} are lost: the kernel there does not show their connections"

    # -- another launcher, or the coordinator, goes on

    def memory(self) -> Any:
        told = {pair: way for pair, way in self._ways.items() if way.text}
        ways = [[*pair, way.since, [list(end) for end in way.ends], way.text] for pair, way in told.items()]
        return {"ways": ways, "ended": sorted(self._ended)}

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import OneOf, a_number, a_text, a_word, an_empty_text, check, of_the_run

        a_task = of_the_run("a task", self._watched.places)
        way = (a_word, a_word, a_number, [(a_task, OneOf(an_empty_text, a_task))], a_text)
        check({"ways": [way], "ended": [a_task]}, memory)
        for here, there, since, ends, text in memory["ways"]:
            told = self._ways[here, there] = _Way(since)
            told.ends, told.text = [(task, peer) for task, peer in ends], text
        self._ended = set(memory["ended"])


def _is_ip_address(address: str) -> bool:
    return ":" in address or address[-1:].isdigit()


def _fails(result: Any) -> bool:
    """Whether nobody has answered a dial, or its load got lost; a refusal shows that packets arrive."""
    return isinstance(result, (list, tuple)) and result[0] not in (STRANGER, REFUSED)


def _proof(result: Sequence[str], source: str = "") -> str:
    """`a new connection from host3 is silently dropped, too`."""
    new = f"a new connection from {source}" if source else "a new connection"
    if result[0] == SILENT:
        return f"{new} is silently dropped, too"
    if result[0] == NARROW:
        size = arriving(result[1])
        return (
            f"{new} opens, but {f'packets of more than {size} bytes' if size else 'large packets'} get lost"
        )
    return f"{new} fails, too: {meaning(*result)}"
