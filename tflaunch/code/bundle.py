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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tflaunch.code import fetched_mark, secrets
from tflaunch.code.program import Program, home_directories
from tflaunch.code.secrets import Secret
from tflaunch.inputs import gitignore
from tflaunch.inputs.gitignore import Ignore, is_ignored, left_out_by, unreadable, with_those_in, work_tree
from tflaunch.inputs.patterns import IgnoreLine
from tflaunch.protocol import code_manifest, wire
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import by_python

LIMIT_BYTES = 100 * 2**20  # unless --max-code says otherwise
_READ_BYTES = 2 * 2**20  # of a program; a larger one is read by the hosts alone
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
_FETCHED, _NO_FILE = "it was fetched from hosts", "neither a file nor a directory"


class Left(NamedTuple):
    """What is in the directory and is not shipped."""

    path: str  # relative to the directory that is shipped; a directory has a slash at its end
    kind: str  # ignored, secret, fetched, cache (and the like), skipped (no file), mark (of what was fetched)
    why: str


@dataclass(frozen=True)
class Bundle:
    """What is in a directory, as tflaunch.agent.files.code_store has it: paths relative to it, parents first.

    `digest` is over names, kinds, execute bits and content: the same tree has the same digest wherever, whenever
    and with whatever Python it was made; but for links that lead out of it, which are made absolute.
    """

    entries: tuple[tuple[str | int, ...], ...]
    contents: Mapping[str, bytes]  # by their digests
    size: int  # bytes of content, that of equal files more than once
    files: int  # symbolic links and directories not counted
    directory: str = ""  # where it comes from
    left: tuple[Left, ...] = ()  # what stays here: files, and whole directories
    links: tuple[
        tuple[str, str], ...
    ] = ()  # (path, where to) of those that lead out, and are shipped as links
    odd: tuple[str, ...] = ()  # lines of ignore files that cannot be meant
    program: str = ""  # the path of the program, if a Python runs it
    place: str = ""  # what the directory is, where only the modules that the program imports are shipped

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """What stays here as it is one."""
        return tuple(Secret(left.path, left.why) for left in self.left if left.kind == "secret")

    @property
    def skipped(self) -> tuple[str, ...]:
        """What cannot be shipped: sockets, pipes, devices."""
        return tuple(f"{left.path}: {left.why}" for left in self.left if left.kind == "skipped")

    @property
    def fetched(self) -> tuple[str, ...]:
        """What fetch brought here."""
        return tuple(left.path for left in self.left if left.kind == "fetched")

    @property
    def ignored(self) -> int:
        """How many files and whole directories ignore files leave out."""
        return sum(left.kind == "ignored" for left in self.left)

    @property
    def caches(self) -> int:
        """How many are never code: caches, environments, .git."""
        return sum(left.kind == "cache" for left in self.left)

    @functools.cached_property
    def _text(self) -> bytes:
        return wire.dumps(self.entries).encode("ascii")

    @functools.cached_property
    def digest(self) -> str:
        return code_manifest.digest_of(self._text)

    @property
    def to_read(self) -> dict[str, str] | None:
        """The program, and by which Python it can be read for certain, as an agent takes it; None: it is no text."""
        entry = next((entry for entry in self.entries if self.program and entry[0] == self.program), ("", ""))
        content = self.contents[str(entry[2])] if entry[1] in ("f", "x") else b"\0"
        if (
            b"\0" in content
        ):  # a zip archive, or what is compiled already: Python runs them, and does not read them
            return None
        can = len(content) <= _READ_BYTES and _readable(content)
        return {"file": self.program, "read_by": ".".join(map(str, sys.version_info[:2])) if can else ""}

    @functools.cached_property
    def manifest(self) -> bytes:
        """The entries as they are sent."""
        return zlib.compress(self._text)


def code_of(
    program: Program,
    ship: Collection[str] = (),
    follow_links: bool = False,
    limit_bytes: int = LIMIT_BYTES,
) -> Bundle:
    """The code of that program: its directory, or, where more lies in it than code, the modules that it imports."""
    only = None
    if program.place:
        from tflaunch.code.imports import imported_files

        only = imported_files(program.directory, program.file, program.package)
    made = bundle(
        program.directory,
        keep=program.file,
        only=only,
        ship=ship,
        follow_links=follow_links,
        limit_bytes=limit_bytes,
    )
    run_by_python = program.file if by_python(program.argv) else ""
    return dataclasses.replace(made, place=program.place, program=run_by_python)


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

    `.gitignore` and `.tflaunchignore` files are obeyed in the directory, below it and above it up to the root of its
    git work tree, with `.git/info/exclude`; caches and environments are always left out, and so are secrets, and what
    `fetch` brought (tflaunch.code.fetched_mark), unless that is the directory itself.
    `keep`, a file relative to the directory, is packed whatever says otherwise.  With `only`, no more than these files
    are packed.  `ship` names files and directories, relative to `directory`, that are packed all the same; secrets in
    such a directory only when they are named themselves.  `left` of what is returned has what is not packed, and why.

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
            tree.add_module(path, keep)
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
    asked: bool = False  # --ship names it, or what it is in: fetched or not


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
        self.left: dict[str, Left] = {}
        self.links: list[tuple[str, str]] = []
        self.odd: dict[str, None] = {}
        self.size = 0
        self.beyond = 0  # entries seen after the limit was passed
        self.ship = frozenset(ship)
        self._follow = follow_links
        self._limit = limit_bytes
        self._top = work_tree(root)
        self._mounts = {self.root: ""}  # real directory -> its place in what is shipped
        self._outward: list[_Link] = []
        self._marked: dict[str, bool] = {}  # real directories whose mark was read: is it of all there?
        self._fetched: set[str] = set()  # what marks name; directories with a slash at their end
        for above in root.parents:
            self._read_mark(str(above), os.getuid())

    def leave(self, path: str, kind: str, why: str, is_directory: bool = False) -> None:
        """Note that it is not shipped."""
        self.left[path] = Left(path + "/" * is_directory, kind, why)

    def walk(self) -> None:
        """Visit everything; far over the limit, stop when enough was seen to name the largest."""
        base, ignores, _ = gitignore.above(Path(self.root), self._top, _LEFT_OUT)
        self._note_odd(ignores)
        self._visit(_Folder("", self.root, base, ignores, self.root))

    def add_module(self, path: str, keep: str) -> None:
        """Take in one file that the program imports, and nothing else of what is around it."""
        source = os.path.join(self.root, path)  # noqa: PTH118
        if path != keep and path not in self.ship and self._was_fetched(path):
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
        """Take in what was left out and is named all the same."""
        for path in sorted(self.ship):
            source = os.path.join(self.root, path)  # noqa: PTH118
            if self._shipped_place(os.path.realpath(os.path.dirname(source))) is None:  # noqa: PTH120
                raise UsageError(
                    f"--ship {path}: a link leads out of {self.root} there", "Add --follow-links."
                )
            self._add_parents(path)
            self.left.pop(path, None)
            if os.path.isdir(source) and (path in self.entries or not os.path.islink(source)):  # noqa: PTH112, PTH114
                entry = self.entries.setdefault(path, _Entry("directory", source))
                if entry.kind == "directory":
                    self._visit(_Folder(path, entry.source, mount=self.root, asked=True))
            elif path in self.entries:
                continue
            elif os.path.islink(source):  # noqa: PTH114
                self._add_link(path, source, self.root)
            else:
                self._add_any(path, source)

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
        if folder.path and folder.path not in self.ship:
            fetched = fetched_mark.NAME in names and self._read_mark(folder.real) and not folder.asked
            if fetched or (tags := names.intersection(_LEFT_OUT_WITH)):
                del self.entries[folder.path]
                if fetched:
                    self.leave(folder.path, "fetched", _FETCHED, True)
                else:
                    self.leave(folder.path, "cache", f"{min(tags)} is in it, and that is never code", True)
                return []
        elif fetched_mark.NAME in names:
            self._read_mark(folder.real)
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
            if not folder.asked and path not in self.ship and self._is_fetched(entry, is_directory):
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

    # -- what was fetched

    def _read_mark(self, directory: str, only_of: int | None = None) -> bool:
        """Whether the mark there is of all that is in the directory."""
        if directory not in self._marked:
            try:
                names = fetched_mark.read(directory, only_of)
            except OSError as error:
                if only_of is not None:  # far above
                    names = None
                else:
                    mark = os.path.join(directory, fetched_mark.NAME)  # noqa: PTH118
                    raise unreadable(mark, error) from None
            self._marked[directory] = names is not None and not names
            self._fetched.update(os.path.join(directory, name) for name in names or ())  # noqa: PTH118
        return self._marked[directory]

    def _is_fetched(self, entry: os.DirEntry[str], is_directory: bool) -> bool:
        if entry.path + "/" * is_directory in self._fetched:
            return True
        return fetched_mark.is_part(entry.name) and not is_directory

    def _was_fetched(self, path: str) -> bool:
        """Whether a file that no walk has come by was fetched."""
        folder = self.root
        self._read_mark(folder)
        for part in Path(path).parts[:-1]:
            folder = os.path.join(folder, part)  # noqa: PTH118
            if f"{folder}/" in self._fetched or self._read_mark(folder):
                return True
        return os.path.join(self.root, path) in self._fetched  # noqa: PTH118

    def _add(self, path: str, entry: os.DirEntry[str], mount: str) -> bool:
        """Take it in, unless it is a secret."""
        if entry.is_symlink():
            if path not in self.entries:  # else --ship names what it is in, and its fate is decided
                self._add_link(path, entry.path, mount)
        elif self._is_secret(path, entry.is_dir()):
            return False
        elif entry.is_dir():
            self.entries.setdefault(path, _Entry("directory", entry.path))
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
        if real and not why:  # what a link leads to
            why = secrets.by_name(real, is_directory) or secrets.in_secret_directory(real)
        if why:
            self.leave(path, "secret", why, is_directory)
        return bool(why)

    def _add_file(self, path: str, source: str, facts: os.stat_result) -> None:
        if path in self.entries:
            return
        self.left.pop(path, None)
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
        self.left.pop(path, None)
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
        ignores = with_those_in(folder, base, ignores)
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
        if path != keep and path not in tree.ship and (why := secrets.by_content(path, content)):
            tree.leave(path, "secret", why)
            continue
        size += len(content)
        files += 1
        if size > limit_bytes:
            raise _grew(root, path, limit_bytes)
        digest = code_manifest.digest_of(content)
        contents.setdefault(digest, content)
        entries.append((path, "x" if entry.executable else "f", digest, len(content), zlib.crc32(content)))
    return Bundle(
        tuple(entries),
        contents,
        size,
        files,
        str(root),
        tuple(sorted(tree.left.values())),
        tuple(sorted(tree.links)),
        tuple(tree.odd),
    )


def _grew(root: Path, path: str, limit_bytes: int) -> UsageError:
    return UsageError(
        f"{root}: more than {_amount(limit_bytes)} to ship: {path} grew while it was read",
        "Add files that programs write to .gitignore or .tflaunchignore.",
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
        "Add what the program does not need to .gitignore, or to a .tflaunchignore beside it; --max-code SIZE ships"
        " more; or put the code on the hosts yourself and use --no-sync, or `workdir:` in the hostfile.",
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
