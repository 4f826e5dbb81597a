"""The models of GPUs that this machine has seen: what is kept of them, and what a host may not do to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tflaunch.survey.known_models import known_models, remember_models


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tflaunch" / "gpu-models.json"


def test_models_are_known_from_then_on_those_seen_last_first(kept: Path) -> None:
    assert known_models() == []
    remember_models(["NVIDIA V100", "NVIDIA A100", "NVIDIA A100", ""])
    remember_models(iter(["NVIDIA H100"]))
    assert known_models() == ["NVIDIA H100", "NVIDIA A100", "NVIDIA V100"]
    assert [each.name for each in kept.parent.iterdir()] == [kept.name]


def test_what_is_known_already_is_not_written_again(kept: Path) -> None:
    remember_models(["NVIDIA V100", "NVIDIA A100"])
    before = kept.stat().st_ino
    remember_models(["NVIDIA A100", "NVIDIA V100"])
    assert kept.stat().st_ino == before
    remember_models([])
    assert kept.stat().st_ino == before


def test_a_host_that_lies_cannot_fill_it_nor_write_escapes(kept: Path) -> None:
    remember_models([f"\x1b[31m{'x' * 10_000}{number}\nx" for number in range(1000)])
    remember_models(f"GPU {number}" for number in range(1000))
    assert len(known_models()) == 64
    assert kept.stat().st_size < 10_000
    remember_models(["\x1b]0;title\x07\n" + "y" * 1000])
    first = known_models()[0]
    assert len(first) <= 100
    assert first.isprintable()


@pytest.mark.parametrize("text", ["", "{", "{}", '[1, null, "A100"]', "[" * 100_000, "\xff"])
def test_a_file_that_is_broken_is_as_good_as_none(kept: Path, text: str) -> None:
    kept.parent.mkdir()
    kept.write_text(text, "latin-1")
    assert known_models() == (["A100"] if "A100" in text else [])
    remember_models(["NVIDIA H100"])
    assert json.loads(kept.read_text())[0] == "NVIDIA H100"


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember_models(["NVIDIA H100"])
    assert known_models() == []
