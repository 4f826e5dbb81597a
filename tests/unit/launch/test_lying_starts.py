"""A host that lies while code is shipped and tasks are made ready: that ends, and names the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.attached import Watcher
from tests.support.code import grow
from tflaunch.code import shipping
from tflaunch.code.bundle import bundle
from tflaunch.launch.starting import Code, Starter
from tflaunch.protocol import messages, wire
from tflaunch.protocol.errors import Breach, ConnectError, LaunchError
from tflaunch.sessions.early_answers import EarlyAnswers
from tflaunch.sessions.session import Damaged

ROUNDS = 20  # a defect ends the test instead of the machine


class Sessions:
    """Those of hosts that answer each message of a type in the same way."""

    def __init__(self, answers: Mapping[str, wire.Message | ConnectError]) -> None:
        self.answers = answers
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.by_host = {"gpu01": SimpleNamespace(upload=list)}
        self.early = EarlyAnswers()

    def send(self, hosts: Collection[str], type: str, _body: bytes = b"", **_: Any) -> None:
        self.asked.extend(hosts)
        self.sent.append(type)
        assert len(self.sent) < ROUNDS

    def gather(self, wanted: str, hosts: Collection[str], *_: Any, **__: Any) -> Any:
        said = self.answers[wanted]
        told = dict.fromkeys(hosts, said)
        return ({}, told) if isinstance(said, ConnectError) else (told, {})


def code(**fields: Any) -> wire.Message:
    return messages.check(wire.Message("code", fields), messages.FROM_AGENT)


@pytest.mark.parametrize("place", [0, 1, 3, 99])
def test_a_directory_or_a_link_is_nothing_that_a_host_can_lack(tmp_path: Path, place: int) -> None:
    grow(tmp_path, {"pkg/a.py": "x = 1\n"})
    (tmp_path / "pkg/z.py").symlink_to("a.py")
    (tmp_path / "link").symlink_to("pkg")
    packed = bundle(tmp_path)
    assert [entry[1] for entry in packed.entries] == ["l", "d", "f", "l"]
    sessions: Any = Sessions({"code": code(have=False, lacks=[place])})
    _, failures = shipping.ship(sessions, packed, ["gpu01"], 1.0)
    assert isinstance(failures["gpu01"], Breach)
    honest: Any = Sessions({"code": code(have=False, lacks=[2])})
    shipped, failures = shipping.ship(honest, packed, ["gpu01"], 1.0)
    assert (shipped.sent["gpu01"], shipped.whole, failures) == ((1, len("x = 1\n")), True, {})


def test_only_hosts_that_have_said_that_they_keep_the_code_are_not_asked_again(tmp_path: Path) -> None:
    packed = bundle(grow(tmp_path, {"a.py": "x = 1\n"}))
    sessions: Any = Sessions({"code": code(have=True, lacks=[])})
    sessions.early.expect("code")
    sessions.early.keep("gpu01", code(have=True, lacks=[]))
    sessions.early.keep("gpu02", code(have=False, lacks=[99]))
    shipped, failures = shipping.ship(sessions, packed, ["gpu01", "gpu02", "gpu03"], 1.0)
    assert (sessions.asked, failures) == (["gpu02", "gpu03"], {})
    assert shipped.sent == {"gpu01": (0, 0), "gpu02": (0, 0), "gpu03": (0, 0)}
    shipping.ship(sessions, packed, ["gpu01"], 1.0)
    assert sessions.asked[2:] == ["gpu01"], "a second time, as after damage, all are asked"


@pytest.mark.parametrize("ships", [True, False])
def test_a_host_whose_code_is_damaged_again_and_again_is_repaired_once(
    monkeypatch: pytest.MonkeyPatch, ships: bool
) -> None:
    def refuse(failures: Mapping[str, ConnectError]) -> None:
        if failures:
            raise LaunchError({name: error.message for name, error in failures.items()})

    sessions, shipped = Sessions({"staged": Damaged("the code is damaged")}), list[Collection[str]]()
    cluster: Any = SimpleNamespace(sessions=sessions, watcher=Watcher(), refuse=refuse)
    starter = Starter(cluster)

    def ship(_sessions: Any, _bundle: Any, hosts: Collection[str], _timeout_s: float) -> Any:
        shipped.append(list(hosts))
        return None, {}

    monkeypatch.setattr(shipping, "ship", ship)
    if ships:
        made: Any = None
        starter.ship(made, ["gpu01"], 1.0)
    with pytest.raises(LaunchError, match="the code is damaged"):
        starter.stage_none({"gpu01": []}, {"gpu01": Code().digest}, 1.0, {})
    assert shipped == [["gpu01"], ["gpu01"]] * ships
    assert sessions.sent == ["stage"] * (1 + ships)
