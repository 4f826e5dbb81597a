"""Options of other verbs at `tflaunch sweep`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tflaunch.cli import application
from tflaunch.protocol.errors import UsageError


@pytest.mark.parametrize(
    ("option", "instead"), [("--restarts=3", "--retries N"), ("--only=worker/0", "logs NAME trial/7")]
)
def test_options_of_other_verbs_are_told_what_to_do_instead(option: str, instead: str) -> None:
    refused = CliRunner().invoke(application(), ["sweep", "h1,h2", option, "trainer.py"]).exception
    assert isinstance(refused, UsageError)
    assert instead in refused.hint
    assert "after --" not in refused.hint
