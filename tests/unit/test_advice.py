"""What tflaunch's own sentences tell the user to type is known to tflaunch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs import known
from tests.support import ROOT
from tflaunch.cli import VERBS

FILES = sorted((ROOT / "tflaunch").rglob("*.py"))


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each text of a module with its line, without docstrings; what is filled in is X."""
    inside = {
        id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in ast.walk(node)
    }
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not {id(node)} & (inside | docs)
        ):
            yield node.lineno, node.value


def advice(text: str) -> Iterator[tuple[str, list[str]]]:
    """The verb and the options of each command of tflaunch in a text."""
    for found in re.finditer(r"(?<![\w/.-])tflaunch ([a-z]+)( [^;`|]*)?", text):
        own = (found[2] or "").partition(" -- ")[0]
        own = re.split(r" (?:has|takes|lists|says|shows) |\. |, or |: (?!//)|\n", own)[0]
        if found[1] in VERBS:
            yield found[1], re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", own)


def texts(pattern: str) -> Iterator[tuple[str, str]]:
    """Where tflaunch has a text, and the text, in all files that match the pattern."""
    for path in FILES:
        if re.search(pattern, source := path.read_text()):
            for line, text in said(ast.parse(source)):
                yield f"{path.relative_to(ROOT)}:{line}", text


def test_every_option_that_is_advised_is_one_of_its_verb() -> None:
    found = [
        (f"{where}: tflaunch {verb}", options, set(options) - known.options_of(verb))
        for where, text in texts("tflaunch [a-z]")
        for verb, options in advice(text)
    ]
    assert len(found) > 60, "were the advice not found, nothing below could fail"
    assert len([options for _, options, _ in found if options]) > 15
    assert not [(where, unknown) for where, _, unknown in found if unknown]


def test_no_advice_is_one_that_debian_refuses() -> None:
    """`pip install` outside an environment: PEP 668, "externally-managed-environment"."""
    pip = r"\bpip3? install|-m pip\b"
    assert not [each for each in texts(pip) if re.search(pip, each[1])]


def test_advice_that_is_wrong_is_noticed() -> None:
    [(verb, options)] = advice("do this: tflaunch stop X --frce; it ends")
    assert (verb, set(options) - known.options_of(verb)) == ("stop", {"--frce"})
    tree = ast.parse('"""tflaunch run --doc"""\nx = f"tflaunch run {y} --ps {n}"\n')
    assert [text for _, text in said(tree)] == ["tflaunch run X --ps X"]
