"""Every link between the pages, to a heading and to a file of the repository leads somewhere."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tflaunch.cli import VERBS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
MARKDOWN = MarkdownIt("commonmark").enable("table")


def tokens(text: str) -> Iterator[Token]:
    for token in MARKDOWN.parse(text):
        yield token
        yield from token.children or ()


def links(text: str) -> list[str]:
    """The targets of links and pictures that are not web addresses."""
    found = []
    for each in tokens(text):
        found.append(str(each.attrs.get("href") or each.attrs.get("src") or ""))
        if each.type in ("html_block", "html_inline"):
            found += re.findall(r'\b(?:href|src|srcset)="([^"]*)"', each.content)
    return [link for link in found if link and not re.match(r"[a-z]+:", link)]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub, and the built documentation, give to the headings."""
    found: list[str] = []
    parsed = MARKDOWN.parse(text)
    for heading, inside in pairwise(parsed):
        if heading.type == "heading_open":
            words = "".join(each.content for each in inside.children or ())
            slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            found.append(slug)
    return {
        f"{slug}-{before}" if (before := found[:at].count(slug)) else slug for at, slug in enumerate(found)
    }


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere, or into docs/reference, which the repository does not have."""
    wrong = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        goal = (page.parent / path).resolve() if path else page
        there = goal.exists() and goal.is_relative_to(ROOT)
        there = there and not goal.is_relative_to(ROOT / "docs" / "reference")
        if there and anchor:
            there = anchor in anchors(goal.read_text(encoding="utf-8") if path else text)
        if not there:
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_on_the_site_each_picture_is_chosen_by_its_button() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        repository = importlib.import_module("generator.repository")
    finally:
        sys.path.pop(0)
    for page in (ROOT / "docs").glob("*.md"):
        text = repository.with_button(page.read_text(encoding="utf-8"))
        assert "<picture" not in text
        pictures = re.findall(r'class="only-(dark|light)" src="pictures/([^"]*)-(dark|light)\.svg"', text)
        assert all(button == picture for button, _, picture in pictures)
        assert len(pictures) == text.count("<img") == 2 * len({name for _, name, _ in pictures})


def test_links_that_lead_nowhere_are_found() -> None:
    text = """# Some title: `x` & y

[a](#some-title-x--y) [b](#else) [c](hostfile.md) [d](hostfile.md#write-it) [e](hostfile.md#nothing) [f](nowhere.md)
[k](reference/run.md)
[g](../../secret) ![h](none.svg) [i](https://example.org/) `[j](code.md)`

<picture><source srcset="dark.svg"><img src="../README.md"></picture>
"""
    assert broken(ROOT / "docs" / "index.md", text) == [
        "#else",
        "hostfile.md#nothing",
        "nowhere.md",
        "reference/run.md",
        "../../secret",
        "none.svg",
        "dark.svg",
    ]


def test_the_readme_names_every_verb() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = "\n".join(re.findall(r"^- `.*", text, re.M))
    assert [verb for verb in VERBS if f"`{verb}" not in listed] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
