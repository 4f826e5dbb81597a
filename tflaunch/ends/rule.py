"""A rule about ends of tasks, and the facts that rules may ask for."""

from __future__ import annotations

from typing import NamedTuple

# Where a line counts.
FINAL = "final"  # only in what the task said last: its last exception, or its last lines
STACK = "stack"  # in the calls of its last traceback, where no rule knows its exception
ANYWHERE = "anywhere"  # also further up, where no rule knows what the task said last
AFTERMATH = (
    "aftermath"  # in what it said last, where nothing else is known: such an error follows from another
)

# Pieces of patterns: what may be quoted from a log is bounded, and has no spaces and no quotes.
NAME = r"\w{1,80}"
MODULE = r"\w{1,80}(?:\.\w{1,80}){0,8}"
# A path is looked for where a word begins, so that a log cannot make the search take long.
PATH = r"(?<![\w./@+,=~*:%-])[\w./@+,=~*:%-]{1,240}"
FLAG = r"[\w-]{1,60}"


class Rule(NamedTuple):
    """`words` is searched in lines of the log; `{0}` in `advice` is its first group, other names are facts.

    The facts that rules use are listed in tflaunch.ends.facts.
    """

    words: str  # a pattern; "": no line is needed
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
    words: str = ""
