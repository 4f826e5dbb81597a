"""What comes from a host, checked: each field of each message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.pipes import EXIT
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.requests import Requests
from tflaunch.protocol import messages, wire
from tflaunch.protocol.messages import FROM_AGENT, FROM_PEER, TO_AGENT, TO_VISIT


def fault(type: str, fields: dict[str, Any], table: Any = FROM_AGENT) -> str:
    """What is wrong with that message, or ""."""
    try:
        messages.check(wire.Message(type, fields), table)
    except wire.WireError as error:
        return str(error)
    return ""


def documented() -> Iterator[tuple[str, str]]:
    """(section, type) of each message that the table of `tflaunch.protocol.wire` names."""
    section = ""
    for line in (wire.__doc__ or "").splitlines():
        if match := re.match(r"    (launcher -> agent|agent -> launcher|events, each|visit \()", line):
            section = match[1]
        elif section and (match := re.match(r"    ([a-z_]+(?:, [a-z]+)*) +(?:\{|such)", line)):
            for name in match[1].split(", "):
                yield section, name


def test_each_message_that_the_wire_documents_has_its_fields_in_a_table() -> None:
    found = list(documented())
    assert len(found) > 60
    for section, type in found:
        if type in ("agent", "lacks"):  # the loader's own
            continue
        tables = {
            "launcher -> agent": [TO_AGENT],
            "agent -> launcher": [FROM_AGENT],
            "events, each": [FROM_AGENT],
            "visit (": [TO_VISIT, FROM_AGENT],
        }[section]
        assert any(type in table for table in tables), (section, type)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("task", "worker", "task is not a task: 'worker'"),
        ("task", "../../etc/0", "task is not a task"),
        ("task", "worker/٣", "task is not a task"),
        ("attempt", True, "attempt is not an attempt: True"),
        ("attempt", -1, "attempt is not an attempt: -1"),
        ("attempt", 0.0, "attempt is not an attempt"),
        ("code", 256, "code is not an exit code: 256"),
        ("code", None, "all of it is not an exit with either a code or a signal"),
        ("signal", 9, "all of it is not an exit with either a code or a signal"),
        ("signal_name", "x" * 2000, "signal_name is not a word"),
        ("seconds", float("nan"), "seconds is not a number: nan"),
        ("seconds", float("inf"), "seconds is not a number: inf"),
        ("seconds", 10**400, "seconds is not a number: a number of 1329 bits"),
        ("stopped", 0, "stopped is not a flag: 0"),
        ("n", 0, "n is not an event number: 0"),
        ("n", [1] * 1000, "n is not an event number: a list of 1000"),
    ],
)
def test_a_field_of_another_type_or_out_of_its_range_is_named(field: str, value: Any, told: str) -> None:
    assert fault("exit", dict(EXIT)) == ""
    assert f"in a message of the type exit, {told}" in fault("exit", {**EXIT, field: value})


def test_a_field_that_is_missing_is_named_and_one_that_nobody_knows_is_dropped() -> None:
    left = {name: value for name, value in EXIT.items() if name != "seconds"}
    assert fault("exit", left) == "in a message of the type exit, seconds is missing"
    message = wire.Message("exit", {**EXIT, "__class__": "x"})
    assert messages.check(message, FROM_AGENT).fields == EXIT


def test_the_words_of_a_command_line_may_be_as_long_as_linux_lets_them_be() -> None:
    request = {"id": "worker/0", "argv": ["x" * (128 * 1024 - 1)], "env": {}, "cwd": None, "setup": []}
    fields = {"tasks": [request], "attempt": 0, "code": None, "ports": [], "gpus": [], "door": False}
    messages.check(wire.Message("stage", fields), messages.TO_AGENT)
    request["argv"] = ["x" * 150_000]
    with pytest.raises(wire.WireError, match=r"argv\.0 is not an argument: 'x+' \(150000 characters\)"):
        messages.check(wire.Message("stage", fields), messages.TO_AGENT)


def test_what_is_wrong_deep_inside_has_its_path() -> None:
    gpu = {
        "index": 0,
        "uuid": "GPU-1",
        "name": "",
        "memory_total_bytes": 1,
        "memory_used_bytes": 1,
        "error": "",
    }
    facts: dict[str, Any] = {
        "hostname": "gpu01",
        "boot_id": "",
        "addresses": ["10.0.0.1", "fe80::1"],
        "python": "3.11.7",
        "cores": 2,
        "load": 0.5,
        "memory_bytes": 1,
        "memory_available_bytes": 1,
        "disk_free_bytes": 1,
        "ports": [20000],
        "gpus": [gpu, {**gpu, "mig": [{**gpu, "error": "x", "index": -1}]}],
        "driver": "",
        "cuda": "",
        "gpu_note": "",
        "lacks": "",
        "queue": [],
        "queue_error": "",
        "clock": 1.0,
        "proxies": [],
    }
    assert (
        fault("facts", facts)
        == "in a message of the type facts, gpus.1.mig.0.index is not a whole number: -1"
    )
    facts["gpus"][1]["mig"][0]["index"] = 1
    assert fault("facts", facts) == ""
    assert "error" not in facts["gpus"][1]["mig"][0]  # which a MIG instance does not have
    assert "addresses.1 is not an address" in fault(
        "facts", {**facts, "addresses": ["10.0.0.1", "$(reboot)"]}
    )


@pytest.mark.parametrize("name", ["antigravity", "os", "tflaunch.sessions.payload", "../../x", None, 1])
def test_a_host_cannot_name_the_module_that_it_is_sent(name: Any) -> None:
    spec = FROM_AGENT["facts"]["lacks"]
    assert messages.misfit(spec, name, "lacks")
    assert not messages.misfit(spec, "pynvml", "lacks")


def test_messages_of_the_other_direction_and_unknown_ones_are_refused() -> None:
    assert "a message of the type 'stage' is not expected here" in fault("stage", {})
    assert "is not expected here" in fault("\x1b[31m", {})
    assert "\x1b" not in fault("\x1b[31m", {})


def test_an_agent_on_another_host_cannot_start_programs_nor_read_what_tasks_wrote() -> None:
    for type in (
        "add",
        "stage",
        "module",
        "prepare",
        "find",
        "read",
        "tensorboard",
        "memory",
        "coordinate",
        "entrust",
    ):
        assert "is not expected here" in fault(type, {}, FROM_PEER)
    watch = {"after": 0, "logs": {"worker/0": [0, 0]}, "window": 1 << 20, "client": "coordinator"}
    assert "logs is not nothing" in fault("watch", dict(watch), FROM_PEER)
    assert fault("watch", {**watch, "logs": None}, FROM_PEER) == ""


def test_an_agent_passes_on_the_outcome_of_its_own_launcher_unread_but_that_of_no_other_host() -> None:
    odd = {
        "outcome": {"status": "succeeded", "exit_code": 0, "seconds": 1.0, "exits": ["of a later version"]}
    }
    assert fault("outcome", dict(odd), TO_AGENT) == ""
    assert "exits.0 is not an object" in fault("outcome", dict(odd), FROM_PEER)
    for outcome in ({}, {"exit_code": 256}, []):
        assert "outcome is not" in fault("outcome", {"outcome": outcome}, TO_AGENT)


def test_json_of_python_cannot_bring_what_json_does_not_have() -> None:
    head = json.dumps({**EXIT, "seconds": float("nan"), "type": "exit"}).encode()
    (message,) = wire.Decoder().feed(len(head).to_bytes(4, "big") + bytes(4) + head)
    assert "seconds is not a number" in fault(message.type, message.fields)


def test_every_message_to_an_agent_has_its_handler(tmp_path: Path) -> None:
    life = dict.fromkeys(("renew", "end", "bye"))
    directory = RunDirectory(str(tmp_path), "run", "h1")
    viewers = SimpleNamespace(all=[])
    requests = Requests(directory, None, None, None, viewers, life=life)  # type: ignore[arg-type]
    assert requests._handlers.keys() == TO_AGENT.keys()
