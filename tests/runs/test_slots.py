"""An older launcher and a run in slots that an engine takes back; tests/engines has all else of slots.

The older one knows no engine, so the record must lead it to the slots by a connection that it knows: `local`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slots import SAVES, Held
from tests.support.slotted import Slots, take_back
from tests.support.versions import OldLauncher, unpacked


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Slots]:
    user = Slots(tmp_path, tmp_path / "places")
    yield user
    user.close()


def words(user: Slots, slots: list[Held], *options: str) -> list[str | Path]:
    """Of `run`, of a ps and two workers that save."""
    hosts, script = user.hostfile_of(slots), user.script(SAVES)
    return [*options, hosts, script, "--ps=1", "--workers=2", "--lease=60"]


def test_an_older_launcher_attaches_to_a_run_whose_slot_is_taken_back(user: Slots, tmp_path: Path) -> None:
    slots = user.take(2)
    user.run("run", *words(user, slots, "--detach")).ran()
    viewer = OldLauncher(user, unpacked(tmp_path / "old")).start("attach")
    viewer.wait_for("trains in attempt 0 []", 3)
    take_back(slots[0])
    done = viewer.done().ran(75)
    assert "the engine ends this slot (SIGTERM)" in done.sentences
    assert "breaks the protocol" not in done.sentences
    assert done.out.count("saved") == 3
