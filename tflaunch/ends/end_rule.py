"""A rule about ends of tasks, and the facts that rules may ask for."""

from __future__ import annotations

from typing import NamedTuple

# Where a line counts.
FINAL = "final"  # only in what the task said last: its last exception, or its last lines
STACK = "stack"  # in the calls of its last traceback, where no rule knows its exception
ANYWHERE = "anywhere"  # also further up, where no rule knows what the task said last
AFTERMATH = "aftermath"  # in what it said last, where nothing else is known: it follows from another error

# Pieces of patterns: what may be quoted from a log is bounded, and has no spaces and no quotes.
NAME = r"\w{1,80}"
MODULE = r"\w{1,80}(?:\.\w{1,80}){0,8}"
# A path is looked for where a word begins, so that a log cannot make the search take long.
PATH = r"(?<![\w./@+,=~*:%-])[\w./@+,=~*:%-]{1,240}"
FLAG = r"[\w-]{1,60}"


# What may stand in a log: one pattern, or several alternatives, each of which is enough.
Words = str | tuple[str, ...]


def alternatives(words: Words) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else words


def pattern(words: Words) -> str:
    """Return the one pattern that finds them, and of several the one that stands first in a line."""
    return "|".join(alternatives(words))


class EndRule(NamedTuple):
    """`words` are searched in lines of the log; `{0}` in `advice` is their first group, other names are facts.

    The facts that rules use are listed in tflaunch.ends.known_end.
    """

    words: Words
    advice: str
    where: str = FINAL
    needs: tuple[str, ...] = ()  # facts that must be known
    unless: tuple[str, ...] = ()  # facts that must not be
    ask: str = ""  # what this machine may know better about the first group: "module" or "file"
    last: int = 60  # how many of the last lines are searched, for FINAL and AFTERMATH


class SignalRule(NamedTuple):
    """What it means that this signal ended a task, by the facts; `words` must be in the log, if there are any."""

    signal: str
    advice: str
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    words: Words = ""
