"""How many GPUs of its host one user may hold: the agent reads it in root's file, and keeps to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Host, failure
from tests.support.leases import another, look
from tflaunch.agent.gpus import limit
from tflaunch.agent.host.rundir import HostError


def test_a_run_keeps_no_more_than_the_limit_beside_the_users_other_runs(gpus: Host, tmp_path: Path) -> None:
    """Whatever its launcher asks for: another run may have got its GPUs meanwhile."""
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "config.toml").write_text("max_gpus_per_user_per_host = 1\n")
    gpus.env["TFLAUNCH_ETC"] = str(etc)
    first, second = another(gpus, "first"), another(gpus, "second")
    facts = look(first, lease=["GPU-a"])
    assert (facts.gpus_held, facts.gpu_limit) == (0, 1)
    first.send("keep", gpus=["GPU-a"])
    look(first)  # so it has kept it

    facts = look(second, lease=["GPU-b"])
    assert (facts.gpus_held, facts.gpu_limit) == (1, 1)
    second.send("keep", gpus=["GPU-b"])
    reason, hint = failure(second)
    assert reason == (
        "this run takes 1 of this host's GPUs, and your other runs hold 1: a user may hold 1 in all "
        f"({etc}/config.toml)"
    )
    assert "--wait" in hint


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", None),
        ("max_gpus_per_user_per_host = 4 # each\n", 4),
        ('"max_gpus_per_user_per_host"=0', 0),
        ('# above the banner\nmax_gpus_per_user_per_host = 4\nbanner = """\n[run]"""\n', 4),
        ('banner = """\nit is 4\n"""\n[run]\ngrace = 1\n', None),
    ],
)
def test_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, most: int | None
) -> None:
    monkeypatch.setattr(limit, "PATH", str(tmp_path / "config.toml"))
    assert limit.most() is None
    (tmp_path / "config.toml").write_text(text)
    assert limit.most() == most


@pytest.mark.parametrize("value", ["-1", "1_000", '"4"', "4.0", "", "9999999", "\u0664"])
def test_what_is_not_clear_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(limit, "PATH", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(f"max_gpus_per_user_per_host = {value}\n")
    with pytest.raises(HostError) as raised:
        limit.most()
    assert "config.toml:1: max_gpus_per_user_per_host is no whole number" in raised.value.reason


@pytest.mark.parametrize(
    ("above", "line"), [("[run]\n", 2), ('banner = """\n"""\n', 3), ('a = \'"""\'\n', 2), ('"""\n[run]\n', 3)]
)
def test_where_readers_might_differ_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str, line: int
) -> None:
    monkeypatch.setattr(limit, "PATH", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(f"{above}max_gpus_per_user_per_host = 4\n")
    with pytest.raises(HostError) as raised:
        limit.most()
    assert f"config.toml:{line}: max_gpus_per_user_per_host stands below" in raised.value.reason
    assert raised.value.hint == "root may move it to the top of the file"
