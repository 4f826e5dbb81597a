"""Which modules a program imports from the directory that it lies in: found in its text, nothing of it is run."""

from __future__ import annotations

import ast
import functools
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

DYNAMIC = ("import_module", "__import__")  # found where the module's name is written out
_MOST_NAME = 240  # characters: no file can have a name that is much longer
_MOST_BYTES = 2 * 2**20  # of a file that is parsed: a tree takes a hundred times as much memory


class _Import(NamedTuple):
    """`from ..name import of`: `level` dots; `of` may be submodules."""

    name: str
    level: int = 0
    of: tuple[str, ...] = ()
    line: int = 0


class Module(NamedTuple):
    """One file of a program, and what it imports."""

    path: str  # relative to the directory
    tree: ast.Module | None  # None: a module in C, text that this Python cannot read, or too much of it
    fault: SyntaxError | None  # what is wrong with the text, for the Python here
    elsewhere: tuple[tuple[str, int], ...]  # (module that it imports and that is not in the directory, line)


def imported_files(directory: Path, file: str, package: str = "", roots: Sequence[str] = ("",)) -> list[str]:
    """Return the files below `directory` that the program `file` there is made of, itself the first.

    Those are the modules that it imports by name, and those that they import, anywhere in their text; of a package its
    `__init__.py`, and what is imported of it.  `package` is the one that `python -m` runs the file in.  `roots` are the
    directories, below `directory`, in which modules are looked for.  A module whose name is made when the program runs
    is not found.
    """
    return [module.path for module in modules(directory, file, package, roots)]


def modules(directory: Path, file: str, package: str = "", roots: Sequence[str] = ("",)) -> Iterator[Module]:
    """Yield the same files, each when it is read, so that the caller may stop early."""

    def of_name(name: str) -> list[tuple[str, str]]:
        return [
            (os.path.join(root, path), inside)  # noqa: PTH118
            for root in roots
            for path, inside in _module(directory / root, name)
        ]

    seen: set[str] = set()
    pending = [(file, package)]
    for depth in range(1, len(package.split(".")) + 1 if package else 1):
        pending += of_name(".".join(package.split(".")[:depth]))
    while pending:
        path, inside = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        tree, fault = _read(directory / path)
        elsewhere: list[tuple[str, int]] = []
        for each in _imports(directory / path, tree):
            name = _absolute(each, inside)
            if name is None:
                elsewhere.append(("." * each.level + each.name, each.line))
                continue
            if len(name) > _MOST_NAME:
                elsewhere.append((name, each.line))
                continue
            parts = name.split(".") if name else []
            for depth in range(1, len(parts)):
                pending += of_name(".".join(parts[:depth]))
            here = of_name(name) if name else []
            of = (
                {sub for root in roots for sub in _all_of(directory / root, name)}
                if "*" in each.of
                else each.of
            )
            for sub in sorted(of):
                here += of_name(f"{name}.{sub}" if name else sub)
            pending += here
            if name and not here:
                elsewhere.append((name, each.line))
        yield Module(path, tree, fault, tuple(elsewhere))


def _absolute(each: _Import, package: str) -> str | None:
    """The whole name of an imported module; None: its dots lead out of the directory."""
    if not each.level:
        return each.name
    parts = package.split(".") if package else []
    if each.level > len(parts):
        return None
    base = parts[: len(parts) - each.level + 1]
    return ".".join([*base, *([each.name] if each.name else [])])


def _module(directory: Path, name: str) -> Iterator[tuple[str, str]]:
    """(file, package) of that module, if it is here; `package` is what its own relative imports start from."""
    if len(name) > _MOST_NAME or not all(part.isidentifier() for part in name.split(".")):
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
    if folder.is_dir():  # modules in C, of any Python: a.so, a.abi3.so, a.cpython-312-x86_64-linux-gnu.so
        for entry in sorted(folder.glob(f"{last}.*so")):
            if entry.name == f"{last}.so" or re.fullmatch(
                r"\.(cpython-|abi3|pypy)[\w-]*\.so", entry.name[len(last) :]
            ):
                yield str(Path(base).with_name(entry.name)), above


def _all_of(directory: Path, name: str) -> tuple[str, ...]:
    """What `from name import *` imports, by the `__all__` of that package."""
    init = directory.joinpath(*name.split("."), "__init__.py") if name else None
    tree = _read(init)[0] if init is not None and init.is_file() else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets
        ):
            words = (item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant))
            return tuple(word for word in words if isinstance(word, str) and word.isidentifier())
    return ()


def _imports(path: Path, tree: ast.Module | None) -> Iterator[_Import]:
    if tree is None:
        if path.suffix != ".so":
            yield from _by_lines(path)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_Import(alias.name, line=node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            of = tuple(alias.name for alias in node.names)
            yield _Import(node.module or "", node.level, of, node.lineno)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in DYNAMIC and isinstance(name, str) and name.strip("."):
                level = len(name) - len(name.lstrip("."))
                yield _Import(name[level:], level, line=node.lineno)


def _read(path: Path) -> tuple[ast.Module | None, SyntaxError | None]:
    """The syntax tree of a file, or what is wrong with it; parsed once while the file stays the same."""
    if path.suffix == ".so":
        return None, None
    try:
        facts = path.stat()
        if facts.st_size > _MOST_BYTES:  # mostly tables of numbers
            return None, None
        return _parsed(path, facts.st_size, facts.st_mtime_ns)
    except OSError:
        return None, None


@functools.lru_cache(maxsize=4096)
def _parsed(path: Path, _size: int, _changed: int) -> tuple[ast.Module | None, SyntaxError | None]:
    try:
        with warnings.catch_warnings():  # they are about the user's program
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes()), None
    except SyntaxError as error:
        return None, error
    except (ValueError, RecursionError, MemoryError):
        return None, None


def _by_lines(path: Path) -> Iterator[_Import]:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return
    # For text that the Python here cannot read, while another version may.
    for line in text.replace("\\\n", " ").split("\n"):
        first, *words = line.partition("#")[0].split() or [""]
        if first == "from" and words[1:2] == ["import"]:
            name, of = words[0].lstrip("."), " ".join(words[2:])
            yield _Import(name, len(words[0]) - len(name), tuple(re.findall(r"(\w+|\*)(?:\s+as\s+\w+)?", of)))
        elif first == "import":
            yield from (_Import(each) for each in re.findall(r"([\w.]+)(?:\s+as\s+\w+)?", " ".join(words)))
