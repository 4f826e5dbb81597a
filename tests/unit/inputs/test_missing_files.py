"""A file that an option names and that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.inputs.env_file import read
from tflaunch.inputs.missing_files import no_such_file
from tflaunch.planning import environments
from tflaunch.protocol.errors import UsageError


def test_files_of_similar_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("prod.env", "requirements.txt", "sub/lab.env"):
        (tmp_path / name).write_text("A=1\\n")
    for option, path, meant in (
        ("--env-file", "prd.env", "did you mean prod.env?"),
        ("--requirements", "requirement.txt", "did you mean requirements.txt?"),
        ("--env-file", "sub/lab.evn", "did you mean sub/lab.env?"),
        ("--env-file", "nothing-like-it", ""),
    ):
        error = no_such_file(option, Path(path))
        assert error.message == f"{option} {path}: there is no such file in {(tmp_path / path).parent}"
        assert (error.hint or "") == meant
    assert no_such_file("-F", Path("no/x")).message == f"-F no/x: there is no directory {tmp_path / 'no'}"


def test_options_say_it_alike(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--env-file .*/x.env: there is no such file in "):
        read([tmp_path / "x.env"])
    with pytest.raises(UsageError, match=r"^--requirements .*/x.txt: there is no such file in "):
        environments.read(tmp_path / "x.txt", False)
