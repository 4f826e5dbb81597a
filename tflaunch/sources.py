"""The user's code: what is in its directory, less what stays on this machine, told the same every time."""

from __future__ import annotations

import dataclasses
import functools
import os
import stat
import sys
import warnings
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tflaunch import code_secrets, gitignore, wire
from tflaunch.agent import store
from tflaunch.code_secrets import Secret
from tflaunch.errors import UsageError
from tflaunch.gitignore import Ignore, is_ignored, unreadable, work_tree
from tflaunch.job import by_python
from tflaunch.program import Program, home_directories

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


@dataclass(frozen=True)
class Bundle:
    """What is in a directory, as tflaunch.agent.store has it: paths relative to it, parents first.

    `digest` is over names, kinds, execute bits and content: the same tree has the same digest wherever, whenever
    and with whatever Python it was made; but for links that lead out of it, which are made absolute.
    """

    entries: tuple[tuple[str | int, ...], ...]
    contents: Mapping[str, bytes]  # by their digests
    size: int  # bytes of content, that of equal files more than once
    files: int  # symbolic links and directories not counted
    skipped: tuple[str, ...] = ()  # what cannot be shipped and was left: sockets, pipes, devices
    directory: str = ""  # where it comes from
    secrets: tuple[Secret, ...] = ()  # what stays here, each with why
    links: tuple[
        tuple[str, str], ...
    ] = ()  # (path, where to) of those that lead out, and are shipped as links
    ignored: int = 0  # files and whole directories that .gitignore leaves out
    caches: int = 0  # likewise what is never code: caches, environments, .git
    program: str = ""  # the path of the program, if a Python runs it

    @functools.cached_property
    def _text(self) -> bytes:
        return wire.dumps(self.entries).encode("ascii")

    @functools.cached_property
    def digest(self) -> str:
        return store.digest_of(self._text)

    @property
    def to_read(self) -> dict[str, str] | None:
        """The program, and by which Python it can be read for certain, as an agent takes it; None: it is no Python."""
        entry = next((entry for entry in self.entries if self.program and entry[0] == self.program), ("", ""))
        if entry[1] not in ("f", "x"):
            return None
        can = _readable(self.contents[str(entry[2])])
        return {"file": self.program, "read_by": ".".join(map(str, sys.version_info[:2])) if can else ""}

    @functools.cached_property
    def manifest(self) -> bytes:
        """The entries as they are sent."""
        return zlib.compress(self._text)


def code_of(program: Program, ship: Collection[str] = (), follow_links: bool = False) -> Bundle:
    """The code of that program: its directory, or, where more lies in it than code, the modules that it imports."""
    only = None
    if program.place:
        from tflaunch.code_imports import imported_files

        only = imported_files(program.directory, program.file, program.package)
    code = bundle(program.directory, keep=program.file, only=only, ship=ship, follow_links=follow_links)
    return dataclasses.replace(code, program=program.file if by_python(program.argv) else "")


def _readable(source: bytes) -> bool:
    """Whether this Python can read such a program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def bundle(
    directory: Path,
    *,
    keep: str = "",
    only: Collection[str] | None = None,
    ship: Collection[str] = (),
    follow_links: bool = False,
    limit_bytes: int = LIMIT_BYTES,
) -> Bundle:
    """Pack `directory` as git would see it, with what git does not track yet, without what it ignores.

    `.gitignore` files are obeyed in the directory, below it and above it up to the root of its git work tree,
    with `.git/info/exclude`; caches and environments are always left out, and so are secrets, which are told.
    `keep`, a file relative to the directory, is packed whatever says otherwise.  With `only`, no more than these files
    are packed.  `ship` names files and directories, relative to `directory`, that are packed all the same; secrets in
    such a directory only when they are named themselves.

    A symbolic link stays one.  One that leads out of the directory becomes what it leads to if that is in the same git
    work tree, and not ignored there, or with `follow_links`; else it stays a link, to where it leads here.

    Raises UsageError: more than `limit_bytes` of content (noticed before any of it is read), an unreadable
    file, nothing there of the name of one of `ship`.
    """
    root = directory.resolve()
    tree = _Tree(root, {_inside(root, path) for path in ship}, follow_links, limit_bytes)
    if only is None:
        tree.walk()
    else:
        for path in only:
            tree.add_module(path)
    if keep and keep not in tree.entries:
        tree.add_kept(keep)
    tree.settle_links()
    tree.add_shipped()
    tree.settle_links()
    if tree.size > limit_bytes:
        raise _too_large(root, tree, limit_bytes)
    return _pack(root, tree, keep, limit_bytes)


def _inside(root: Path, path: str) -> str:
    """What --ship names, relative to `root`; raises UsageError."""
    inside = os.path.normpath(os.path.join(root, path))  # noqa: PTH118
    hint = f"Name a file or directory, relative to {root}."
    if not path or Path(inside) == root:
        raise UsageError(f"--ship {path}: that is all of {root}, and secrets are shipped one by one", hint)
    if not Path(inside).is_relative_to(root):
        raise UsageError(f"--ship {path}: it is not in {root}, the directory to ship", hint)
    if not os.path.lexists(inside):
        raise UsageError(f"--ship {path}: there is no such file in {root}", hint)
    folder = Path(inside).parent.resolve()
    if not folder.is_relative_to(root):  # by a link, which is perhaps followed
        return str(Path(inside).relative_to(root))
    return str(folder.relative_to(root) / Path(inside).name)


class _Entry(NamedTuple):
    """One thing to pack; `source` is where its content is read, `link` where a symbolic link leads."""

    kind: str  # "file" | "link" | "directory"
    source: str
    executable: bool = False
    link: str = ""
    size: int = 0


class _Folder(NamedTuple):
    """A directory to enter."""

    path: str  # in what is shipped, "" for the whole
    real: str  # where it is read
    base: str = ""  # its path below its git work tree, as Ignore has it
    ignores: tuple[Ignore, ...] = ()
    mount: str = ""  # the root, or what a link was followed to: a link leads in there, or out


class _Link(NamedTuple):
    """A symbolic link that leads out of the directory that it is in."""

    path: str
    source: str
    text: str
    real: str


class _Tree:
    """The walk over a directory: what is to be packed, and how large it is."""

    def __init__(
        self,
        root: Path,
        ship: Collection[str] = (),
        follow_links: bool = False,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self.root = str(root)
        self.entries: dict[str, _Entry] = {}
        self.skipped: list[str] = []
        self.secrets: list[Secret] = []
        self.links: list[tuple[str, str]] = []
        self.ignored = self.caches = 0
        self.size = 0
        self.beyond = 0  # entries seen after the limit was passed
        self.ship = frozenset(ship)
        self._follow = follow_links
        self._limit = limit_bytes
        self._top = work_tree(root)
        self._mounts = {self.root: ""}  # real directory -> its place in what is shipped
        self._outward: list[_Link] = []

    def walk(self) -> None:
        """Visit everything; far over the limit, stop when enough was seen to name the largest."""
        base, ignores, _ = gitignore.above(Path(self.root), self._top, _LEFT_OUT)
        self._visit(_Folder("", self.root, base, ignores, self.root))

    def add_module(self, path: str) -> None:
        """Take in one file that the program imports, and nothing else of what is around it."""
        source = os.path.join(self.root, path)  # noqa: PTH118
        real = os.path.realpath(source)
        if self._shipped_place(real) is not None or self._may_follow(real):
            self._add_parents(path)
            self._add_file(path, source, os.stat(source))  # noqa: PTH116
            return
        parts = Path(path).parts
        for depth in range(1, len(parts) + 1):
            part = os.path.join(*parts[:depth])  # noqa: PTH118
            if os.path.islink(os.path.join(self.root, part)):  # noqa: PTH114, PTH118
                self._add_parents(part)
                self._add_link(part, os.path.join(self.root, part), self.root)  # noqa: PTH118
                return

    def add_kept(self, path: str) -> None:
        """Take in a file that was left out, and the directories that lead to it."""
        source = os.path.join(self.root, path)  # noqa: PTH118
        if os.path.isfile(source):  # noqa: PTH113
            self._add_parents(path)
            self._add_file(path, source, os.stat(source))  # noqa: PTH116

    def add_shipped(self) -> None:
        """Take in what was left out and is named all the same."""
        for path in sorted(self.ship - self.entries.keys()):
            source = os.path.join(self.root, path)  # noqa: PTH118
            if self._shipped_place(os.path.realpath(os.path.dirname(source))) is None:  # noqa: PTH120
                raise UsageError(
                    f"--ship {path}: a link leads out of {self.root} there", "Add --follow-links."
                )
            self._add_parents(path)
            if os.path.islink(source):  # noqa: PTH114
                self._add_link(path, source, self.root)
            elif os.path.isdir(source):  # noqa: PTH112
                self.entries[path] = _Entry("directory", source)
                self._visit(_Folder(path, source, mount=self.root))
            else:
                self._add_any(path, source)
        self.secrets = [secret for secret in self.secrets if secret.path.rstrip("/") not in self.ship]

    def settle_links(self) -> None:
        """Decide what becomes of the links that lead out: in the same order whatever the file system's is."""
        while self._outward:
            links, self._outward = sorted(self._outward), []
            for link in links:
                self._settle(link)

    def _visit(self, first: _Folder) -> None:
        pending = [first]
        while pending and self.beyond < _ENTRIES_SEEN:
            pending += self._enter(pending.pop())

    def _enter(self, folder: _Folder) -> list[_Folder]:
        """Take in what is in one directory; returns the directories to enter next."""
        try:
            with os.scandir(folder.real) as scan:
                found = list(scan)
        except OSError as error:
            raise unreadable(folder.real, error) from None
        names = {entry.name for entry in found}
        if folder.path and names.intersection(_LEFT_OUT_WITH):
            del self.entries[folder.path]
            self.caches += 1
            return []
        base, ignores = folder.base, folder.ignores
        if gitignore.NAME in names and (own := gitignore.read(Path(folder.real, gitignore.NAME), base)):
            ignores = (*ignores, own)
        directories = []
        for entry in found:
            path = f"{folder.path}/{entry.name}" if folder.path else entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name in _LEFT_OUT:
                self.caches += 1
                continue
            if is_ignored(base + entry.name, is_directory, ignores):
                self.ignored += 1
                continue
            self.beyond += self.size > self._limit
            try:
                taken = self._add(path, entry, folder.mount)
            except FileNotFoundError:
                continue  # gone since the directory was read
            if is_directory and taken:
                directories.append(_Folder(path, entry.path, f"{base}{entry.name}/", ignores, folder.mount))
        return directories

    def _add(self, path: str, entry: os.DirEntry[str], mount: str) -> bool:
        """Take it in, unless it is a secret."""
        if entry.is_symlink():
            self._add_link(path, entry.path, mount)
        elif self._is_secret(path, entry.is_dir()):
            return False
        elif entry.is_dir():
            self.entries[path] = _Entry("directory", entry.path)
        elif entry.is_file():
            self._add_file(path, entry.path, entry.stat())
        else:
            self.skipped.append(f"{path}: neither a file nor a directory")
        return True

    def _add_any(self, path: str, source: str) -> None:
        facts = os.stat(source)  # noqa: PTH116
        if stat.S_ISREG(facts.st_mode):
            self._add_file(path, source, facts)
        else:
            self.skipped.append(f"{path}: neither a file nor a directory")

    def _is_secret(self, path: str, is_directory: bool, real: str = "") -> bool:
        if path in self.ship:
            return False
        why = code_secrets.by_name(path, is_directory)
        if real and not why:  # what a link leads to
            why = code_secrets.by_name(real, is_directory) or code_secrets.in_secret_directory(real)
        if why:
            self.secrets.append(Secret(path + "/" * is_directory, why))
        return bool(why)

    def _add_file(self, path: str, source: str, facts: os.stat_result) -> None:
        executable = bool(facts.st_mode & stat.S_IXUSR)
        self.entries[path] = _Entry("file", source, executable, size=facts.st_size)
        self.size += facts.st_size

    def _add_parents(self, path: str) -> None:
        parts = Path(path).parts
        for depth in range(1, len(parts)):
            folder = os.path.join(*parts[:depth])  # noqa: PTH118
            self.entries.setdefault(folder, _Entry("directory", os.path.join(self.root, folder)))  # noqa: PTH118

    # -- links

    def _add_link(self, path: str, source: str, mount: str) -> None:
        text = os.readlink(source)  # noqa: PTH115 - Path would tidy the text
        real = os.path.realpath(source)
        place = self._shipped_place(real)
        if place is None:
            self._outward.append(_Link(path, source, text, real))
            return
        if not _stays(text, os.path.dirname(source), mount):  # noqa: PTH120
            # Absolute, or by a way around: neither leads there from another directory.
            text = os.path.relpath(place, os.path.dirname(path) or ".")  # noqa: PTH120
        self.entries[path] = _Entry("link", source, link=text)

    def _settle(self, link: _Link) -> None:
        path, real = link.path, link.real
        if self._shipped_place(real) is not None:  # another link was followed there
            self._add_link(path, link.source, self.root)
        elif not self._may_follow(real):
            # Relative, it would lead to somewhere else from where the code is copied to.
            goal = link.text if os.path.isabs(link.text) else real  # noqa: PTH117
            self.entries[path] = _Entry("link", link.source, link=goal)
            self.links.append((path, goal))
        elif os.path.isdir(real):  # noqa: PTH112
            if not self._is_secret(path, True, real):
                self.entries[path] = _Entry("directory", real)
                self._mounts[real] = path
                base, ignores, _ = gitignore.above(Path(real), work_tree(Path(real)), _LEFT_OUT)
                self._visit(_Folder(path, real, base, ignores, real))
        elif not self._is_secret(path, False, real):
            self._add_any(path, real)

    def _may_follow(self, real: str) -> bool:
        """Whether what is there may be shipped in the place of a link to it."""
        if not os.path.exists(real) or _is_in(self.root, real):  # noqa: PTH110 - what holds the code has no end
            return False
        if self._follow:
            return True
        if self._top is None or not _is_in(real, str(self._top)) or ".git" in Path(real).parts:
            return False
        folder = Path(real).parent
        base, ignores, left_out = gitignore.above(folder, self._top, _LEFT_OUT)
        if own := gitignore.read(folder / gitignore.NAME, base):
            ignores = (*ignores, own)
        name = os.path.basename(real)  # noqa: PTH119
        return not left_out and not is_ignored(base + name, os.path.isdir(real), ignores)  # noqa: PTH112

    def _shipped_place(self, real: str) -> str | None:
        """Where that is in what is shipped: "." for all of it, None for nowhere."""
        for mount, place in self._mounts.items():
            if _is_in(real, mount):
                return os.path.normpath(os.path.join(place, os.path.relpath(real, mount)))  # noqa: PTH118
        return None


def _stays(text: str, folder: str, mount: str) -> bool:
    """Whether a link in `folder` leads to its place in `mount` without leaving it on the way."""
    parts = Path(text).parts
    ups = sum(part == os.pardir for part in parts)
    if os.path.isabs(text) or os.pardir in parts[ups:]:  # noqa: PTH117
        return False
    top = os.path.normpath(os.path.join(folder, *parts[:ups]))  # noqa: PTH118
    return _is_in(top, mount) and _is_in(os.path.realpath(os.path.join(top, *parts[ups:-1])), mount)  # noqa: PTH118


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _pack(root: Path, tree: _Tree, keep: str, limit_bytes: int) -> Bundle:
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
            raise unreadable(entry.source, error) from None
        if path != keep and path not in tree.ship and (why := code_secrets.by_content(path, content)):
            tree.secrets.append(Secret(path, why))
            continue
        size += len(content)
        files += 1
        if size > limit_bytes:
            raise _grew(root, path, limit_bytes)
        digest = store.digest_of(content)
        contents.setdefault(digest, content)
        entries.append((path, "x" if entry.executable else "f", digest, len(content), zlib.crc32(content)))
    return Bundle(
        tuple(entries),
        contents,
        size,
        files,
        tuple(sorted(tree.skipped)),
        str(root),
        tuple(sorted(tree.secrets)),
        tuple(sorted(tree.links)),
        tree.ignored,
        tree.caches,
    )


def _grew(root: Path, path: str, limit_bytes: int) -> UsageError:
    return UsageError(
        f"{root}: more than {_amount(limit_bytes)} to ship: {path} grew while it was read",
        "Add files that programs write to .gitignore.",
    )


def _too_large(root: Path, tree: _Tree, limit_bytes: int) -> UsageError:
    at_least = "at least " if tree.beyond >= _ENTRIES_SEEN else ""
    largest = "\n".join(f"  {_amount(size):>9}  {path}" for path, size in _largest(tree))
    unlikely = ""
    if root in (Path("/"), *home_directories()):
        what = "the root of the file system" if root == Path("/") else "your home directory"
        unlikely = f" (it is {what}: is the script where you want it?)"
    return UsageError(
        f"{root}: {at_least}{_amount(tree.size)} to ship, {_amount(limit_bytes)} is the limit{unlikely}; the"
        f" largest are\n{largest}",
        "Add what the program does not need to .gitignore; or put the code on the hosts yourself and use"
        " --no-sync, or `workdir:` in the hostfile.",
    )


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
