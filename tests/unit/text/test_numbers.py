"""Numbers with their nouns and verbs."""

from __future__ import annotations

from tflaunch.text.numbers import agreeing, counted


def test_a_noun_goes_with_its_number() -> None:
    assert [counted(0, "host"), counted(1, "host"), counted(2, "host")] == ["0 hosts", "1 host", "2 hosts"]
    assert [counted(1, "process"), counted(2, "process"), counted(2, "ps")] == [
        "1 process",
        "2 processes",
        "2 ps",
    ]


def test_a_verb_goes_with_its_number() -> None:
    assert [agreeing(number, "waits", "wait") for number in (0, 1, 2)] == ["wait", "waits", "wait"]
