"""What is said to TensorFlow's profiler, read and written by the protobuf library from the same declarations."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tflaunch.protocol.errors import UsageError
from tflaunch.runs import profiling
from tflaunch.runs.profiler_messages import is_empty, profile_request, trace_in, troubles_in
from tflaunch.runs.profiling import MOST_TASKS, tasks_to_profile
from tflaunch.runs.run_states import RunState, TaskState
from tflaunch.text.extras import beside_tflaunch

NUMBER, FLAG, TEXT, BYTES, MESSAGE = 4, 8, 9, 12, 11  # types of FieldDescriptorProto
# message -> field -> (its number, type, whether it is repeated), as in TensorFlow 2.21
DECLARED: dict[str, dict[str, tuple[int, int, bool]]] = {
    "Options": {"host_tracer_level": (2, NUMBER, False), "duration_ms": (9, NUMBER, False)},
    "Request": {
        "duration_ms": (1, NUMBER, False),
        "opts": (4, MESSAGE, False),
        "repository_root": (5, TEXT, False),
        "session_id": (6, TEXT, False),
        "host_name": (7, TEXT, False),
        "emit_xspace": (9, FLAG, False),
    },
    "Response": {"tool_data": (6, BYTES, True), "empty_trace": (7, FLAG, False), "xspace": (8, BYTES, False)},
    "Space": {"planes": (1, BYTES, True), "errors": (2, TEXT, True), "warnings": (3, TEXT, True)},
}  # fmt: skip


@pytest.fixture(scope="module")
def kinds() -> Any:
    """The classes of these messages."""
    file = descriptor_pb2.FileDescriptorProto(name="profiler_here.proto", package="here", syntax="proto3")
    for name, fields in DECLARED.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, type=kind, label=3 if repeated else 1)
            if kind == MESSAGE:
                added.type_name = ".here.Options"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(
        **{
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"here.{name}"))
            for name in DECLARED
        }
    )


def test_the_request_says_what_is_wanted(kinds: Any) -> None:
    asked = kinds.Request.FromString(profile_request(2.5, "2026_11_28", "worker-0"))
    assert (asked.duration_ms, asked.opts.duration_ms, asked.opts.host_tracer_level) == (2500, 2500, 2)
    assert (asked.repository_root, asked.session_id, asked.host_name) == (
        "plugins/profile",
        "2026_11_28",
        "worker-0",
    )
    assert asked.emit_xspace


def test_the_answer_has_a_trace_or_says_that_there_is_none(kinds: Any) -> None:
    space = kinds.Space(
        planes=[b"p" * 300], errors=["CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"], warnings=["dropped"]
    )
    answer = kinds.Response(tool_data=[b"x" * 200], xspace=space.SerializeToString()).SerializeToString()
    trace = trace_in(answer)
    assert trace == space.SerializeToString()
    assert troubles_in(trace) == ["CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "dropped"]
    assert not is_empty(answer)
    written = kinds.Response().SerializeToString()
    assert trace_in(written) is None and not is_empty(written)
    assert is_empty(kinds.Response(empty_trace=True).SerializeToString())


@pytest.mark.parametrize("answer", [b"\x42\xff", b"\x42\x05abc", b"\xff" * 11, b"\x43", b"\x41\x00"])
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match="protocol buffer"):
        trace_in(answer)


def test_what_a_hostile_task_answers_costs_nothing(kinds: Any) -> None:
    number = b"\x40" + b"\xff" * 9 + b"\x01"  # the field of the trace, as a number of 64 bits
    assert trace_in(number) is None
    with pytest.raises(ValueError, match="more than 10000 fields"):
        trace_in(b"\x08\x01" * 10_001)
    told = troubles_in(kinds.Space(errors=["\x1b[2J" + "x" * 100_000] * 9).SerializeToString())
    assert len(told) == 3 and {len(each) for each in told} == {300}
    assert "\x1b" not in told[0]


def test_which_tasks_a_trace_is_taken_of() -> None:
    jobs = [("ps", 20), ("worker", 20), ("chief", 1)]
    tasks = [TaskState(f"{job}/{index}", "h", "running") for job, count in jobs for index in range(count)]
    run = RunState("mnist-4f2a9c", tasks=(*tasks, TaskState("worker/20", "h", "exited")))
    first = [task.task for task in tasks_to_profile(run, [])]
    assert first[:3] == ["chief/0", "ps/0", "worker/0"] and len(first) == MOST_TASKS
    assert [task.task for task in tasks_to_profile(run, ["ps/7", "worker/3", "ps/7"])] == ["ps/7", "worker/3"]
    with pytest.raises(UsageError, match="has no task worker/99"):
        tasks_to_profile(run, ["worker/99"])
    with pytest.raises(UsageError, match="worker/20 does not run"):
        tasks_to_profile(run, ["worker/20"])
    with pytest.raises(UsageError, match="no task of mnist-4f2a9c runs"):
        tasks_to_profile(RunState("mnist-4f2a9c"), [])


def test_without_grpc_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(UsageError) as refused:
        profiling._grpc()
    assert beside_tflaunch("grpcio", "profile") in refused.value.hint
