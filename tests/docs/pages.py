"""What the pages show: commands, what they print, and files; found by itself in README.md and docs/**/*.md.

A block of code, fenced or indented, is a *session* unless its language says otherwise.  In a session a line is a
command if it begins with `$ `, or with a program that people type (`STARTS`); a line that ends with a backslash goes on
in the next one, and a here-document belongs to its command.  What follows a command and is no command is what it
prints.  A block of a session without any command is output alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support import ROOT

SESSIONS = ("", "sh", "bash", "shell", "console", "text")
# What people type: tflaunch and the scripts of this project, and what stands beside them.
STARTS = re.compile(
    r"(?:[A-Z_]+=\S* )*(?:RUN=\$\(|for \w+ in |if |while |! |time )?"
    r"(?:tflaunch|scripts/\w+|\.ci/run|python3?|pipx?|uv|ssh|ssh-\w+|scp|rsync|kinit|export|cat|cd|git|docker|podman|conda|jq"
    r"|mkdir|cp|curl|man|nohup|tmux|mpirun|horovodrun|torchrun|deepspeed|sky|dstack|spark-submit|java|kubectl|env|sudo|\./\w+)(?=\s|$|\))"
)
_OPERATORS = frozenset(
    {"|", "||", "&", "&&", ";", "(", ")", "do", "done", "then", "else", "if", "while", "!", "$"}
)
_PUNCTUATION = re.compile(r"[();<>|&]+$")


@dataclass(frozen=True)
class Command:
    """What a page tells its reader to type, and what it says is printed then."""

    page: str  # relative to the project
    line: int
    text: str  # as a shell reads it, without `$ `
    prints: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"

    @property
    def calls(self) -> list[list[str]]:
        """The words of each call of tflaunch in it, without `tflaunch` itself."""
        return calls(self.text)


@dataclass(frozen=True)
class Block:
    """A block of code."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines) + "\n"

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Span:
    """Inline code."""

    page: str
    line: int
    text: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def documents(root: Path = ROOT) -> list[Path]:
    """The pages whose commands are run; docs/reference/ is made from the code."""
    pages = sorted((root / "docs").glob("**/*.md"))
    return [root / "README.md", *(page for page in pages if root / "docs/reference" not in page.parents)]


def also(root: Path = ROOT) -> list[Path]:
    """Further pages, whose commands must be such that tflaunch knows them; other tests run them."""
    return [root / "CONTRIBUTING.md", root / "examples/README.md"]


def calls(text: str) -> list[list[str]]:
    """The words of each call of `tflaunch` in a line of shell."""
    line = re.sub(r"(?<=\s)\d(?=[<>])", "", text.replace("\\\n", " "))  # `2>` names a stream, no argument
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = []
    own: list[str] | None = None
    fresh = True  # whether the next word is a program
    skip = False  # the target of a redirection
    for word in lexer:
        if skip:
            skip = False
        elif word in _OPERATORS or _PUNCTUATION.match(word):
            skip = word[-1] in "<>" and word not in ("<(", ">(")
            if not skip:
                own, fresh = None, True
        elif own is not None:
            own.append(word)
        elif fresh:
            if word.rpartition("/")[2] == "tflaunch":
                own = []
                found.append(own)
            fresh = bool(re.fullmatch(r"[A-Za-z_]\w*=.*", word)) or word in _OPERATORS
            fresh = fresh or word in ("time", "sudo", "nohup", "exec")
    return found


@cache
def blocks(path: Path, root: Path = ROOT) -> tuple[Block, ...]:
    """The blocks of code of a page."""
    return tuple(_blocks(path.read_text(), str(path.relative_to(root))))


def _blocks(text: str, page: str) -> Iterator[Block]:
    fence, indent, language, start = "", 0, "", 0
    lines: list[str] = []
    indented = before_blank = False
    for number, line in enumerate(text.expandtabs(4).split("\n"), 1):
        bare = line.strip()
        if fence:
            if bare.startswith(fence) and not bare.strip(fence[0]):
                yield Block(page, start, language, tuple(lines))
                fence, lines = "", []
            else:
                lines.append(line[indent:] if line[:indent].isspace() or not indent else line.lstrip())
            continue
        if indented:
            if line.startswith("    ") or not bare:
                lines.append(line[4:])
                continue
            yield Block(page, start, "", tuple(_trimmed(lines)))
            indented, lines = False, []
        if found := re.match(r"( *)(```+|~~~+)\s*\{?([\w-]*)", line):
            fence, indent, language, start = found[2], len(found[1]), found[3].lower(), number + 1
        elif line.startswith("    ") and before_blank:
            indented, start, lines = True, number, [line[4:]]
        before_blank = not bare
    if lines:
        yield Block(page, start, language, tuple(_trimmed(lines)))


def _trimmed(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def commands(path: Path, root: Path = ROOT) -> list[Command]:
    """The commands of a page, in its order."""
    found = []
    for block in blocks(path, root):
        if block.language in SESSIONS:
            found += _commands(block)
        elif block.language in ("yaml", "yml"):  # of a CI system
            lines = enumerate(block.lines, block.line)
            typed = ((number, re.match(r"\s*(?:- )?(?:\w+: )?(tflaunch .*)", line)) for number, line in lines)
            found += [Command(block.page, number, match[1]) for number, match in typed if match]
    return sorted([*found, *_in_tables(path, root)], key=lambda command: command.line)


def _in_tables(path: Path, root: Path) -> Iterator[Command]:
    """A cell that is a command, in a column whose head begins with `tflaunch`."""
    column = -1
    for number, line in enumerate(path.read_text().split("\n"), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            column = -1
        elif column < 0:
            heads = [n for n, cell in enumerate(cells) if cell.strip("`*").startswith("tflaunch")]
            column = heads[0] if heads else len(cells)
        elif column < len(cells) and (
            found := re.fullmatch(r"`(tflaunch [^`]*)`", cells[column].rstrip(" |"))
        ):
            yield Command(str(path.relative_to(root)), number, found[1].replace(r"\|", "|"))


_NAMED = re.compile(r"`([\w./~-]+)`[^`\n]*:$")


def files(path: Path, root: Path = ROOT) -> dict[str, str]:
    """The files that a page has its reader write: a block that is no session, below a line such as "`lab.yaml`:"."""
    lines = path.read_text().split("\n")
    found = {}
    for block in blocks(path, root):
        above = [line for line in lines[: block.line - 2] if line.strip()][-1:]
        named = _NAMED.search(above[0]) if above else None
        if named and block.language not in SESSIONS:
            found[named[1]] = block.text
    return found


def outputs(path: Path, root: Path = ROOT) -> list[Block]:
    """The blocks of a page that show output alone."""
    return [
        block
        for block in blocks(path, root)
        if block.language in ("", "text", "console") and not _commands(block)
    ]


def _commands(block: Block) -> list[Command]:
    found: list[Command] = []
    lines = list(enumerate(block.lines, block.line))
    while lines:
        number, line = lines.pop(0)
        prompted = line.startswith("$ ")
        text = line.removeprefix("$ ")
        if not prompted and not STARTS.match(text):
            if found and (line.strip() or found[-1].prints):
                last = found.pop()
                found.append(Command(last.page, last.line, last.text, (*last.prints, line)))
            continue
        while text.endswith("\\") and lines:
            text += "\n" + lines.pop(0)[1].removeprefix("> ")
        if here := re.search(r"<<-?\s*['\"]?(\w+)", text):
            while lines and (not text.endswith(f"\n{here[1]}")):
                text += "\n" + lines.pop(0)[1]
        while re.match(r"(for|while|if)\b", text) and not re.search(r"\b(done|fi)\b", text) and lines:
            text += "\n" + lines.pop(0)[1]
        found.append(Command(block.page, number, text.rstrip()))
    return found


def spans(path: Path, root: Path = ROOT) -> list[Span]:
    """The inline code of a page, outside of its blocks."""
    inside = {
        number
        for block in blocks(path, root)
        for number in range(block.line - 1, block.line + len(block.lines) + 1)
    }
    text = "\n".join(
        "" if number in inside else line for number, line in enumerate(path.read_text().split("\n"), 1)
    )
    page = str(path.relative_to(root))
    return [
        Span(page, text.count("\n", 0, found.start()) + 1, " ".join(found[2].replace(r"\|", "|").split()))
        for found in re.finditer(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", text, re.DOTALL)
    ]
