"""What hosts were asked with their first message."""

from __future__ import annotations

import time

from tests.support.pipes import sessions
from tflaunch.protocol import wire


def test_an_answer_that_is_expected_waits_for_who_wants_it() -> None:
    made, pipe = sessions()
    made.early.expect("code")
    pipe.feed(wire.encode("code", have=False, lacks=None) + wire.encode("code", have=True, lacks=[]))
    pipe.feed(wire.encode("staged"))
    replies, failures = made.gather("staged", ["gpu01"], 60.0)
    assert (list(replies), failures) == (["gpu01"], {})
    assert made.early.take("code")["gpu01"]["have"], "the last one"
    pipe.feed(wire.encode("code", have=True, lacks=[]))
    assert list(made.gather("code", ["gpu01"], 60.0)[0]) == ["gpu01"]
    assert made.early.take("code") == {}
    assert made.next(time.monotonic()) is None
