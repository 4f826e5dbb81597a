"""The work of every pattern of tflaunch grows with the text, not with its square: a host, or a task, chooses the text.

The work is counted (tests/support/steps.py), not timed, on texts made of what each pattern looks for: a run of one of
its characters, its own words again and again, its beginning and then something else.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import itertools
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import ROOT
from tests.support.steps import Steps, TooMany, parser, sre, steps
from tflaunch.ends import log_end
from tflaunch.ssh import openssh_log
from tflaunch.text.lines import MAX_LINE, LineAssembler
from tflaunch.text.safe import _ESCAPE, printable

SHORT, LONG, MOST = 16, 256, 20  # 16 times the text: at most 20 times the work
ENDLESS = 20_000  # steps for a short text: the work doubles with each character
SEARCHES = {"search", "sub", "subn", "findall", "finditer", "split"}
CALLS = {*SEARCHES, "match", "fullmatch", "compile"}


class Use(NamedTuple):
    """A pattern in the code."""

    file: str
    pattern: str
    flags: int
    search: bool


@cache
def uses() -> list[Use]:
    """All of them; not found before a test asks, for each of pytest's workers reads this file."""
    return sorted(set(_uses()))


def _uses() -> Iterator[Use]:
    nodes = {
        path: list(ast.walk(ast.parse(text)))
        for path in sorted((ROOT / "tflaunch").rglob("*.py"))
        if re.search(rf"\.(?:{'|'.join([*CALLS, 'find'])})\(", text := path.read_text())
    }
    searched = {  # names on which a method that searches is called, in any file
        node.func.value.id
        for node in itertools.chain(*nodes.values())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SEARCHES
        and isinstance(node.func.value, ast.Name)
    }
    for path, own in nodes.items():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        targets = {
            id(node.value): node.targets[0].id
            for node in own
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in own:
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr in CALLS
            ):
                if found := _of_find(node, path):
                    yield Use(str(path.relative_to(ROOT)), found, 0, True)
                continue
            search = node.func.attr in SEARCHES or targets.get(id(node)) in searched
            flags = sum(
                int(getattr(re, each.attr))
                for argument in [*node.args[1:], *(key.value for key in node.keywords)]
                for each in ast.walk(argument)
                if isinstance(each, ast.Attribute) and each.attr.isupper() and hasattr(re, each.attr)
            )
            yield Use(str(path.relative_to(ROOT)), _pattern(node.args[0], name), flags, search)


def _of_find(node: ast.AST, path: Path) -> str:
    """The pattern of a call of SshLog.find; "" of any other call."""
    if (
        path.parent.name == "ssh"
        and isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "find"
        and isinstance(node.args[0], ast.Constant)
    ):
        return str(node.args[0].value)
    return ""


def _pattern(node: ast.expr, module: str) -> str:
    """The text of a pattern; where the code makes it of what it is given, that expression in angle brackets."""
    known = vars(importlib.import_module(module))
    with contextlib.suppress(Exception):
        value = eval(compile(ast.Expression(node), module, "eval"), dict(known))  # noqa: S307 - our own code
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return f"<{ast.unparse(node)}>"


def _units(pattern: str, flags: int) -> set[str]:
    """Texts that this pattern looks for: its characters, one by one, and its words."""
    found: set[str] = set()

    def walk(items: Any) -> str:
        word = ""
        for code, argument in items:
            more = ""
            if code is sre.LITERAL:
                more = chr(argument)
            elif code in (sre.NOT_LITERAL, sre.ANY):
                more = "x"
            elif code is sre.IN:
                negated = argument[0][0] is sre.NEGATE
                firsts = [_first(each) for each in argument if each[0] is not sre.NEGATE]
                more = "x" if negated else firsts[0]
                found.update(firsts)
            elif code is sre.SUBPATTERN:
                more = walk(argument[3])
            elif code is sre.BRANCH:
                words = [walk(each) for each in argument[1]]
                found.update(words)
                more = words[0]
            elif code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
                more = walk(argument[2])
            word += more
            found.update((more, word))
        return word

    walk(parser.parse(pattern, flags))
    return {each for each in found if each} | {"x", " ", "\x00"}


def _first(part: Any) -> str:
    code, argument = part
    if code is sre.LITERAL:
        return chr(argument)
    if code is sre.RANGE:
        return chr(argument[0])
    return {sre.CATEGORY_DIGIT: "7", sre.CATEGORY_SPACE: " ", sre.CATEGORY_NOT_SPACE: "x"}.get(argument, "w")


def _texts(pattern: str, flags: int) -> Iterator[tuple[str, str, str]]:
    """(beginning, what is repeated, end) of hostile texts."""
    units = sorted(_units(pattern, flags), key=lambda unit: (len(unit), unit))
    characters = [each for each in units if len(each) == 1][:7]
    words = [each for each in units if len(each) > 1][-7:]
    beginnings = {"", *(each[:-1] for each in words[-1:])}
    yield from itertools.product(sorted(beginnings), characters + words, ["\x00"])


@cache
def grows(pattern: str, flags: int, search: bool) -> str:
    """A text on which this pattern's work grows faster than the text; "" where there is none."""
    for beginning, unit, end in _texts(pattern, flags):
        times = max(8, SHORT // len(unit))
        short, long = (beginning + unit * (factor * times) + end for factor in (1, LONG // SHORT))
        try:
            work = steps(pattern, short, flags=flags, search=search, most=ENDLESS)
            steps(pattern, long, flags=flags, search=search, most=MOST * max(work, len(short)))
        except TooMany:
            return repr((beginning, unit, end))
    return ""


# Why it may grow all the same.
OWN = "what the user of this machine has typed, or written into a file"
CUT = f"lines of a log are cut to {log_end.LONGEST} characters before, and only the last {log_end.LINES} are searched"
SSH = f"lines of its log are cut to {openssh_log.SEEN} characters, and the last {openssh_log.MOST_LINES} are kept"
GROWING = {
    ("tflaunch/console/failure_page.py", ","): OWN,  # names of the hostfile
    ("tflaunch/inputs/hostfile_model.py", r"\s*-\s*"): OWN,
    ("tflaunch/inputs/kinds.py", r"\[[^\]]*\]"): OWN,
    ("tflaunch/planning/environments.py", r"(^|\s+)#.*$"): OWN,
    ("tflaunch/ssh/openssh_failures.py", "(?!debug)"): SSH,
    ("tflaunch/ssh/openssh_failures.py", ".*could not read"): SSH,
    ("tflaunch/ssh/openssh_failures.py", "(?m)^Unable to negotiate with "): SSH,
    ("tflaunch/ssh/openssh_failures.py", "^Error checking host key "): SSH,
    ("tflaunch/ssh/openssh_log.py", "debug1: Authenticating to "): SSH,
    ("tflaunch/ssh/openssh_log.py", "debug1: Connecting to "): SSH,
    ("tflaunch/ssh/refused_keys.py", r"(\d+)-(\d+)"): OWN,
    ("tflaunch/ssh/refused_keys.py", ",(?!"): OWN,
    ("tflaunch/sweeps/trials.py", r"([+-]?"): OWN,
    ("tflaunch/sweeps/trials.py", r"[,\s]+("): OWN,
}
# Patterns that the code makes of what it is given -> what it is given, and on which text.
MADE = {
    (
        "tflaunch/slot/holder.py",
        "<pattern>",
    ): "two patterns of its own, on what the kernel says of its addresses",
    (
        "tflaunch/agent/files/outputs.py",
        "<regex>",
    ): "the user's --fetch, on paths, whose length the system limits",
    ("tflaunch/cli/attach.py", "<text>"): f"the user's --grep, on lines of at most {MAX_LINE} characters",
    ("tflaunch/cli/command.py", "<pattern>"): OWN,
    ("tflaunch/cli/trainer_words.py", "<pattern>"): OWN,
    ("tflaunch/code/secrets.py", "<row.holds>"): OWN,
    ("tflaunch/console/run_pages.py", "<f'"): "the run's id, after which comes no second star",
    ("tflaunch/ends/interpret.py", "<f'"): "a port",
    ("tflaunch/ends/interpret.py", "<pattern(rule.words)>"): CUT,
    ("tflaunch/ends/tables.py", "<pattern(rule.words)>"): CUT,
    ("tflaunch/hosts.py", "<begins>"): OWN,
    ("tflaunch/hosts.py", "<named>"): OWN,
    ("tflaunch/inputs/hostnames.py", "<f"): OWN,
    ("tflaunch/inputs/kinds.py", "<listed>"): OWN,
    ("tflaunch/inputs/patterns.py", "<regex>"): OWN,
    ("tflaunch/planning/environments.py", "<pattern>"): OWN,
    (
        "tflaunch/runs/fetch_search.py",
        "<pattern.regex>",
    ): "the user's --fetch, on paths, whose length the system limits",
    ("tflaunch/runs/hidden_values.py", "<"): OWN,
    ("tflaunch/sessions/printed_numbers.py", "<f"): "a metric's name, on lines of the user's own program",
    ("tflaunch/ssh/openssh_log.py", "<pattern>"): "those of `find`, which stand in the list",
    ("tflaunch/sweeps/results.py", "<text>"): "the user's --metric, on the lines of the user's own program",
    ("tflaunch/sweeps/trials.py", "<"): OWN,
}


def _without_verdict(
    uses: list[Use], verdicts: dict[tuple[str, str], str]
) -> tuple[list[Use], set[tuple[str, str]]]:
    """The uses that no verdict is about, and the verdicts that are about none."""
    about = {
        use: [key for key in verdicts if use.file == key[0] and use.pattern.startswith(key[1])]
        for use in uses
    }
    used = {key for keys in about.values() for key in keys}
    return [use for use in uses if not about[use]], verdicts.keys() - used


def test_the_work_of_every_pattern_grows_with_the_text_or_the_text_is_short_or_the_users_own() -> None:
    known = [use for use in uses() if not use.pattern.startswith("<")]
    assert len(known) > 150
    growing = {use: text for use in known if (text := grows(use.pattern, use.flags, use.search))}
    unexplained, needless = _without_verdict(list(growing), GROWING)
    assert [(use.file, use.pattern, growing[use]) for use in unexplained] == []
    assert needless == set()


def test_every_pattern_that_is_made_has_its_verdict() -> None:
    assert _without_verdict([use for use in uses() if use.pattern.startswith("<")], MADE) == ([], set())


def test_a_pattern_whose_work_is_quadratic_is_found() -> None:
    assert grows(r"\x9d[^\x07\n]*\x07", 0, search=True)
    assert grows(r"(a|aa)*b", 0, search=False)
    assert not grows(r"\x9d[^\x07\x9d\n]*\x07", 0, search=True)


@pytest.mark.parametrize(
    "pattern",
    [r"(a+)(b|c)*d", r"a{2,3}?b", r"(?:ab|a)(?:c|bcd)(?:d*)", r"\bfoo\b|(?<!x)y$", r"(?i)[a-c]+[^x]"],
)
@pytest.mark.parametrize("text", ["aabcd", "aaab", "abcd", "a foo y", "xy", "ABCx", "", "aab aaaab"])
def test_the_steps_find_what_re_finds(pattern: str, text: str) -> None:
    counter = Steps(pattern, 0, text, 10_000)
    assert [counter.match(at) for at in range(len(text) + 1)] == [
        found.end() if (found := re.compile(pattern).match(text, at)) else None for at in range(len(text) + 1)
    ]


def test_the_lines_that_the_rules_of_ends_search_are_cut() -> None:
    end = log_end.read(["x" * 100_000], code=1, by_signal=False)
    assert {len(line) for line in (*end.final, *end.above)} == {log_end.LONGEST}


HOSTILE = [
    "\x9d",
    "\x90",
    "\x1b]",
    "\x1b[",
    "\x1b[0",
    "\x9b",
    "\x9d\x9b",
    "\x1b",
    "\x1b ",
    "\r",
    "\b",
    "\r ",
    "\u202e",
]


@pytest.mark.parametrize("unit", HOSTILE, ids=ascii)
def test_what_a_task_prints_costs_work_that_grows_with_it(unit: str) -> None:
    short, long = (unit * (size // len(unit)) for size in (500, 8_000))
    assert steps(_ESCAPE.pattern, long) <= MOST * steps(_ESCAPE.pattern, short)
    assert _calls(8 * long) <= MOST * _calls(8 * short)


def _calls(text: str) -> int:
    """How many calls the launcher makes to show that text."""
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    lines = LineAssembler(max_line=100_000)
    sys.setprofile(count)
    try:
        lines.feed(text.encode())
        lines.end()
        printable(text)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x9dtitle\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9done\x9dtwo\x07after", r"\x9doneafter"),
        ("\x9d" * 3, r"\x9d" * 3),
        ("\x90never ended", r"\x90never ended"),
    ],
)
def test_a_sequence_ends_where_the_next_one_begins(text: str, shown: str) -> None:
    assert printable(text) == shown
