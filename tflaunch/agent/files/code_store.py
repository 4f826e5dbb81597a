"""The store of shipped code on this host, from which each run copies its working directory.

    <parent>/code/<digest>.tree    a manifest, compressed with zlib; it exists only once all of its contents exist
    <parent>/code/files/<digest>   the content of a file, stored once for all manifests that name it

A manifest is JSON, a list of what is in a directory, parents first: [path, "d"] for a directory, [path, "l", goal]
for a link, [path, "f", digest, bytes, CRC-32] for a file, "x" instead of "f" for an executable file.  The agent checks
the digest when a content arrives; when it copies a content, it checks the CRC, which takes a fraction of that time,
unless it has done so before and nothing has changed since (checked).  When a content is damaged, the launcher sends it
again and the new one replaces the old one; the old one stays until then, since another run may just have sent it.  The
store keeps the modification time of everything that a launcher asks for young, so that no clean removes it (garbage).
"""

import errno
import os
import time
import zlib

from tflaunch.agent.host.rundir import CODE, HostError, explain, inner
from tflaunch.protocol import wire
from tflaunch.protocol.code_manifest import PIECE_BYTES, SMALL_BYTES, digest_of, hasher, named
from tflaunch.protocol.directories import make_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Collection, Dict, List, Optional, Tuple

    from tflaunch.agent.files.checked import Checked

SMALL_ENTRIES = 200  # code with at most so many entries takes less time to copy than a process takes to start
REST_S = 3600.0  # what was used or sent within this time may be about to be copied into a run
FILES = "files"
TREE = ".tree"
MODIFIED = 315532800  # 1980-01-01: the oldest time that zip files can hold
_MANIFEST_LIMIT = 1 << 27  # no real manifest is this large: a damaged one must not fill the memory
_CHUNK = 1 << 18
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def contents_of(tree: str) -> "set[str]":
    """The digests of the contents that this manifest in the store names; none when it is damaged."""
    try:
        with open(tree, "rb") as file:
            entries = _entries(file.read(), os.path.basename(tree)[: -len(TREE)])
    except (OSError, ValueError):
        return set()
    return {entry[2] for entry in entries if entry[1] in "fx"}


class CodeStore:
    """The code with one digest, in the store that all runs below one parent directory share."""

    def __init__(self, parent: str, digest: str, damaged: "Collection[str]" = ()) -> None:
        """`damaged`: digests that `copy_to` has found damaged, so that they do not count as stored."""
        if not digest.isalnum():
            raise HostError("%r is no digest" % digest)
        self._digest = digest
        self._damaged = damaged
        self._directory = os.path.join(parent, CODE)
        self._files = os.path.join(self._directory, FILES)
        self._tree = os.path.join(self._directory, digest + TREE)
        self._manifest = b""
        self._entries = []  # type: List[List[Any]]  # of the tree, once it was read
        self._lacking = False  # contents are to come
        self._missing = []  # type: List[Tuple[str, int]]  # (digest, bytes) of what is still to come
        self._came = []  # type: List[str]  # paths of the contents that came
        self._partial = ""  # the path of the file that is being written
        self._file = None  # type: Any
        self._hasher = None  # type: Any
        self._left = 0  # bytes of that file that are still to come
        self._bytes = 0  # bytes of all contents that are to come
        self._failure = None  # type: Optional[HostError]

    @property
    def here(self) -> bool:
        """Whether all of the code is in the store; asking keeps it from the next clean."""
        try:
            os.utime(self._tree)
        except OSError:
            return not self._damaged and os.path.exists(self._tree)
        return not self._damaged

    def lacks(self, piece: bytes, last: bool) -> "Optional[List[int]]":
        """Take a piece of the manifest; after the last piece, return the indices in it of contents that are missing.

        Raises HostError.
        """
        self._manifest += piece
        if len(self._manifest) > _MANIFEST_LIMIT:
            raise _damaged("its manifest has no end")
        if not last:
            return None
        try:
            entries = _entries(self._manifest, self._digest)
        except ValueError as error:
            raise _damaged(error) from error
        lacking = []
        seen = set()
        for at, entry in enumerate(entries):
            if entry[1] not in "fx" or entry[2] in seen:
                continue
            seen.add(entry[2])
            path = os.path.join(self._files, entry[2])
            try:
                info = os.stat(path)
                whole = info.st_size == entry[3] and entry[2] not in self._damaged
                if abs(time.time() - info.st_mtime) > REST_S / 2:  # seldom: it changes the ctime (checked)
                    os.utime(path)
            except OSError:
                whole = False
            if not whole:
                lacking.append(at)
                self._missing.append((entry[2], entry[3]))
                self._bytes += entry[3]
        inner(self._directory)
        inner(self._files)
        self._lacking = bool(lacking)
        if not lacking:
            self._keep_tree()
        return lacking

    def add(self, data: bytes, packed: bool, last: bool) -> None:
        """Take the next piece of the missing contents, one content after another; the last one completes the code."""
        if self._failure is not None:  # the launcher had sent this piece before it heard of the failure
            raise self._failure
        try:
            if not self._lacking:  # nor is there a manifest to keep
                raise ValueError("contents came that were not lacking")
            if packed:
                unpacking = zlib.decompressobj()
                data = unpacking.decompress(data, PIECE_BYTES + 1)
                if not unpacking.eof or len(data) > PIECE_BYTES:
                    raise ValueError("a piece of it is too long or cut")
            self._take(memoryview(data))
            if last:
                if self._missing:
                    raise ValueError("not all of it came")
                self._lacking = False
                self._keep_tree()
        except (zlib.error, ValueError) as error:
            self._failure = _damaged(error)
        except (OSError, HostError) as error:
            # First make the error's sentence, which says how much room there was; then remove the partial file.
            self._failure = explain(error, self._tree) if isinstance(error, OSError) else error
            for each in self._came:
                _unlink(each)
        if self._failure is not None:
            self.discard()
            raise self._failure

    def discard(self) -> None:
        """Remove what came only in part; complete contents stay, and need not be sent again."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:  # no room for the bytes that were still buffered
                pass
            self._file = None
        if self._partial:
            _unlink(self._partial)

    def _take(self, data: memoryview) -> None:
        while self._missing:
            name, size = self._missing[0]
            if self._file is None:
                self._partial = _partial(os.path.join(self._files, name))
                self._file = open(self._partial, "xb")  # noqa: SIM115 - the next piece may continue it
                self._hasher, self._left = hasher(self._bytes), size
            part, data = data[: self._left], data[self._left :]
            self._file.write(part)
            self._hasher.update(part)
            self._left -= len(part)
            if self._left:
                return
            self._file.close()
            self._file = None
            if named(self._hasher) != name:
                raise ValueError("a content is not what it should be")
            content = os.path.join(self._files, name)
            os.rename(self._partial, content)
            self._came.append(content)
            del self._missing[0]
        if data:
            raise ValueError("more came than was lacking")

    def _keep_tree(self) -> None:
        partial = self._partial = _partial(self._tree)
        try:
            with open(partial, "xb") as file:
                file.write(self._manifest)
            os.rename(partial, self._tree)
        except OSError as error:
            failure = explain(error, self._tree)
            _unlink(partial)
            raise failure from error

    # -- a run's own copy

    def copy_to(self, directory: str) -> "Dict[str, Any]":
        """Copy the code into `directory`; returns its `files`, and their modification time `modified` (epoch seconds).

        If contents or the manifest are damaged, returns {damaged: {digest: why}} instead.  Raises HostError.
        """
        try:
            entries = self._read()
        except (OSError, ValueError) as error:
            return {"damaged": {self._digest: "%s: %s" % (self._tree, getattr(error, "strerror", error))}}
        root = os.path.realpath(directory)
        files = []
        checked = None  # type: Optional[Checked]
        if not self.small:
            from tflaunch.agent.files.checked import Checked

            checked = Checked(self._directory)
        damaged = {}  # type: Dict[str, str]
        ours = {}  # type: Dict[str, None]  # directories that are known to be inside `directory`
        room = memoryview(bytearray(_CHUNK))  # for all files: new memory takes longer than the bytes
        try:
            for entry in entries:
                name, kind = entry[:2]
                path = os.path.join(directory, name)
                place = path if kind == "d" else os.path.dirname(path)
                if place not in ours:
                    if not (os.path.realpath(place) + "/").startswith(root + "/"):
                        raise HostError(
                            "%s is where shipped code belongs, but a link leads out of there" % place,
                            "remove it, or start a new run",
                        )
                    os.makedirs(place, exist_ok=True)
                    ours[place] = None
                if kind == "d":
                    continue
                files.append(name)
                if kind == "l":
                    _anew(path, os.symlink, entry[2], path)
                    continue
                try:
                    source = _opened(os.path.join(self._files, entry[2]), entry, checked, room)
                except ValueError as error:  # go on, so that all damaged contents are reported at once
                    damaged[entry[2]] = str(error)
                    continue
                try:
                    _copy(source, entry[3], path, 0o755 if kind == "x" else 0o644)
                finally:
                    os.close(source)
            if checked:
                checked.keep()
        except OSError as error:
            import shutil

            failure = explain(error, directory)  # before the removal makes room again
            shutil.rmtree(directory, ignore_errors=True)
            raise failure from error
        if damaged:
            return {"damaged": damaged}
        return {"files": files, "modified": MODIFIED if files else None}

    @property
    def small(self) -> bool:
        """Whether `copy_to` takes so little time that the agent's loop can do it."""
        try:
            entries = self._read()
        except (OSError, ValueError):
            return True
        size = sum(entry[3] for entry in entries if entry[1] in "fx")
        return size <= SMALL_BYTES and len(entries) <= SMALL_ENTRIES

    def _read(self) -> "List[List[Any]]":
        if not self._entries:
            with open(self._tree, "rb") as file:
                self._entries = _entries(file.read(), self._digest)
        return self._entries


def _damaged(why: object) -> HostError:
    return HostError("the shipped code was damaged on the way: %s" % why, "start the run again")


def _entries(manifest: bytes, digest: str) -> "List[List[Any]]":
    """The entries of that manifest; raises ValueError unless it has that digest."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(manifest, _MANIFEST_LIMIT)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacking.eof or digest_of(text) != digest:
        raise ValueError("its manifest is not what was sent")
    entries = wire.loads(text.decode("ascii"))  # type: List[List[Any]]
    for path, kind, *more in entries:
        if (
            os.path.isabs(path)
            or ".." in path.split("/")
            or kind not in ("d", "l", "f", "x")
            or (kind in "fx" and not (len(more) == 3 and more[0].isalnum() and more[1] >= 0))
        ):
            raise ValueError("%r is not what is shipped" % path)
    return entries


def _opened(content: str, entry: "List[Any]", checked: "Optional[Checked]", room: memoryview) -> int:
    """That file, open; raises ValueError with the reason if it is not what the launcher sent; read into `room`."""
    digest, size, check = entry[2:]
    source = -1
    try:
        source = os.open(content, os.O_RDONLY | os.O_CLOEXEC)
        if checked and checked.has(digest, size, check, os.fstat(source)):
            return source
        seen = found = 0
        while seen < size:
            count = os.readv(source, [room])
            if not count:
                break
            found = zlib.crc32(room[:count], found)
            seen += count
        info = os.fstat(source)
        if (seen, found, info.st_size) == (size, check, size):
            if checked:
                checked.add(digest, check, info)
            return source
        why = "its bytes are not what came"
    except OSError as error:
        why = os.strerror(error.errno or 0)
    if source >= 0:
        os.close(source)
    raise ValueError("%s: %s" % (content, why))


def _anew(path: str, make: "Callable[..., Any]", *arguments: "Any") -> "Any":
    """What `make` returns, which makes `path`; in place of what a run that was here before has left there."""
    try:
        return make(*arguments)
    except FileExistsError:
        os.unlink(path)
        return make(*arguments)


def _copy(source: int, size: int, path: str, mode: int) -> None:
    """Copy, never link: what a program writes into its own file must not appear in the next run's file."""
    target = _anew(path, make_file, path, mode)
    try:
        _transfer(source, target, size)
        os.utime(target, (MODIFIED, MODIFIED))
    finally:
        os.close(target)


def _transfer(source: int, target: int, size: int) -> None:
    """Copy that file; in the kernel if possible: some file systems share the blocks."""
    done = 0
    try:
        while done < size:
            count = os.copy_file_range(source, target, size - done, done)
            if not count:
                break
            done += count
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in _NO_ROOM:
            raise
    while done < size:
        data = os.pread(source, _CHUNK, done)
        if not data:
            raise OSError(errno.EIO, "it became shorter while it was copied")
        done += os.write(target, data)


def _partial(path: str) -> str:
    return "%s.%s.part" % (path, os.urandom(8).hex())  # unique, since several hosts may share the disk


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
