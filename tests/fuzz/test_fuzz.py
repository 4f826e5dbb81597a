"""Parsers stand what nobody would write: each ends soon, with a result or with an error that it documents."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.known import KNOWN, UNREADY
from tests.fuzz.targets import CASES, TARGETS, Target, cases, inputs, try_one

KEPT = [(target, path) for target in TARGETS for path in cases(target)]


def name(path: Path) -> str:
    return str(path.relative_to(CASES))


READY = [target for target in TARGETS if target.name not in UNREADY]


@pytest.mark.parametrize("target", READY, ids=lambda target: target.name)
def test_a_parser_stands_any_input(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/false")  # what `Match exec` would run

    @settings(max_examples=40, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs(target))
    def stands(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as directory:
            try_one(target, data, Path(directory))

    stands()


@pytest.mark.parametrize(("target", "path"), KEPT, ids=[name(path) for _, path in KEPT])
def test_a_parser_stands_what_was_once_found(
    target: Target, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/false")
    if name(path) in KNOWN:
        with pytest.raises(Exception):  # noqa: B017 - which, is what KNOWN says in words
            try_one(target, path.read_bytes(), tmp_path)
    else:
        try_one(target, path.read_bytes(), tmp_path)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_seeds_of_a_target_are_of_its_language(target: Target, tmp_path: Path) -> None:
    for number, seed in enumerate(target.seeds):
        directory = tmp_path / str(number)
        directory.mkdir()
        try_one(target, seed.encode(), directory)


def test_what_is_known_to_be_wrong_is_kept_as_a_case() -> None:
    assert set(KNOWN) <= {name(path) for _, path in KEPT}
