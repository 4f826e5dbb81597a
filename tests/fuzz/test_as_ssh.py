"""ssh_config means to tflaunch what it means to `ssh`: some hundred generated ones, more by TFLAUNCH_CONFIGS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.as_ssh import disagreement, generated, keywords_unlike, prepare

COUNT = int(os.environ.get("TFLAUNCH_CONFIGS", "300"))


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "")  # put back at the end, as is
    monkeypatch.setenv("NOPE", "")
    prepare()


@pytest.mark.parametrize("part", range(10))
def test_a_configuration_means_what_it_means_to_ssh(part: int, tmp_path: Path) -> None:
    wrong = [each for seed in range(part, COUNT, 10) if (each := disagreement(generated(seed), tmp_path))]
    assert not wrong, f"{len(wrong)} of {COUNT // 10} differ, the first: {wrong[0]}"


def test_every_keyword_of_the_table_is_one_of_ssh(tmp_path: Path) -> None:
    assert keywords_unlike(tmp_path) == []
