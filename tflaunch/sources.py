"""The user's code: which program runs, and what is in its directory, told the same every time."""

from __future__ import annotations

import difflib
import functools
import os
import shlex
import stat
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tflaunch import wire
from tflaunch.agent import store
from tflaunch.errors import UsageError
from tflaunch.patterns import IgnoreLine, ignore_lines

LIMIT_BYTES = 100 * 2**20
_ENTRIES_SEEN = 100_000  # once over the limit, how many more are looked at to name the largest
_LARGEST_SHOWN = 5
_LARGEST_SHARE = 0.9  # of a directory: a part this large is named instead of the whole

# Never code, ignored or not.  Environments (pyvenv.cfg, conda-meta) and tagged caches are found by content.
_LEFT_OUT = {
    ".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox",
    ".ipynb_checkpoints", ".DS_Store",
    f"tflaunch-{os.getuid()}",  # runs of this very machine, if its `run_dir:` is in here
}  # fmt: skip
_LEFT_OUT_WITH = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")


class Program(NamedTuple):
    """What to run: `argv` follows the interpreter in `directory`, the one to ship; `file` is in it."""

    directory: Path  # absolute, without symbolic links
    argv: tuple[str, ...]  # ("trainer.py",) or ("-m", "package.module")
    file: str  # the program's file, relative to `directory`


@dataclass(frozen=True)
class Bundle:
    """What is in a directory, as tflaunch.agent.store has it: paths relative to it, parents first.

    `digest` is over names, kinds, execute bits and content: the same tree has the same digest wherever, whenever
    and with whatever Python it was made.
    """

    entries: tuple[tuple[str | int, ...], ...]
    contents: Mapping[str, bytes]  # by their digests
    size: int  # bytes of content, that of equal files more than once
    files: int  # symbolic links and directories not counted
    skipped: tuple[str, ...] = ()  # what cannot be shipped and was left: sockets, pipes, devices, dead links

    @functools.cached_property
    def _text(self) -> bytes:
        return wire.dumps(self.entries).encode("ascii")

    @functools.cached_property
    def digest(self) -> str:
        return store.digest_of(self._text)

    @functools.cached_property
    def manifest(self) -> bytes:
        """The entries as they are sent."""
        return zlib.compress(self._text)


# --- which program ---------------------------------------------------------------------------------------


def find_program(target: str, module: bool, cwd: Path, root: Path | None = None) -> Program:
    """Find the script `target`, or with `module` the module of that dotted name, on this machine.

    A script's own directory is shipped, after symbolic links, as Python itself puts that one on sys.path; a
    module is looked for in `cwd`, which is shipped.  `root` names another directory to ship, which must hold
    the program.  Raises UsageError that says what is there instead.
    """
    if root is not None:
        root = cwd / root
        if not root.is_dir():
            raise UsageError(f"{root}: there is no such directory to ship", "Correct --code-dir.")
        root = root.resolve()
    try:
        return _find_module(target, root or cwd.resolve()) if module else _find_script(target, cwd, root)
    except OSError as error:
        hint = "Name a Python script or, with -m, a module."
        raise UsageError(f"{target[:200]!r}: {error.strerror}", hint) from None


def _find_script(target: str, cwd: Path, root: Path | None) -> Program:
    if not target:
        raise UsageError("no program is named", "Name a Python script or, with -m, a module.")
    path = cwd / target
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise _no_script(target, path) from None
    if stat.S_ISDIR(mode):
        raise _directory_as_script(target, path)
    if not stat.S_ISREG(mode):
        raise UsageError(f"{target}: not a regular file, so it cannot be shipped", "Name a Python script.")
    _check_readable(path)
    path = path.resolve()
    directory = root or path.parent
    if not path.is_relative_to(directory):
        raise UsageError(
            f"{path} is not in {directory}, the directory to ship",
            "Let --code-dir name a directory that holds the script.",
        )
    file = str(path.relative_to(directory))
    return Program(directory, (f"./{file}" if file.startswith("-") else file,), file)


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except PermissionError as error:
        raise _unreadable(path, error) from None


def _no_script(target: str, path: Path) -> UsageError:
    if not path.parent.is_dir():
        return UsageError(f"{target}: there is no directory {path.parent}", "Correct the path of the script.")
    missing = f"{target}: there is no such file"
    module = path.name.replace(".", "/")
    if "." in path.name and (path.parent / f"{module}.py").is_file():
        return UsageError(missing, f"To run the module: -m {target}")
    here = {entry.stem: entry.name for entry in sorted(path.parent.glob("*.py"))}
    if near := difflib.get_close_matches(path.stem, here, n=3):
        folder = os.path.dirname(target)  # noqa: PTH120 - as the user wrote it
        meant = " or ".join(os.path.join(folder, here[stem]) for stem in near)  # noqa: PTH118
        return UsageError(missing, f"Did you mean {meant}?")
    return UsageError(f"{missing} in {path.parent}", "Name a Python script.")


def _directory_as_script(target: str, path: Path) -> UsageError:
    if (path / "__main__.py").is_file():
        return UsageError(f"{target}: a directory, not a script", f"To run it as a module: -m {path.name}")
    scripts = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".py")
    if not scripts:
        return UsageError(f"{target}: a directory, not a script, and no .py file is in it", "Name a script.")
    shown = ", ".join(os.path.join(target, name) for name in scripts[:_LARGEST_SHOWN])  # noqa: PTH118
    more = ", ..." if len(scripts) > _LARGEST_SHOWN else ""
    return UsageError(f"{target}: a directory, not a script", f"Name one of its scripts: {shown}{more}")


def _find_module(name: str, directory: Path) -> Program:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        dotted = ".".join(Path(name.removesuffix(".py")).parts)
        fits = all(part.isidentifier() for part in dotted.split("."))
        raise UsageError(
            f"-m {name}: not the name of a module",
            f"Did you mean -m {dotted}?" if fits else "Write it with dots: -m package.module",
        )
    base = Path(*parts)
    for file in (base / "__main__.py", base.with_name(f"{base.name}.py")):  # a package comes before a module
        if (directory / file).is_file():
            _check_readable(directory / file)
            return Program(directory, ("-m", name), str(file))
    if (directory / base).is_dir():
        raise UsageError(
            f"-m {name}: {directory / base} is a package without __main__.py",
            f"Name one of its modules, -m {name}.MODULE, or add {base / '__main__.py'}.",
        )
    if name.endswith(".py") and (directory / base.parent).with_suffix(".py").is_file():
        meant = f"Did you mean -m {name.removesuffix('.py')}?"
        raise UsageError(f"-m {name}: not the name of a module", meant)
    modules = {path.stem for path in (directory / base.parent).glob("*.py")}
    modules |= {path.parent.name for path in (directory / base.parent).glob("*/__main__.py")}
    near = difflib.get_close_matches(base.name, sorted(modules), n=1)
    raise UsageError(
        f"-m {name}: neither {base}.py nor {base / '__main__.py'} is in {directory}",
        f"Did you mean -m {'.'.join([*parts[:-1], near[0]])}?"
        if near
        else "Start tflaunch in the directory that holds the package, or name it with --code-dir.",
    )


# --- what is shipped -------------------------------------------------------------------------------------


def bundle(directory: Path, *, keep: str = "", limit_bytes: int = LIMIT_BYTES) -> Bundle:
    """Pack `directory` as git would see it, with what git does not track yet, without what it ignores.

    `.gitignore` files are obeyed in the directory, below it and above it up to the root of its git work tree,
    with `.git/info/exclude`; caches and environments are always left out.  `keep`, a file relative to the
    directory, is packed whatever says otherwise.  A symbolic link stays one when it leads to a place inside;
    a link to a file outside becomes that file.

    Raises UsageError: more than `limit_bytes` of content (noticed before any of it is read), an unreadable
    file, a link to a directory outside.
    """
    root = directory.resolve()
    tree = _Tree(root, limit_bytes)
    tree.walk()
    if keep and keep not in tree.entries:
        tree.add_kept(keep)
    if tree.size > limit_bytes:
        raise _too_large(root, tree, limit_bytes)
    return _pack(root, tree, limit_bytes)


class _Entry(NamedTuple):
    """One thing to pack; `source` is where its content is read, `link` where a symbolic link leads."""

    kind: str  # "file" | "link" | "directory"
    source: str
    executable: bool = False
    link: str = ""
    size: int = 0


class _Ignore(NamedTuple):
    """The lines of one ignore file, last one first; they speak of paths below `base`."""

    base: str  # "" or with a slash at its end
    rules: tuple[IgnoreLine, ...]

    def verdict(self, path: str, is_directory: bool) -> bool | None:
        """True: left out; False: taken back by a `!` line; None: nothing is said."""
        below = path.removeprefix(self.base)
        for rule in self.rules:
            if rule.matches(below, is_directory):
                return not rule.takes_back
        return None


class _Tree:
    """The walk over a directory: what is to be packed, and how large it is."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.entries: dict[str, _Entry] = {}
        self.skipped: list[str] = []
        self.size = 0
        self.beyond = 0  # entries seen after the limit was passed
        self._limit = limit_bytes
        self._prefix, self._above = _ignores_above(root)

    def walk(self) -> None:
        """Visit everything; far over the limit, stop when enough was seen to name the largest."""
        pending = [("", self._above)]
        while pending and self.beyond < _ENTRIES_SEEN:
            folder, ignores = pending.pop()
            pending += self._enter(folder, ignores)

    def add_kept(self, path: str) -> None:
        """Take in a file that was left out, and the directories that lead to it."""
        source = self.root / path
        if source.is_file():
            parts = Path(path).parts
            for depth in range(1, len(parts)):
                folder = os.path.join(*parts[:depth])  # noqa: PTH118
                self.entries.setdefault(folder, _Entry("directory", str(self.root / folder)))
            self._add_file(path, str(source), source.stat())

    def _enter(self, folder: str, ignores: tuple[_Ignore, ...]) -> list[tuple[str, tuple[_Ignore, ...]]]:
        """Take in what is in one directory; returns the directories to enter next."""
        here = self.root / folder
        try:
            with os.scandir(here) as scan:
                found = list(scan)
        except OSError as error:
            raise _unreadable(here, error) from None
        names = {entry.name for entry in found}
        if folder and names.intersection(_LEFT_OUT_WITH):
            del self.entries[folder]
            return []
        base = f"{self._prefix}{folder}/" if folder else self._prefix
        if ".gitignore" in names and (own := _read_ignore(here / ".gitignore", base)):
            ignores = (*ignores, own)
        directories = []
        for entry in found:
            path = os.path.join(folder, entry.name)  # noqa: PTH118
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name in _LEFT_OUT or _is_ignored(base + entry.name, is_directory, ignores):
                continue
            self.beyond += self.size > self._limit
            try:
                self._add(path, entry)
            except FileNotFoundError:
                continue  # gone since the directory was read
            if is_directory:
                directories.append((path, ignores))
        return directories

    def _add(self, path: str, entry: os.DirEntry[str]) -> None:
        if entry.is_symlink():
            self._add_link(path, entry.path)
        elif entry.is_dir():
            self.entries[path] = _Entry("directory", entry.path)
        elif entry.is_file():
            self._add_file(path, entry.path, entry.stat())
        else:
            self.skipped.append(f"{path}: neither a file nor a directory")

    def _add_file(self, path: str, source: str, facts: os.stat_result) -> None:
        executable = bool(facts.st_mode & stat.S_IXUSR)
        self.entries[path] = _Entry("file", source, executable, size=facts.st_size)
        self.size += facts.st_size

    def _add_link(self, path: str, source: str) -> None:
        text = os.readlink(source)  # noqa: PTH115 - Path would tidy the text
        folder = os.path.dirname(path)  # noqa: PTH120
        lexical = os.path.normpath(os.path.join(folder, text))  # noqa: PTH118
        real = os.path.realpath(source)
        inside = Path(real).is_relative_to(self.root)
        if inside and not os.path.isabs(text) and lexical.split(os.sep, 1)[0] != os.pardir:  # noqa: PTH117
            self.entries[path] = _Entry("link", source, link=text)
        elif inside:  # absolute, or by a way around: neither leads there from another directory
            target = os.path.relpath(real, self.root / folder)
            self.entries[path] = _Entry("link", source, link=target)
        elif os.path.isdir(real):  # noqa: PTH112
            raise UsageError(
                f"{self.root / path}: a link to a directory outside, {real}",
                f"Add `/{path}` to {self.root / '.gitignore'} (no slash at its end), or let --code-dir name a"
                " directory that holds both.",
            )
        elif os.path.isfile(real):  # noqa: PTH113
            self._add_file(path, real, os.stat(real))  # noqa: PTH116
        else:
            self.skipped.append(f"{path}: a link to {text}, which leads nowhere")


def _ignores_above(root: Path) -> tuple[str, tuple[_Ignore, ...]]:
    """The path of `root` below its git work tree ("" or with a closing slash), and what speaks from above.

    When git ignores `root` itself, what is above has nothing to say about its content.
    """
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), None)
    if top is None:
        return "", ()
    ignores = [_read_ignore(top / ".git" / "info" / "exclude", "")]  # of lowest rank
    prefix = ""
    for part in root.relative_to(top).parts:
        ignores.append(_read_ignore(top / prefix / ".gitignore", prefix))
        if part in _LEFT_OUT or _is_ignored(prefix + part, True, _there(ignores)):
            return "", ()
        prefix += f"{part}/"
    return prefix, _there(ignores)


def _there(ignores: list[_Ignore | None]) -> tuple[_Ignore, ...]:
    return tuple(ignore for ignore in ignores if ignore is not None)


def _is_ignored(path: str, is_directory: bool, ignores: tuple[_Ignore, ...]) -> bool:
    for ignore in reversed(ignores):  # the nearest file that says anything decides
        verdict = ignore.verdict(path, is_directory)
        if verdict is not None:
            return verdict
    return False


def _read_ignore(path: Path, base: str) -> _Ignore | None:
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # .git is a file in a linked work tree
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    lines = os.fsdecode(text.removeprefix(b"\xef\xbb\xbf")).replace("\r\n", "\n").split("\n")
    return _Ignore(base, tuple(reversed(ignore_lines(lines, str(path)))))


def _unreadable(path: Path | str, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be read: {error.strerror}",
        f"chmod u+r {shlex.quote(str(path))}, or add it to .gitignore if the program does not need it.",
    )


def _pack(root: Path, tree: _Tree, limit_bytes: int) -> Bundle:
    entries: list[tuple[str | int, ...]] = []
    contents: dict[str, bytes] = {}
    size = files = 0
    # Parents sort before what is in them; bytes sort alike on every platform.
    for path, entry in sorted(tree.entries.items(), key=lambda item: os.fsencode(item[0])):
        if entry.kind == "directory":
            entries.append((path, "d"))
            continue
        if entry.kind == "link":
            entries.append((path, "l", entry.link))
            continue
        try:
            with open(entry.source, "rb") as stream:  # noqa: PTH123
                content = stream.read(limit_bytes - size + 1)
        except FileNotFoundError:
            continue  # gone since the walk
        except OSError as error:
            raise _unreadable(entry.source, error) from None
        size += len(content)
        files += 1
        if size > limit_bytes:
            raise _grew(root, path, limit_bytes)
        digest = store.digest_of(content)
        contents.setdefault(digest, content)
        entries.append((path, "x" if entry.executable else "f", digest, len(content), zlib.crc32(content)))
    return Bundle(tuple(entries), contents, size, files, tuple(tree.skipped))


def _grew(root: Path, path: str, limit_bytes: int) -> UsageError:
    return UsageError(
        f"{root}: more than {_amount(limit_bytes)} to ship: {path} grew while it was read",
        "Add files that programs write to .gitignore.",
    )


def _too_large(root: Path, tree: _Tree, limit_bytes: int) -> UsageError:
    at_least = "at least " if tree.beyond >= _ENTRIES_SEEN else ""
    largest = "\n".join(f"  {_amount(size):>9}  {path}" for path, size in _largest(tree))
    unlikely = ""
    if root in (Path("/"), _home()):
        what = "your home directory" if root == _home() else "the root of the file system"
        unlikely = f" (it is {what}: is the script where you want it?)"
    return UsageError(
        f"{root}: {at_least}{_amount(tree.size)} to ship, {_amount(limit_bytes)} is the limit{unlikely}; the"
        f" largest are\n{largest}",
        "Add what the program does not need to .gitignore; or put the code on the hosts yourself and use"
        " --no-sync, or `workdir:` in the hostfile.",
    )


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def _largest(tree: _Tree) -> list[tuple[str, int]]:
    """The largest entries of the top, each narrowed down to the part that makes it large."""
    sizes: dict[str, int] = defaultdict(int)
    parts: dict[str, set[str]] = defaultdict(set)
    for path, entry in tree.entries.items():
        below = path
        while entry.kind == "file" and below:
            sizes[below] += entry.size
            above = os.path.dirname(below)  # noqa: PTH120
            parts[above].add(below)
            below = above
    largest = []
    for path in sorted(parts[""], key=lambda path: -sizes[path])[:_LARGEST_SHOWN]:
        narrow = path
        while parts[narrow]:
            part = max(parts[narrow], key=lambda path: sizes[path])
            if sizes[part] < _LARGEST_SHARE * sizes[narrow]:
                break
            narrow = part
        closing = "/" if parts[narrow] else ""
        largest.append((narrow + closing, sizes[narrow]))
    return largest


def _amount(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
