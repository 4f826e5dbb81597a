"""The GPU rules hear whatever a host may say in the right types, and never fail; their memory always fits."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol import messages
from tflaunch.protocol.wire import Message

TASKS = ("worker/0", "worker/1")  # of another the driver takes no message
NUMBERS = st.sampled_from([-1e15 + 1, -1.0, 0.0, 0.3, 1.0, 90.0, 99.9, 1e15 - 1])
WHOLE = st.sampled_from([0, 1, 3, 99, 100, 4711, 2**63 - 1])
TIMES = st.sampled_from([0.0, 1.0, 400.0, 1e15 - 1])
TEXT = st.sampled_from(
    ["", "nan", "\udcff\x1b[2J", "E0000 0:0 ² c.cc:1] x", "E0000 0:0 4711 c.cc:1] cuInit", "x" * 9000]
)
GPU = st.fixed_dictionaries(
    {
        **dict.fromkeys(("power_w", "limit_w"), st.none() | NUMBERS),
        "use": st.none() | WHOLE,
        "memory_bytes": WHOLE,
        "pids": st.none() | st.lists(WHOLE, max_size=3),
        "error": st.sampled_from(["", "NVML: GPU is lost"]),
    },
    optional={
        "energy_j": st.none() | WHOLE,
        "lanes": st.none() | st.lists(WHOLE, min_size=2, max_size=2),
        "heat_ms": st.none() | WHOLE,
        "pcie": st.none() | st.lists(WHOLE, min_size=2, max_size=2),
        "nvlinks": st.none() | st.lists(WHOLE, max_size=3),
        "gpm": st.none() | st.lists(TIMES, min_size=3, max_size=3),
    },
)
SIGNS = st.dictionaries(
    st.sampled_from(["nan", "loss", "no_gpu", "no_library", "gpu_seen", "other"]),
    st.tuples(WHOLE, TEXT, TIMES).map(list),
)
LOOK = st.fixed_dictionaries(
    {
        "listens": st.none() | st.booleans(),
        "connected": st.none() | st.just([]),
        "calling": st.just([]),
        "processes": st.lists(
            st.tuples(WHOLE, TEXT.map(lambda text: text[:99]), st.sampled_from("SDT")).map(list), max_size=3
        ),
        "waits_in": st.just(""),
        **dict.fromkeys(("cpu_s", "quiet_s"), NUMBERS),
        "log_bytes": WHOLE,
        "says": TEXT,
    },
    optional={
        "signs": SIGNS,
        "masks": st.lists(st.tuples(WHOLE, TEXT).map(list), max_size=2),
        "flows": st.none()
        | st.lists(st.tuples(st.just("10.0.0.1"), *[WHOLE] * 6, TIMES).map(list), max_size=3),
    },
)
LOOKED = st.fixed_dictionaries(
    {"tasks": st.dictionaries(st.sampled_from(TASKS), LOOK)},
    optional={
        "gpus": st.dictionaries(st.sampled_from(["GPU-a", "GPU-b", "GPU-other"]), GPU),
        "gpus_age_s": TIMES,
        "xids": st.lists(
            st.tuples(st.sampled_from(["GPU-a", "GPU-other"]), WHOLE, WHOLE, TIMES).map(list), max_size=2
        ),
        "fabrics": st.none() | st.lists(WHOLE, min_size=2, max_size=2),
    },
)


def begun() -> Watchdog:
    places = {"worker/0": ("a", "10.0.0.1", 1), "worker/1": ("b", "10.0.0.2", 2)}
    told: dict[str, Any] = {"gpus": {"worker/0": ["GPU-a"], "worker/1": ["GPU-b"]}, "require_gpu": True}
    watchdog = Watchdog(places, {}, {}, {**told, "stop_on_nan": True})
    watchdog.begin(1000.0)
    return watchdog


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), LOOKED, st.sampled_from([0.1, 5.0, 30.0, 400.0])), max_size=12)
)
def test_whatever_a_host_says(said: list[tuple[str, dict[str, Any], float]]) -> None:
    watchdog, now = begun(), 1000.0
    for host, fields, seconds in said:
        now += seconds
        messages.check(Message("looked", fields), messages.FROM_AGENT)
        watchdog.said(host, "looked", fields, now)
        watchdog.questions(["a", "b"], now)
        watchdog.sentences(now)
        watchdog.next_event(now)
        assert all(isinstance(text, str) for texts in watchdog.holds() for text in texts)
        begun().resume(json.loads(json.dumps(watchdog.memory())))
