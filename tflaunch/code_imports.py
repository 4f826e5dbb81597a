"""What a program imports from the directory that it lies in: found in its text, for nothing of it is run here."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_DYNAMIC = ("import_module", "__import__")  # with the name written out
# Where this Python cannot read the text, one of another version may.
_IMPORT_LINE = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(.+)|import[ \t]+(.+))$", re.MULTILINE
)


class _Import(NamedTuple):
    """`from ..name import of`: `level` dots; `of` may be submodules."""

    name: str
    level: int = 0
    of: tuple[str, ...] = ()


def imported_files(directory: Path, file: str, package: str = "") -> list[str]:
    """The files below `directory` that the program `file` there is made of, itself the first.

    Those are the modules that it imports by name, and those that they import, anywhere in their text; of a package its
    `__init__.py`, and what is imported of it.  `package` is the one that `python -m` runs the file in.  What is
    imported under a name that is made up when it runs is not found.
    """
    found: dict[str, None] = {}
    pending = [(file, package)]
    for depth in range(1, len(package.split(".")) + 1 if package else 1):
        pending += _module(directory, ".".join(package.split(".")[:depth]))
    while pending:
        path, inside = pending.pop(0)
        if path in found:
            continue
        found[path] = None
        for each in _imports(directory / path):
            name = _absolute(each, inside)
            if name is None:
                continue
            parts = name.split(".") if name else []
            for depth in range(1, len(parts) + 1):
                pending += _module(directory, ".".join(parts[:depth]))
            of = _all_of(directory, name) if "*" in each.of else each.of
            for sub in of:
                pending += _module(directory, f"{name}.{sub}" if name else sub)
    return list(found)


def _absolute(each: _Import, package: str) -> str | None:
    """The whole name of what is imported; None: it leads out of the directory."""
    if not each.level:
        return each.name
    parts = package.split(".") if package else []
    if each.level > len(parts):
        return None
    base = parts[: len(parts) - each.level + 1]
    return ".".join([*base, *([each.name] if each.name else [])])


def _module(directory: Path, name: str) -> Iterator[tuple[str, str]]:
    """(the file of that module, the package that its own dots speak of), if it is here."""
    if not all(part.isidentifier() for part in name.split(".")):
        return
    base = os.path.join(*name.split("."))  # noqa: PTH118
    init = os.path.join(base, "__init__.py")  # noqa: PTH118
    if (directory / init).is_file():
        yield init, name
        return
    above = name.rpartition(".")[0]
    if (directory / f"{base}.py").is_file():
        yield f"{base}.py", above
        return
    last = os.path.basename(base)  # noqa: PTH119
    folder = (directory / base).parent
    if (
        folder.is_dir()
    ):  # modules in C, for whatever Python: a.so, a.abi3.so, a.cpython-312-x86_64-linux-gnu.so
        for entry in sorted(folder.glob(f"{last}.*so")):
            if entry.name == f"{last}.so" or re.fullmatch(
                r"\.(cpython-|abi3|pypy)[\w-]*\.so", entry.name[len(last) :]
            ):
                yield str(Path(base).with_name(entry.name)), above


def _all_of(directory: Path, name: str) -> tuple[str, ...]:
    """What `from name import *` takes, as far as it is written down."""
    init = directory.joinpath(*name.split("."), "__init__.py") if name else None
    tree = _tree(init) if init is not None and init.is_file() else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets
        ):
            words = (item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant))
            return tuple(word for word in words if isinstance(word, str) and word.isidentifier())
    return ()


def _imports(path: Path) -> Iterator[_Import]:
    tree = _tree(path)
    if tree is None:
        yield from _by_lines(path)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _Import(node.module or "", node.level, tuple(alias.name for alias in node.names))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in _DYNAMIC and isinstance(name, str) and name.strip("."):
                level = len(name) - len(name.lstrip("."))
                yield _Import(name[level:], level)


def _tree(path: Path) -> ast.AST | None:
    if path.suffix == ".so":
        return ast.Module([], [])
    try:
        with warnings.catch_warnings():  # it is the user's program that they are about
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _by_lines(path: Path) -> Iterator[_Import]:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return
    for dots, name, of, names in _IMPORT_LINE.findall(text.replace("\\\n", " ")):
        if of:
            yield _Import(
                name, len(dots), tuple(re.findall(r"(\w+|\*)(?:\s+as\s+\w+)?", of.partition("#")[0]))
            )
        else:
            yield from (
                _Import(each) for each in re.findall(r"([\w.]+)(?:\s+as\s+\w+)?", names.partition("#")[0])
            )
