"""Older versions of tflaunch, from the wheels in this directory."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.support.launcher import Launcher

OLD = "0.2.0"


def unpacked(directory: Path, version: str = OLD) -> Path:
    """Unpack the wheel of that version; returns what PYTHONPATH must hold."""
    with zipfile.ZipFile(Path(__file__).parent / f"tflaunch-{version}-py3-none-any.whl") as packed:
        packed.extractall(directory)
    return directory


class OldLauncher(Launcher):
    """The same user, with the same home, records and hostfiles, who types commands of an older version."""

    as_declared = False

    def __init__(self, newest: Launcher, place: Path) -> None:
        self.__dict__.update(vars(newest))  # also the list of what runs: either one ends it
        self._place = place

    def env(self, **more: str) -> dict[str, str]:
        return super().env(PYTHONPATH=str(self._place), **more)
