"""What a coordinator leaves to the next one: all of it comes back, and nothing that does not fit is taken over."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tflaunch.diagnosis.hangs import Hang, Hangs
from tflaunch.lifecycle.driver import Driver
from tflaunch.lifecycle.memory import memory_of, remembered
from tflaunch.lifecycle.states import Restarts, State, state_data, state_from
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import EndedByRule, GpuLeft, HostLost, Reclaimed, TaskExit, TimedOut

W0, W1, PS = TaskId("worker", 0), TaskId("worker", 1), TaskId("ps", 0)
PLACES = {"worker/0": ("a", "10.0.0.1", 1), "worker/1": ("b", "10.0.0.2", 2), "ps/0": ("c", "10.0.0.3", 3)}
BEGUN = State({W0: "a", W1: "b", PS: "c"}, restarts=Restarts(3), drains_s={"worker": 60.0})
FAILED = TaskExit(
    W1, "b", None, 9, 1.5, signal_name="SIGKILL", attempt=2, log_bytes=7, facts={"oom_kills": 1}
)
# Every field that changes, with something in it.
RICH = State(
    **{
        **vars(BEGUN),
        "phase": "draining",
        "runs_on_until": 70.5,
        "attempts": {W0: 0, W1: 2},
        "waiting": frozenset({W0}),
        "restarted": ((12.5, W1), (13.0, None)),
        "exits": {W1: FAILED, W0: TaskExit(W0, "a", 0, None, 3.0, stopped=True)},
        "first_failure": FAILED,
        "work_done": True,
        "longest_grace_expired_s": 3.0,
        "interrupts": (2, 15),
        "lost": {"c": "no sign of life\x1b[2J\udcff"},
        "swept": {"a": ("pid 7 python (D)",)},
        "gpus": {"a": (GpuLeft("GPU 0 is still in use", True),)},
    }
)


class Transport:
    """Nobody looks at what is done."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def drive() -> tuple[Driver[State], Watchdog]:
    """One that has just begun."""
    watchdog = Watchdog(PLACES, {}, {"stall_s": 60.0}, {})
    watchdog.begin(1000.0)
    return Driver(state_from(state_data(BEGUN)), Transport(), 60.0, 1000.0, monitor=watchdog), watchdog


def lived() -> tuple[Driver[State], Watchdog]:
    """One to which much has happened."""
    one, watchdog = drive()
    one.said("b", "started", {"n": 1, "task": "worker/1", "attempt": 0, "pid": 1}, b"", 1001.0)
    look = {
        "listens": True,
        "connected": [["10.0.0.2", 2]],
        "calling": [["10.0.0.3", 3]],
        "processes": [[1, "python3", "S"]],
        "waits_in": "",
        "cpu_s": 1.0,
        "quiet_s": 1.0,
        "log_bytes": 10,
        "says": "still waiting for response from worker: /job:ps/replica:0/task:0",
    }
    for now in (1002.0, 1007.0):
        one.said("a", "looked", {"tasks": {"worker/0": look}}, b"", now)
    exit = {"code": 3, "signal": None, "signal_name": "", "seconds": 1.0, "stopped": False}
    one.said("b", "exit", {"n": 2, "task": "worker/1", "attempt": 0, **exit}, b"", 1008.0)
    one.order("b", "stop", "stop", tasks=["worker/1"], grace_s=10.0)
    one.order("b", "restart worker/1", "restart", tasks={"worker/1": 1})
    one.order("b", "signal", "signal", tasks={"worker/1": 0})
    one.order("a", "end", "end", grace_s=1.0, stacks=True)
    hangs = watchdog.rules["hangs"]
    assert isinstance(hangs, Hangs)
    hangs._reported[Hang("mute", "worker/0", "ps/0", "")] = "worker/0 waits for ps/0"
    return one, watchdog


def memory(of: tuple[Driver[State], Watchdog]) -> dict[str, Any]:
    """As it comes through the agent's socket."""
    return dict(json.loads(json.dumps({"drive": of[0].memory(), "watchdog": of[1].memory()})))


@pytest.mark.parametrize(
    "first",
    [
        *(FAILED, HostLost("b", "gone"), TimedOut("too long (--timeout)", (W0, PS), ("state S", "")), None),
        EndedByRule("no GPU (--require-gpu)", (W0,), 65),
        Reclaimed("PREEMPTED", "b"),
    ],
)
def test_a_state_comes_back_as_it_was(first: Any) -> None:
    rich = State(**{**vars(RICH), "first_failure": first})
    assert remembered(BEGUN, json.loads(json.dumps(memory_of(rich)))) == rich


def test_every_field_of_a_state_is_either_what_it_began_with_or_remembered() -> None:
    assert vars(RICH).keys() == state_data(BEGUN).keys() | memory_of(RICH).keys()


def test_the_end_of_a_log_is_not_kept() -> None:
    rich = State(**{**vars(RICH), "first_failure": TaskExit(W1, "b", 1, None, 1.0, tail=b"x" * 65536)})
    assert len(json.dumps(memory_of(rich))) < 2000


def test_a_drive_and_who_looks_on_come_back_as_they_were() -> None:
    before = memory(lived())
    assert set(before["drive"]["timers"]) == {"restart worker/1"}
    one, watchdog = drive()
    one.resume(copy.deepcopy(before["drive"]))
    watchdog.resume(copy.deepcopy(before["watchdog"]))
    assert memory((one, watchdog)) == before
    hangs = watchdog.rules["hangs"]
    assert isinstance(hangs, Hangs)
    waits = hangs._tasks["worker/0"]
    assert waits.calls == {"ps/0": (1002.0, 1007.0)}
    assert waits.said == ("ps/0", 1002.0)


STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    float("nan"),
    1e308,
    2**70,
    "",
    "../x",
    "worker/7",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"a": {}},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything that is in it."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with something else in that place."""
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = changed(value[path[0]], path[1:], new)
    return value


def test_whatever_stands_in_any_place_it_is_taken_over_whole_or_not_at_all() -> None:
    whole = json.loads(json.dumps(memory_of(RICH)))
    states = [("state", path) for path in places(whole)]
    other = memory(lived())
    tried = refused = 0
    for part, path in [*states, *(("drive", path) for path in places(other["drive"]))]:
        for new in STRANGE:
            tried += 1
            try:
                if part == "state":
                    after = remembered(BEGUN, changed(whole, path, new))
                    check_sound(after)
                else:
                    one, _ = drive()
                    before = (one.state, one._timers, one._orders, one.links.after)
                    try:
                        one.resume(copy.deepcopy(changed(other["drive"], path, new)))
                    except ValueError:
                        assert (one.state, one._timers, one._orders, one.links.after) == before
                        raise
                    check_sound(one.state)
                    one.tick(1e6)  # every timer
            except ValueError:
                refused += 1
    for path in places(other["watchdog"]):
        for new in STRANGE:
            tried += 1
            _, watchdog = drive()
            try:
                watchdog.resume(copy.deepcopy(changed(other["watchdog"], path, new)))
            except ValueError:
                refused += 1
                continue
            watchdog.sentences(1010.0)
            watchdog.next_event(1010.0)
    assert refused > tried / 2


def check_sound(state: State) -> None:
    """All that it speaks of is of the run."""
    hosts = set(state.hosts.values())
    for named in (state.lost, state.swept, state.gpus):
        assert named.keys() <= hosts
    for tasks in (state.attempts, state.exits, state.waiting):
        assert set(tasks) <= state.hosts.keys()
    for task, exit in state.exits.items():
        assert (exit.task, exit.host) == (task, state.hosts[task])
        assert isinstance(exit.exit_code, int)
    assert isinstance(state.exit_code(clean=True), int)


@pytest.mark.parametrize("lacking", ["phase", "attempts", "exits", "first_failure", "interrupts", "gpus"])
def test_what_lacks_a_field_is_none(lacking: str) -> None:
    data: Mapping[str, Any] = memory_of(RICH)
    with pytest.raises(ValueError, match=lacking):
        remembered(BEGUN, {name: value for name, value in data.items() if name != lacking})


@pytest.mark.parametrize(
    "exit",
    [
        {"task": "worker/1", "host": "a"},  # which it does not run on
        {"code": 0, "signal": 9},
        {"code": None, "signal": None},
    ],
)
def test_an_end_that_cannot_be_is_none(exit: dict[str, Any]) -> None:
    data = json.loads(json.dumps(memory_of(RICH)))
    data["exits"] = [{**data["exits"][0], **exit}]
    with pytest.raises(ValueError, match="is not an exit of that task"):
        remembered(BEGUN, data)
