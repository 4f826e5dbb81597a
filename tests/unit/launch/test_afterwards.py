"""What the user is told once a run is over."""

from __future__ import annotations

from tflaunch.launch.afterwards import not_confirmed


def test_hosts_that_confirm_nothing_for_one_reason_are_told_together() -> None:
    assert not_confirmed({"gpu02": "it is slow", "gpu01": "it is slow", "storage": "it is gone"}) == [
        "gpu[01-02]: could not check that nothing is left: it is slow; the lease ends what is there",
        "storage: could not check that nothing is left: it is gone; the lease ends what is there",
    ]
