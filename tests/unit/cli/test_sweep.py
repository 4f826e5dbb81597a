"""Options of other verbs at `tflaunch sweep`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tflaunch.cli import application
from tflaunch.protocol.errors import EXIT_USAGE, UsageError


@pytest.mark.parametrize(
    ("option", "instead"), [("--restarts=3", "--retries N"), ("--only=worker/0", "logs NAME trial/7")]
)
def test_options_of_other_verbs_are_told_what_to_do_instead(option: str, instead: str) -> None:
    refused = CliRunner().invoke(application(), ["sweep", "h1,h2", option, "trainer.py"]).exception
    assert isinstance(refused, UsageError)
    assert instead in refused.hint
    assert "after --" not in refused.hint


def test_a_storage_whose_password_no_record_has_is_to_be_said_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "t.py").write_text("print('loss 1')\n")
    words = ["sweep", "h1", str(tmp_path / "t.py"), "--metric=a", "--random=x=0..1", "--trials=2"]
    refused = CliRunner().invoke(application(), [*words, "--sampler=tpe", "--storage=mysql://u:***@h/db"])
    assert refused.exit_code == EXIT_USAGE
    assert "--storage mysql://u:***@h/db: no record has its password" in refused.output
    assert "say it anew: --storage URL" in refused.output
