"""Who is told how a run has ended: all who watch it, but not the one who has said it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tflaunch.agent.detached import Detached
from tflaunch.agent.host.journal import Journal
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.viewer import Viewer
from tflaunch.protocol import wire


def viewer(events_sent: int) -> Viewer:
    made = Viewer(cast("Any", SimpleNamespace()))
    made.events_sent = events_sent
    return made


def told(viewer: Viewer, journal: Journal) -> list[str]:
    """The events that it gets now."""
    viewer.send_events(journal, {})
    messages = wire.Decoder().feed(bytes(viewer.out))
    viewer.out.clear()
    return [message.type for message in messages]


def begun(place: Path) -> tuple[Detached, Journal]:
    """A run's, of which one event is told."""
    directory = RunDirectory(str(place / "runs"), "run-abcdef", "h1")
    directory.create()
    journal = Journal(directory)
    journal.add("swept", killed=[])
    nothing = cast("Any", None)
    return Detached(directory, journal, nothing, nothing, holdings=nothing, team=nothing), journal


def test_who_says_the_outcome_does_not_get_it_back(tmp_path: Path) -> None:
    detached, journal = begun(tmp_path)
    launcher, behind, other = viewer(1), viewer(0), viewer(1)

    detached.outcome(launcher, wire.Message("outcome", {"outcome": {"exit_code": 0}}))
    assert told(launcher, journal) == []
    assert told(other, journal) == ["outcome"]
    assert told(behind, journal) == ["swept", "outcome"]
    journal.add("said", text="more")
    assert told(launcher, journal) == ["said"]


def test_who_has_missed_events_gets_all_of_them(tmp_path: Path) -> None:
    detached, journal = begun(tmp_path)
    launcher = viewer(0)
    detached.outcome(launcher, wire.Message("outcome", {"outcome": {"exit_code": 0}}))
    assert told(launcher, journal) == ["swept", "outcome"]
