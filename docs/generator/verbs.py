"""The pages of the verbs, from what their help shows: no option can be missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import typer

from generator.markdown import code, described, directive, escaped, prose, table
from tflaunch.cli import application
from tflaunch.cli.guide import GROUPS
from tflaunch.cli.verb_help import EXIT_CODES, page_of_verb
from tflaunch.console.help_page import HelpPage, Section
from tflaunch.documents.json_documents import DOCUMENTS

_ARGUMENTS = "Arguments"


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb, and its help."""

    name: str
    group: str
    summary: str  # in a list of verbs
    page: HelpPage

    @property
    def about(self) -> Sequence[str]:
        """What it does, in paragraphs."""
        times = [note for note in self.page.notes if note.startswith("A TIME")]
        return [self.page.summary, *self.page.more, *(note.partition(" What stands")[0] for note in times)]

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """The arguments, with what they mean."""
        return [row for each in self.page.sections if each.title == _ARGUMENTS for row in each.rows]

    @property
    def options(self) -> list[Section]:
        """The options, in the sections of the help."""
        return [
            each for each in self.page.sections if each.rows and each.title not in (_ARGUMENTS, EXIT_CODES)
        ]

    @property
    def exit_codes(self) -> list[tuple[str, str]]:
        """The exit codes, with what they mean."""
        return [row for each in self.page.sections if each.title == EXIT_CODES for row in each.rows]


def every() -> list[Verb]:
    """Return all verbs, in the order of the help."""
    group: Any = typer.main.get_command(application())
    above = typer.Context(group, info_name="tflaunch")
    return [
        Verb(name, title, guide.summary, page_of_verb(command, _context(command, above, name)))
        for title, verbs in GROUPS.items()
        for name, guide in verbs.items()
        for command in [group.commands[name]]
    ]


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them: `a`, `b` and `c`."""
    *most, last = map(code, names)
    return f"{', '.join(most)} and {last}" if most else last


def with_json(*, documents: bool) -> list[str]:
    """Return the verbs whose `--json` prints one document, else those whose `--json` prints events."""
    one = {name.partition(" ")[0] for name in DOCUMENTS}
    return [
        verb.name
        for verb in every()
        if (verb.name in one) is documents
        and any(name.strip().startswith("--json") for section in verb.options for name, _ in section.rows)
    ]


def _context(command: Any, above: typer.Context, name: str) -> typer.Context:
    return typer.Context(command, parent=above, info_name=name)


def pages() -> dict[str, str]:
    """Return the page of each verb, and the page that lists them, by the names of their files."""
    verbs = every()
    listed = ""
    for title in GROUPS:
        rows = [
            [f"[`tflaunch {verb.name}`]({verb.name}.md)", prose(verb.summary)]
            for verb in verbs
            if verb.group == title
        ]
        listed += f"## {title}\n\n{table(['command', 'does'], rows)}\n"
    names = "\n".join(f"tflaunch {verb.name} <{verb.name}>" for verb in verbs)
    index = f"# Commands\n\n{listed}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return {"commands.md": index, **{f"{verb.name}.md": _page(verb) for verb in verbs}}


def _page(verb: Verb) -> str:
    parts = [f"# tflaunch {verb.name}\n", f"```text\n{verb.page.usage}\n```\n"]
    parts += [prose(paragraph) + "\n" for paragraph in verb.about]
    rows = [[code(example), prose(does)] for example, does in verb.page.examples]
    parts += ["## Examples\n", table(["command", "does"], rows)]
    parts.append(f"```{{program}} tflaunch {verb.name}\n```\n")
    if verb.arguments:
        parts += ["## Arguments\n", *_directives(verb.arguments)]
    parts.append("## Options\n")
    for section in verb.options:
        parts += [
            f"### {escaped(section.title)}\n" if len(verb.options) > 1 else "",
            *_directives(section.rows),
        ]
    shown = [[f"`{number}`", prose(meaning)] for number, meaning in verb.exit_codes]
    parts += ["## Exit codes\n", table(["code", "meaning"], shown)]
    return "\n".join(part for part in parts if part)


def _directives(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [directive("option", name.strip(), described(text)) for name, text in rows]
