"""Text of the program as Markdown: nothing in it is markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~$])")
# Words that are typed or read by programs: options, variables, NAME=VALUE, paths.
_CODE = re.compile(
    r"(?<![\w`./~=-])("
    r"'[^' ]*=[^']*'"
    r"|--?[a-z][\w-]*(?:=(?:[^\s;,)]*\w)?)?"
    r"|\$?[A-Za-z]+_\w+(?:=[^\s;,)]*[\w/])?"
    r"|[a-z]\w*=[\w.,=-]*\w"
    r"|(?:~|\.\.?)?/[.\w][\w./~-]*[\w/]"
    r")"
)
_DEFAULT = re.compile(r"(?P<text>.*?)\.? \[(?P<default>[^\]]*)\]\.?", re.DOTALL)


def escaped(text: str) -> str:
    """Return the text so that Markdown shows every character of it as it is."""
    return _MARKUP.sub(r"\\\1", text)


def prose(text: str) -> str:
    """Return a sentence with its options, variables and paths as code; what stands in backticks is code already."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else _with_code(part) for part in parts)


def _with_code(text: str) -> str:
    done, shown = 0, []
    for match in _CODE.finditer(text):
        shown += [escaped(text[done : match.start()]), code(match[0])]
        done = match.end()
    return "".join([*shown, escaped(text[done:])])


def described(text: str) -> str:
    """Return a help text as Markdown: what it has in brackets at its end is the default."""
    if match := _DEFAULT.fullmatch(text):
        return f"{prose(match['text'])}. Default: {prose(match['default'])}."
    return prose(text if text.endswith((".", "?", "]")) else f"{text}.")


def code(text: str) -> str:
    """Return the text as code."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |\n" for line in lines)


def directive(name: str, argument: str, body: str) -> str:
    """Return a directive of Sphinx."""
    return f":::{{{name}}} {argument}\n{body.rstrip()}\n:::\n"
