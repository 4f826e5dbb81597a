"""Fixtures of the tests of what people write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hostfiles import Write


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes `hosts.yaml` in a fresh current directory and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        Path("hosts.yaml").write_text(text)
        return "hosts.yaml"

    return write
