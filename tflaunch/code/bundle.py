"""The code that is shipped: the content of its directory, without what stays on this machine."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import warnings
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tflaunch.code import secrets
from tflaunch.code.code_size import grew, too_large
from tflaunch.code.code_tree import CodeTree, Left
from tflaunch.code.program import Program
from tflaunch.code.secrets import Secret
from tflaunch.inputs.gitignore import unreadable
from tflaunch.protocol import code_manifest, wire
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import by_python

LIMIT_BYTES = 100 * 2**20  # unless --max-code says otherwise
_READ_BYTES = 2 * 2**20  # of a program; only the hosts read a larger one


@dataclass(frozen=True)
class Bundle:
    """What is shipped of a directory, as tflaunch.agent.files.code_store stores it: relative paths, parents first.

    `digest` is over names, kinds, execute bits and content.  The same tree has the same digest on every machine, at
    any time and with any Python; except for links that lead out of it, which are made absolute.
    """

    entries: tuple[tuple[str | int, ...], ...]
    contents: Mapping[str, bytes]  # by their digests
    size: int  # bytes of content; each of several equal files counts
    files: int  # without symbolic links and directories
    directory: str = ""  # where the code comes from
    left: tuple[Left, ...] = ()  # what stays here: files, and whole directories
    links: tuple[tuple[str, str], ...] = ()  # (path, goal) of links that lead out, and are shipped as links
    dangling: tuple[tuple[str, str], ...] = ()  # (path, goal) of links to what is there and is not shipped
    odd: tuple[str, ...] = ()  # suspicious lines of ignore files: the user cannot mean what they say
    program: str = ""  # the path of the program, if Python runs it
    place: str = ""  # what the directory is, if only the modules that the program imports are shipped

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets, which stay here."""
        return tuple(Secret(left.path, left.why) for left in self.left if left.kind == "secret")

    @property
    def skipped(self) -> tuple[str, ...]:
        """What cannot be shipped: sockets, pipes, devices; each with why."""
        return tuple(f"{left.path}: {left.why}" for left in self.left if left.kind == "skipped")

    @property
    def fetched(self) -> tuple[str, ...]:
        """What `fetch` brought here, which stays here."""
        return tuple(left.path for left in self.left if left.kind == "fetched")

    @property
    def ignored(self) -> int:
        """How many files and whole directories ignore files leave out."""
        return sum(left.kind == "ignored" for left in self.left)

    @property
    def caches(self) -> int:
        """How many files and directories are left out as they are never code: caches, environments, .git."""
        return sum(left.kind == "cache" for left in self.left)

    @functools.cached_property
    def _text(self) -> bytes:
        return wire.dumps(self.entries).encode("ascii")

    @functools.cached_property
    def digest(self) -> str:
        return code_manifest.digest_of(self._text)

    @property
    def to_read(self) -> dict[str, str] | None:
        """What `reading` returns for the program."""
        return self.reading(self.program)

    def reading(self, file: str) -> dict[str, str] | None:
        """For an agent: the path of that file, and a Python version that can read it, or ""; None: it is not text."""
        entry = next((entry for entry in self.entries if file and entry[0] == file), ("", ""))
        content = self.contents[str(entry[2])] if entry[1] in ("f", "x") else b"\0"
        if b"\0" in content:  # a zip archive, or compiled code, which Python runs without reading it
            return None
        can = len(content) <= _READ_BYTES and _readable(content)
        return {"file": file, "read_by": ".".join(map(str, sys.version_info[:2])) if can else ""}

    @functools.cached_property
    def manifest(self) -> bytes:
        """The entries, compressed, as they are sent."""
        return zlib.compress(self._text)


def code_of(
    program: Program,
    ship: Collection[str] = (),
    follow_links: bool = False,
    limit_bytes: int = LIMIT_BYTES,
    others: Iterable[Program] = (),
) -> Bundle:
    """The code of that program: its directory or, if that holds more than code, the modules that it imports.

    `others` are programs in the same directory that are shipped, too.  Raises UsageError, also if one of them is left
    out.
    """
    only = None
    if program.place:
        from tflaunch.code.imports import imported_files

        only = set(imported_files(program.directory, program.file, program.package))
        for other in others:
            only |= set(imported_files(program.directory, other.file, other.package))
    made = bundle(
        program.directory,
        keep=program.file,
        only=only,
        ship=ship,
        follow_links=follow_links,
        limit_bytes=limit_bytes,
    )
    shipped = {entry[0] for entry in made.entries}
    for other in others:
        if other.file not in shipped:
            raise UsageError(f"{other.file} is left out of what is shipped", f"add --ship {other.file}")
    run_by_python = program.file if by_python(program.argv) else ""
    return dataclasses.replace(made, place=program.place, program=run_by_python)


def _readable(source: bytes) -> bool:
    """Whether the Python here can read that program."""
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
    """Pack `directory` as git sees it: also what git does not track yet, without what it ignores.

    Left out is what `.gitignore` and `.tflaunchignore` files say, in the directory, below it, and above it up to the
    root of its git work tree, and what `.git/info/exclude` says; always caches, environments and secrets; and what
    `fetch` brought (tflaunch.code.fetched_mark), unless that is the directory itself.  `left` of the result lists it.

    `keep`, a file relative to the directory, is packed in any case.  With `only`, just these files are packed.  `ship`
    names files and directories, relative to `directory`, that are packed though they were left out; the secrets in such
    a directory only if they are named themselves.

    A symbolic link that leads inside stays a link.  A link that leads out is replaced by its goal if the goal is in
    the same git work tree and not ignored there, or with `follow_links`; else it stays a link to its goal here.

    Raises UsageError for more than `limit_bytes` of content (before any of it is read), for an unreadable file, and for
    a name in `ship` that does not exist.
    """
    root = directory.resolve()
    tree = CodeTree(root, {_inside(root, path) for path in ship}, follow_links, limit_bytes)
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
        raise too_large(root, tree, limit_bytes)
    return _pack(root, tree, keep, limit_bytes)


def _inside(root: Path, path: str) -> str:
    """The path that --ship names, relative to `root`; raises UsageError."""
    inside = os.path.normpath(os.path.join(root, path))  # noqa: PTH118
    hint = f"Name a file or directory, relative to {root}."
    if not path or Path(inside) == root:
        raise UsageError(f"--ship {path}: that is all of {root}, but each secret must be named itself", hint)
    if not Path(inside).is_relative_to(root):
        raise UsageError(f"--ship {path}: it is not in {root}, the directory to ship", hint)
    if not os.path.lexists(inside):
        raise UsageError(f"--ship {path}: there is no such file in {root}", hint)
    folder = Path(inside).parent.resolve()
    if not folder.is_relative_to(root):  # a link leads out, which may be followed
        return str(Path(inside).relative_to(root))
    return str(folder.relative_to(root) / Path(inside).name)


def _pack(root: Path, tree: CodeTree, keep: str, limit_bytes: int) -> Bundle:
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
            raise grew(root, path, limit_bytes)
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
        tuple(tree.dangling()),
        tuple(tree.odd),
    )
