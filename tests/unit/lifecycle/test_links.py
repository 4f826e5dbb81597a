"""Links that do not come up."""

from __future__ import annotations

from tflaunch.lifecycle import links
from tflaunch.lifecycle.links import Links


class Transport:
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.kernel_answers = False

    def dial(self, host: str) -> None:  # noqa: ARG002 - there is only one
        self.did.append("dial")

    def hang_up(self, host: str) -> None:  # noqa: ARG002
        self.did.append("hang up")

    def answers(self, host: str) -> bool:  # noqa: ARG002
        return self.kernel_answers

    def watch(self, host: str, after: int) -> None:  # noqa: ARG002
        self.did.append(f"watch {after}")

    def unreachable(self, host: str, reason: str) -> None:  # noqa: ARG002
        self.did.append(reason)

    def back(self, host: str, away_s: float) -> None:  # noqa: ARG002
        self.did.append("back")


def test_a_dial_that_is_never_answered_is_made_anew() -> None:
    transport = Transport()
    link = Links(["gpu01"], transport, 0.0)
    link.ended("gpu01", "cut", 0.0)
    for second in range(int(links.ANSWER_S) + 1):
        link.tick(1.0 + second)
    assert transport.did == ["cut", "dial"]
    link.tick(1.1 + links.ANSWER_S)
    assert transport.did[2:] == ["hang up"]
    link.tick(2.0 + links.ANSWER_S)
    assert transport.did[3:] == ["dial"]
    link.attached("gpu01", 3.0 + links.ANSWER_S)
    assert transport.did[4:] == ["watch 0", "back"]


def silent(link: Links, since: float, seconds: float) -> float:
    """Let so much time pass in which nothing comes; returns the time then."""
    now = since
    while now < since + seconds:
        now += 1.0
        link.tick(now)
    return now


def test_a_silent_host_whose_kernel_answers_is_out_of_reach_and_not_dialled() -> None:
    transport = Transport()
    transport.kernel_answers = True
    link = Links(["gpu01"], transport, 0.0)
    now = silent(link, 0.0, links.SILENCE_S + 10.0)
    assert transport.did == [f"no sign of life for {links.SILENCE_S:g} s"] and link.down
    assert link.away_s("gpu01", now) == now
    assert link.heard("gpu01", now)
    assert transport.did[1:] == ["back"] and link.up == ["gpu01"]
    assert not link.heard("gpu01", now + 1.0)
    link.tick(now + 2.0)
    assert len(transport.did) == 2


def test_a_host_that_stays_deaf_is_dialled_anew_in_the_end() -> None:
    transport = Transport()
    transport.kernel_answers = True
    link = Links(["gpu01"], transport, 0.0)
    silent(link, 0.0, links.SILENCE_S + links.DEAF_S + 2.0)
    assert transport.did[1:] == ["hang up", "dial"]
    link.attached("gpu01", 60.0)
    assert transport.did[3:] == ["watch 0", "back"]


def test_a_deaf_host_whose_kernel_answers_no_more_is_dialled_at_once() -> None:
    transport = Transport()
    transport.kernel_answers = True
    link = Links(["gpu01"], transport, 0.0)
    now = silent(link, 0.0, links.SILENCE_S + 2.0)
    transport.kernel_answers = False
    link.tick(now + 1.0)
    assert transport.did[1:] == ["hang up", "dial"]


def test_a_host_that_says_a_word_now_and_then_is_never_lost() -> None:
    transport = Transport()
    transport.kernel_answers = True
    link = Links(["gpu01"], transport, 0.0)
    now = longest = 0.0
    for _ in range(40):
        now = silent(link, now, 12.0)
        longest = max(longest, link.away_s("gpu01", now))
        link.heard("gpu01", now)
    assert longest == 12.0
    assert not any("broke" in each for each in transport.did)
    assert {*transport.did} == {f"no sign of life for {links.SILENCE_S:g} s", "back"}


def test_a_deaf_host_is_not_dialled_because_the_launcher_slept() -> None:
    transport = Transport()
    transport.kernel_answers = True
    link = Links(["gpu01"], transport, 0.0)
    now = silent(link, 0.0, links.SILENCE_S + 2.0)
    link.tick(now + 3600.0)
    assert len(transport.did) == 1
    assert link.heard("gpu01", now + 3600.5) and link.up


def test_a_deaf_host_whose_connection_ends_is_dialled_soon_and_one_that_is_given_up_is_hung_up_on() -> None:
    transport = Transport()
    transport.kernel_answers = True
    link = Links(["gpu01"], transport, 0.0)
    now = silent(link, 0.0, links.SILENCE_S + 1.0)
    link.ended("gpu01", "cut", now)
    silent(link, now, 2.0)
    assert transport.did[1:] == ["dial"]
    link = Links(["gpu01"], transport, 0.0)
    silent(link, 0.0, links.SILENCE_S + 1.0)
    link.forget("gpu01")
    assert transport.did[-1] == "hang up"


def test_a_connection_that_ended_while_nobody_was_awake_is_lost_since_just_now() -> None:
    transport = Transport()
    each = Links(["a"], transport, 0.0)
    for second in range(5):
        each.heard("a", float(second))
        each.tick(float(second))
    each.ended("a", "its server had enough of it", 3604.0)
    each.tick(3604.0)
    assert each.away_s("a", 3604.0) < 1.0
    each.tick(3606.0)
    assert transport.did[-1] == "dial", "and it is dialled again"
    assert 2.0 <= each.away_s("a", 3606.0) < 3.0


def test_what_was_taken_is_known_also_of_hosts_that_are_done() -> None:
    link = Links(["gpu01", "gpu02"], Transport(), 0.0)
    assert link.takes("gpu01", 1)
    assert link.takes("gpu02", 1)
    assert link.takes("gpu02", 2)
    link.forget("gpu02")
    other = Links(["gpu01", "gpu02"], Transport(), 0.0)
    other.resume(link.after)
    assert other.after == {"gpu01": 1, "gpu02": 2}
    assert not other.takes("gpu02", 2)


def test_a_host_that_has_not_answered_yet_is_named_and_waited_for() -> None:
    transport = Transport()
    link = Links(["gpu01"], transport, 0.0)
    link.awaited("gpu01", "no answer yet", 0.0)
    assert (link.up, link.down) == ([], {"gpu01": "no answer yet"})
    for second in range(int(links.ANSWER_S) + 1):
        link.tick(float(second))
    assert transport.did == ["no answer yet"], "it is not dialled once more"
    link.tick(1.0 + links.ANSWER_S)
    assert transport.did[1:] == ["hang up"]
    link.attached("gpu01", 1.1 + links.ANSWER_S)
    assert transport.did[2:] == ["watch 0", "back"]
