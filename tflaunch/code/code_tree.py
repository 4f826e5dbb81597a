"""The walk over a code directory: what of it is shipped, and what stays on this machine and why."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tflaunch.code import fetched_mark, secrets
from tflaunch.code.fetched_mark import FetchedMarks
from tflaunch.inputs import gitignore
from tflaunch.inputs.gitignore import Ignore, is_ignored, left_out_by, unreadable, with_those_in, work_tree
from tflaunch.inputs.patterns import IgnoreLine
from tflaunch.protocol.errors import UsageError

ENTRIES_BEYOND = 100_000  # entries to look at beyond the limit, to name the largest ones

# Never code, ignored or not.  Environments (pyvenv.cfg, conda-meta) and tagged caches are found by content.
_LEFT_OUT = {
    ".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox",
    ".ipynb_checkpoints", ".DS_Store",
    f"tflaunch-{os.getuid()}",  # runs of this very machine, if its `run_dir:` is in here
}  # fmt: skip
_LEFT_OUT_WITH = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")
_FETCHED, _NO_FILE = "it was fetched from hosts", "neither a file nor a directory"


class Left(NamedTuple):
    """Something in the directory that is not shipped."""

    path: str  # relative to the directory that is shipped; a directory has a slash at its end
    kind: (
        str  # ignored, secret, fetched, cache (also .git and the like), skipped (not a file), mark (of fetch)
    )
    why: str


class TreeEntry(NamedTuple):
    """One thing to ship; `source` is the path of its content here, `link` the text of a symbolic link."""

    kind: str  # "file" | "link" | "directory"
    source: str
    executable: bool = False
    link: str = ""
    size: int = 0


class _Folder(NamedTuple):
    """A directory to enter."""

    path: str  # its place in what is shipped, "" for the code directory itself
    real: str  # the path at which it is read
    base: str = ""  # its path below its git work tree, as Ignore has it
    ignores: tuple[Ignore, ...] = ()
    mount: str = ""  # the code directory, or the goal of a followed link: links lead inside of it, or out
    asked: bool = False  # --ship names it, or a directory that it is in: ship it though it was fetched


class _Link(NamedTuple):
    """A symbolic link that leads out of the directory that is shipped."""

    path: str
    source: str
    text: str
    real: str


class CodeTree:
    """What of a code directory is shipped, how large it is, and what stays here."""

    def __init__(
        self,
        root: Path,
        ship: Collection[str],
        follow_links: bool,
        limit_bytes: int,
    ) -> None:
        """`root`: the code directory.  `ship`: paths in it that are shipped whatever they are.

        `follow_links`: ship what links lead to, wherever that is.  Beyond `limit_bytes` the walk soon ends.
        """
        self.root = str(root)
        self.entries: dict[str, TreeEntry] = {}  # by their places in what is shipped
        self.left: dict[str, Left] = {}
        self.links: list[
            tuple[str, str]
        ] = []  # (path, goal) of links that lead out, and are shipped as links
        self.odd: dict[str, None] = {}  # suspicious lines of ignore files: the user cannot mean what they say
        self.size = 0  # bytes of the files in `entries`
        self.beyond = 0  # entries seen after the limit was passed
        self.ship = frozenset(ship)
        self._follow = follow_links
        self._limit = limit_bytes
        self._top = work_tree(root)  # of git
        self._mounts = {self.root: ""}  # real directory -> its place in what is shipped
        self._outward: list[_Link] = []
        self._marks = FetchedMarks(root)

    @property
    def cut_short(self) -> bool:
        """Whether the walk ended before it had seen everything."""
        return self.beyond >= ENTRIES_BEYOND

    def leave(self, path: str, kind: str, why: str, is_directory: bool = False) -> None:
        """Note that `path` is not shipped."""
        self.left[path] = Left(path + "/" * is_directory, kind, why)

    def walk(self) -> None:
        """Take in everything; far over the limit, stop when enough was seen to name the largest."""
        base, ignores, _ = gitignore.above(Path(self.root), self._top, _LEFT_OUT)
        self._note_odd(ignores)
        self._visit(_Folder("", self.root, base, ignores, self.root))

    def add_module(self, path: str, keep: str) -> None:
        """Take in one file that the program imports, and nothing else from its directory."""
        source = os.path.join(self.root, path)  # noqa: PTH118
        if path != keep and path not in self.ship and self._marks.covers(path):
            self.leave(path, "fetched", _FETCHED)
            return
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
            self.left.pop(path, None)

    def add_shipped(self) -> None:
        """Take in what `ship` names, though it was left out."""
        for path in sorted(self.ship):
            source = os.path.join(self.root, path)  # noqa: PTH118
            if self._shipped_place(os.path.realpath(os.path.dirname(source))) is None:  # noqa: PTH120
                raise UsageError(
                    f"--ship {path}: a link leads out of {self.root} there", "Add --follow-links."
                )
            self._add_parents(path)
            self.left.pop(path, None)
            if os.path.isdir(source) and (path in self.entries or not os.path.islink(source)):  # noqa: PTH112, PTH114
                entry = self.entries.setdefault(path, TreeEntry("directory", source))
                if entry.kind == "directory":
                    self._visit(_Folder(path, entry.source, mount=self.root, asked=True))
            elif path in self.entries:
                continue
            elif os.path.islink(source):  # noqa: PTH114
                self._add_link(path, source, self.root)
            else:
                self._add_any(path, source)

    def settle_links(self) -> None:
        """Decide what becomes of links that lead out, in an order that does not depend on the file system."""
        while self._outward:
            links, self._outward = sorted(self._outward), []
            for link in links:
                self._settle(link)

    def dangling(self) -> Iterator[tuple[str, str]]:
        """(path, goal) of each link that leads to something here that is left out, so to nothing on the hosts."""
        for path, entry in sorted(self.entries.items()):
            if entry.kind == "link" and os.path.exists(entry.source):  # noqa: PTH110
                place = self._shipped_place(os.path.realpath(entry.source))
                if place not in (None, ".") and place not in self.entries:
                    yield path, place

    def _visit(self, first: _Folder) -> None:
        pending = [first]
        while pending and not self.cut_short:
            pending += self._enter(pending.pop())

    def _enter(self, folder: _Folder) -> list[_Folder]:
        """Take in what is in one directory; returns the directories to enter next."""
        try:
            with os.scandir(folder.real) as scan:
                found = list(scan)
        except OSError as error:
            raise unreadable(folder.real, error) from None
        names = {entry.name for entry in found}
        if folder.path and folder.path not in self.ship:
            fetched = fetched_mark.NAME in names and self._marks.read(folder.real) and not folder.asked
            if fetched or (tags := names.intersection(_LEFT_OUT_WITH)):
                del self.entries[folder.path]
                if fetched:
                    self.leave(folder.path, "fetched", _FETCHED, True)
                else:
                    self.leave(folder.path, "cache", f"{min(tags)} is in it, and that is never code", True)
                return []
        elif fetched_mark.NAME in names:
            self._marks.read(folder.real)
        base = folder.base
        ignores = with_those_in(Path(folder.real), base, folder.ignores, names)
        if ignores is not folder.ignores:
            self._note_odd(ignores)
        directories = []
        for entry in found:
            path = f"{folder.path}/{entry.name}" if folder.path else entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name in _LEFT_OUT:
                self.leave(path, "cache", "it is never code", is_directory)
                continue
            if entry.name == fetched_mark.NAME:
                self.leave(path, "mark", "tflaunch's own, of what was fetched", is_directory)
                continue
            if by := left_out_by(base + entry.name, is_directory, ignores):
                self.leave(path, "ignored", self._shown_rule(*by), is_directory)
                continue
            if not folder.asked and path not in self.ship and self._marks.has(entry.path, is_directory):
                self.leave(path, "fetched", _FETCHED, is_directory)
                continue
            self.beyond += self.size > self._limit
            try:
                taken = self._add(path, entry, folder.mount)
            except FileNotFoundError:
                continue  # gone since the directory was read
            if is_directory and taken:
                below = f"{base}{entry.name}/"
                directories.append(_Folder(path, entry.path, below, ignores, folder.mount, folder.asked))
        return directories

    def _shown_rule(self, file: Path, rule: IgnoreLine) -> str:
        return f"{os.path.relpath(file, self.root)}:{rule.number}: {rule.text}"

    def _note_odd(self, ignores: Iterable[Ignore]) -> None:
        for ignore in ignores:
            for rule in ignore.rules:
                if rule.odd:
                    self.odd[f"{ignore.file}:{rule.number}:1: {rule.text!r} {rule.odd}"] = None

    def _add(self, path: str, entry: os.DirEntry[str], mount: str) -> bool:
        """Take in one entry of a directory, unless it is a secret; returns whether it was taken in."""
        if entry.is_symlink():
            if path not in self.entries:  # else it was taken in before: --ship names a directory above it
                self._add_link(path, entry.path, mount)
        elif self._is_secret(path, entry.is_dir()):
            return False
        elif entry.is_dir():
            self.entries.setdefault(path, TreeEntry("directory", entry.path))
            self.left.pop(path, None)
        elif entry.is_file():
            self._add_file(path, entry.path, entry.stat())
        else:
            self.leave(path, "skipped", _NO_FILE)
        return True

    def _add_any(self, path: str, source: str) -> None:
        facts = os.stat(source)  # noqa: PTH116
        if stat.S_ISREG(facts.st_mode):
            self._add_file(path, source, facts)
        else:
            self.leave(path, "skipped", _NO_FILE)

    def _is_secret(self, path: str, is_directory: bool, real: str = "") -> bool:
        if path in self.ship:
            return False
        why = secrets.by_name(path, is_directory)
        if real and not why:  # `real` is what a link leads to
            why = secrets.by_name(real, is_directory) or secrets.in_secret_directory(real)
        if why:
            self.leave(path, "secret", why, is_directory)
        return bool(why)

    def _add_file(self, path: str, source: str, facts: os.stat_result) -> None:
        if path in self.entries:
            return
        self.left.pop(path, None)
        executable = bool(facts.st_mode & stat.S_IXUSR)
        self.entries[path] = TreeEntry("file", source, executable, size=facts.st_size)
        self.size += facts.st_size

    def _add_parents(self, path: str) -> None:
        parts = Path(path).parts
        for depth in range(1, len(parts)):
            folder = os.path.join(*parts[:depth])  # noqa: PTH118
            self.entries.setdefault(folder, TreeEntry("directory", os.path.join(self.root, folder)))  # noqa: PTH118

    def _add_link(self, path: str, source: str, mount: str) -> None:
        self.left.pop(path, None)
        text = os.readlink(source)  # noqa: PTH115 - Path would tidy the text
        real = os.path.realpath(source)
        place = self._shipped_place(real)
        if place is None:
            self._outward.append(_Link(path, source, text, real))
            return
        if not _stays(text, os.path.dirname(source), mount):  # noqa: PTH120
            # An absolute link, or one that passes outside, would not lead there on the hosts: their directory differs.
            text = os.path.relpath(place, os.path.dirname(path) or ".")  # noqa: PTH120
        self.entries[path] = TreeEntry("link", source, link=text)

    def _settle(self, link: _Link) -> None:
        path, real = link.path, link.real
        if self._shipped_place(real) is not None:  # by another link that was followed
            self._add_link(path, link.source, self.root)
        elif not self._may_follow(real):
            # A relative link would lead somewhere else on the hosts.
            goal = link.text if os.path.isabs(link.text) else real  # noqa: PTH117
            self.entries[path] = TreeEntry("link", link.source, link=goal)
            self.links.append((path, goal))
        elif os.path.isdir(real):  # noqa: PTH112
            if not self._is_secret(path, True, real):
                self.entries[path] = TreeEntry("directory", real)
                self._mounts[real] = path
                base, ignores, _ = gitignore.above(Path(real), work_tree(Path(real)), _LEFT_OUT)
                self._visit(_Folder(path, real, base, ignores, real))
        elif not self._is_secret(path, False, real):
            self._add_any(path, real)

    def _may_follow(self, real: str) -> bool:
        """Whether what is at `real` may be shipped in the place of a link to it."""
        if not os.path.exists(real) or _is_in(self.root, real):  # noqa: PTH110 - a directory that holds the code would hold itself
            return False
        if self._follow:
            return True
        if self._top is None or not _is_in(real, str(self._top)) or ".git" in Path(real).parts:
            return False
        folder = Path(real).parent
        base, ignores, left_out = gitignore.above(folder, self._top, _LEFT_OUT)
        ignores = with_those_in(folder, base, ignores)
        name = os.path.basename(real)  # noqa: PTH119
        return not left_out and not is_ignored(base + name, os.path.isdir(real), ignores)  # noqa: PTH112

    def _shipped_place(self, real: str) -> str | None:
        """The place of a path of this machine in what is shipped: "." for all of it, None if it is not shipped."""
        for mount, place in self._mounts.items():
            if _is_in(real, mount):
                return os.path.normpath(os.path.join(place, os.path.relpath(real, mount)))  # noqa: PTH118
        return None


def _stays(text: str, folder: str, mount: str) -> bool:
    """Whether a link in `folder` leads to its goal without leaving `mount` on the way."""
    parts = Path(text).parts
    ups = sum(part == os.pardir for part in parts)
    if os.path.isabs(text) or os.pardir in parts[ups:]:  # noqa: PTH117
        return False
    top = os.path.normpath(os.path.join(folder, *parts[:ups]))  # noqa: PTH118
    return _is_in(top, mount) and _is_in(os.path.realpath(os.path.join(top, *parts[ups:-1])), mount)  # noqa: PTH118


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
