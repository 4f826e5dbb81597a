"""What a program runs by: Python, the interpreter that its first line names, a shell, or itself."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.code.program_place import is_of_the_system
from tflaunch.inputs.gitignore import unreadable
from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:  # most scripts are Python by their name
    import ast

SHELL_SUFFIXES = (".sh", ".bash")
BY_ITSELF = ("/usr/bin/env",)  # which starts it from a directory where it may not be looked for
_LOOKED_AT = 1 << 20  # bytes
_OTHERS = {
    "sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish", "busybox", "pwsh", "perl", "ruby", "node", "nodejs",
    "deno", "bun", "php", "lua", "Rscript", "awk", "gawk", "sed", "make", "tclsh", "wish", "expect", "java", "groovy",
    "julia", "scala", "swift", "ocaml", "runhaskell", "guile", "osascript",
}  # fmt: skip
# Lines that data does not have, for text that the Python here cannot read, but perhaps the Python of the hosts.
_LOOKS_LIKE_PYTHON = (
    rb"(?m)^[ \t]*(?:import[ \t]+\w[\w., \t]*(?:#.*)?$|from[ \t]+[\w.]+[ \t]+import\b|(?:async[ \t]+)?def[ \t]+\w+"
    rb"|class[ \t]+\w+.*:|if[ \t]+__name__[ \t]*==|print\b)"
)


def runs_by(target: str, path: Path) -> tuple[str, ...]:
    """The words to put before the program's file, as the kernel would; () for Python, which the hostfile names.

    An executable runs by its first line (`#!`: one word and perhaps one argument) or by itself; a .sh by its first
    line, executable or not, else by bash.  A file whose first line names Python is Python.  Raises UsageError for any
    other file.  Reads at most 1 MiB of it.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT)
    except PermissionError as error:
        raise unreadable(path, error) from None
    what = _instead(path, head)
    executable = os.access(path, os.X_OK)
    shell = path.suffix in SHELL_SUFFIXES
    first = head.partition(b"\n")[0]
    if (what or executable or shell) and b"\0" not in head and not _names_python(first):
        words = os.fsdecode(first[2:]).strip(" \t").split(maxsplit=1) if first.startswith(b"#!") else []
        if (words or shell) and first.endswith(b"\r"):
            raise UsageError(
                f"{target}: its lines end as on Windows (CR LF), so no interpreter runs it",
                f"Convert it: sed -i 's/\\r$//' {target}",
            )
        polyglot = not (what or shell) and _interpreter(" ".join(words)) in _OTHERS
        if words and (executable or shell) and not polyglot:
            return tuple(words)
        if shell:
            return ("bash",)
    if not what:
        return ()
    hint = "Name a Python script, a .sh, an executable or, with -m, a module."
    if head.startswith(b"\x7fELF"):
        if is_of_the_system(path.resolve().parent):
            hint = "Name a script of yours that starts it."
        elif executable:
            return BY_ITSELF
        else:
            hint = f"If it is to run by itself: chmod +x {target}"
    elif path.suffix == ".ipynb":
        hint = f"Make a script of the notebook: jupyter nbconvert --to script {target}"
    elif head.startswith(b"#!"):
        hint = f"If it is to run by its first line: chmod +x {target}"
    raise UsageError(f"{target}: not a Python program, but {what}", hint)


def _names_python(first: bytes) -> bool:
    return (
        first.startswith(b"#!")
        and re.match(r"(python|pypy)", _interpreter(os.fsdecode(first[2:]))) is not None
    )


def _instead(path: Path, head: bytes) -> str:
    """What the file is, if it is not Python; "" if it may be."""
    if not head.strip() or (path.suffix == ".pyc" and head[2:4] == b"\r\n"):
        return ""
    if b"\0" in head:
        import zipfile

        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return "" if "__main__.py" in archive.namelist() else "a zip archive without __main__.py"
        return "an executable of this system" if head.startswith(b"\x7fELF") else "a binary file"
    named = path.suffix in (".py", ".pyw")
    first, _, rest = head.partition(b"\n")
    if first.startswith(b"#!"):
        interpreter = _interpreter(os.fsdecode(first[2:]))
        if b"python" in first or b"pypy" in first:
            return ""
        if interpreter in _OTHERS:  # some files begin as a shell script, and are Python all the same
            start = rest[:1000]
            polyglot = b"python" in start and _parsed(head) is not None
            return "" if polyglot else f"a script for {interpreter}"
    if named:
        return ""  # Python itself will say what is wrong with it
    parsed = _parsed(head) if len(head) < _LOOKED_AT else None
    if parsed is None:
        return "" if re.search(_LOOKS_LIKE_PYTHON, head) else "text that no Python can read"
    return "" if any(map(_does_something, parsed)) else "data"


def _interpreter(line: str) -> str:
    words = line.split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return Path(words[0]).name if words else ""


def _parsed(text: bytes) -> list[ast.stmt] | None:
    """The statements of a program; None: the Python here cannot read it."""
    import ast

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _does_something(statement: ast.stmt) -> bool:
    """Whether only a program has this statement: JSON, YAML, TOML and lists of words may parse as Python, too."""
    import ast

    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Call, ast.Await))
    return not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Pass, ast.Delete))
