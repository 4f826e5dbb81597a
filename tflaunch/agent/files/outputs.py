"""The outputs of a run on this host, the files that its tasks have written: found by patterns, read in pieces.

Nothing leads out of the tasks' working directory: a link, a pipe or a socket is reported, never followed or opened.
"""

import os
import stat
import time

from tflaunch.agent.host import foreign, mounts
from tflaunch.agent.host.rundir import HostError, away, explain
from tflaunch.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Pattern, Set, Tuple, Union

    from tflaunch.agent.host.rundir import RunDirectory

FILES = 100000  # of one host; more belong into an archive
ENTRIES = 256  # looked at between two turns of the agent's loop
PIECE_LIMIT = 512 * 1024  # of a file in one message
DIGEST_LIMIT = 4 * 1024 * 1024  # of a file in one digest, which takes some 10 ms
THERE = 12  # names that the user sees when nothing matches
NAMES = 64 * 1024  # characters of names in one message, each of which JSON may write as six
HIDDEN = 100  # names with a leading dot that the user sees
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe that has taken the place of a file must not hold up the agent.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Outputs:
    """The working directory of one run on this host."""

    def __init__(self, directory: "RunDirectory") -> None:
        self._directory = directory

    def find(
        self, patterns: "Optional[List[Tuple[str, bool]]]", roots: "List[str]"
    ) -> "Iterator[Dict[str, Any]]":
        """The fields of `found` messages; between two of them the agent's loop goes on.

        `patterns` are (regular expression, whether it is wanted): the last one that matches a path decides.  Only
        paths below `roots` count.  Shipped code that is as it came is no output.  Raises HostError when the directory
        cannot be read; without patterns, also at what they would have to decide about.
        """
        return self._find(_Patterns(patterns), roots)

    def _find(self, wanted: "_Patterns", roots: "List[str]") -> "Iterator[Dict[str, Any]]":
        shipped = self._directory.read("shipped.json")
        code, came = frozenset(shipped.get("files") or ()), shipped.get("modified")
        files = []  # type: List[List[Any]]
        left = []  # type: List[List[Any]]
        hidden = set()  # type: Set[str]
        count = size = 0
        top = self._root()
        try:
            for path, info in self._walk(top, roots):
                if isinstance(info, str):
                    if path and _matches(wanted, path + "/"):
                        left.append([path, info, True])
                elif path in code and int(info.st_mtime) == came:
                    pass
                elif not stat.S_ISREG(info.st_mode):
                    # The directories of trials hold links to the code.
                    ours = stat.S_ISLNK(info.st_mode) and path.partition("/")[2] in code
                    if not ours and (_matches(wanted, path) or _matches(wanted, path + "/")):
                        left.append([path, _kind(info.st_mode), False])
                elif _only_the_dot_keeps_it(wanted, path):
                    at = path.find("/", path.rfind("/.") + 1)
                    named = path if at < 0 else path[:at]
                    if named not in hidden and len(hidden) < HIDDEN:
                        hidden.add(named)
                        left.append([named, "its name begins with a dot, which no pattern names", False])
                elif _matches(wanted, path):
                    files.append([path, info.st_size, info.st_mtime_ns, bool(info.st_mode & 0o100)])
                    count += 1
                    if count > FILES:
                        raise HostError(
                            "more than %d files match" % FILES, "have the program pack them into one"
                        )
                size += len(path)
                if not path or len(files) + len(left) >= ENTRIES or size > NAMES:
                    yield {"files": files, "left": left, "there": [], "last": False}
                    files, left, size = [], [], 0
            try:
                names = [] if count else sorted(os.listdir(top))
            except OSError:
                names = []
            there = [name for name in names if name not in code and name != "__pycache__"][:THERE]
        finally:
            os.close(top)
        yield {"files": files, "left": left, "there": there, "last": True}

    def _walk(self, top: int, roots: "List[str]") -> "Iterator[Tuple[str, Union[os.stat_result, str]]]":
        """(path, stat) of everything below `roots` but directories; (path, why) of a directory that cannot be read.

        ("", "") comes now and then, so that the agent's loop can go on.
        """
        pending = list(roots)
        seen = 0
        while pending:
            shown = pending.pop()
            try:
                descriptor = _enter(top, shown)
            except FileNotFoundError:
                continue
            except OSError as error:
                try:  # the beginning of a pattern may be a link
                    info = os.stat(shown, dir_fd=top, follow_symlinks=False)
                except OSError:
                    continue
                yield shown, os.strerror(error.errno) if stat.S_ISDIR(info.st_mode) and error.errno else info
                continue
            try:
                try:
                    names = sorted(os.listdir(descriptor))
                except OSError as error:  # on a shared disk: another host has removed it
                    yield shown, os.strerror(error.errno or 0)
                    continue
                below = []
                for name in names:
                    path = os.path.join(shown, name)
                    try:
                        info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    except OSError:
                        continue  # gone meanwhile
                    if stat.S_ISDIR(info.st_mode):
                        below.append(path)
                    else:
                        yield path, info
                    seen += 1
                    if seen % ENTRIES == 0:
                        yield "", ""
                pending += reversed(below)
            finally:
                os.close(descriptor)

    def read(self, path: str, offset: int, size: int, digest: bool) -> "Tuple[Dict[str, Any], bytes]":
        """The fields and the body of a `piece` message: those bytes of that file, or with `digest` their SHA-256."""
        fields = {"path": path, "offset": offset, "digest": digest, "why": "", "gone": False}  # type: Dict[str, Any]
        fields.update(size=0, modified=0)
        size = max(0, min(size, DIGEST_LIMIT if digest else PIECE_LIMIT))
        try:
            top = self._root()
            try:
                directory = _enter(top, os.path.dirname(path))
            finally:
                os.close(top)
            try:
                file = os.open(os.path.basename(path), _FILE, dir_fd=directory)
            finally:
                os.close(directory)
            try:
                info = os.fstat(file)
                if not stat.S_ISREG(info.st_mode):
                    fields["why"] = _kind(info.st_mode)
                    return fields, b""
                data = os.pread(file, size, offset)
                info = os.fstat(file)  # after the read: so the launcher sees what was written meanwhile
            finally:
                os.close(file)
        except HostError as error:
            fields["why"] = error.reason
            return fields, b""
        except (OSError, ValueError) as error:
            fields["gone"] = isinstance(error, FileNotFoundError)
            fields["why"] = (
                os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            )
            return fields, b""
        fields.update(size=info.st_size, modified=info.st_mtime_ns)
        if digest:
            import hashlib  # it loads OpenSSL, which few agents need

            data = hashlib.sha256(data).digest()
        return fields, data

    @property
    def path(self) -> str:
        """The tasks' working directory, or the directory that holds those of all trials."""
        return os.path.expanduser(self._named())

    def _named(self) -> str:
        tasks = self._directory.read("plan.json").get("tasks") or [{}]
        return tasks[0].get("cwd") or self._directory.outputs

    @property
    def at_hand(self) -> bool:
        """Whether all of it is in the run directory, where the agent itself reads and writes, and on a local disk."""
        alone = mounts.at_hand(os.path.realpath(self._directory.path))
        return alone and self._named() == self._directory.outputs and not os.path.islink(self._named())

    def _root(self) -> int:
        """A descriptor of `path`; raises HostError."""
        path = self.path
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise explain(error, path) from error


class OutputsInTime:
    """The same for an agent whose run goes on: a child process looks, which a file server may keep waiting for ever.

    There is none where all is at hand, and little, and nothing there but shipped code, as it came.
    """

    def __init__(self, directory: "RunDirectory", patience_s: "Callable[[], float]") -> None:
        """`patience_s` says how long it may take."""
        self._outputs = Outputs(directory)
        self._patience_s = patience_s
        self._away = None  # type: Optional[HostError]
        self._away_until = 0.0

    def find(self, patterns: "List[Tuple[str, bool]]", roots: "List[str]") -> "Iterator[Dict[str, Any]]":
        """See Outputs.find."""
        try:
            part = next(self._outputs.find(None, roots)) if self._outputs.at_hand else {}
        except HostError:
            part = {}
        return iter([part]) if part.get("last") else self._find(self._outputs.find(patterns, roots))

    def _find(self, parts: "Iterator[Dict[str, Any]]") -> "Iterator[Dict[str, Any]]":
        def look() -> "Iterator[Dict[str, Any]]":
            try:
                for part in parts:
                    yield part
            except HostError as error:
                yield {"reason": error.reason, "hint": error.hint}

        for part in self._in_time(lambda limit_s: foreign.told_in_time(look, limit_s), look):
            if "reason" in part:
                raise HostError(part["reason"], part["hint"])
            yield part
            if part["last"]:
                return
        raise HostError("the process that looked for outputs was ended", "try again")

    def read(self, path: str, offset: int, size: int, digest: bool) -> "Tuple[Dict[str, Any], bytes]":
        """See Outputs.read."""

        def look() -> bytes:
            fields, data = self._outputs.read(path, offset, size, digest)
            return wire.dumps(fields).encode("ascii") + b"\n" + data

        fields = {"path": path, "offset": offset, "digest": digest, "gone": False, "size": 0, "modified": 0}
        try:
            [answer] = self._in_time(
                lambda limit_s: iter([foreign.bytes_in_time(look, limit_s)]), lambda: iter([look()])
            )
        except HostError as error:
            return dict(fields, why=error.reason), b""
        head, _, data = answer.partition(b"\n")
        return (wire.loads(head.decode("ascii")), data) if head else (dict(fields, why="no answer"), b"")

    def _in_time(
        self, ask: "Callable[[float], Iterator[Any]]", alone: "Callable[[], Iterator[Any]]"
    ) -> "Iterator[Any]":
        """What `ask` yields, or `alone` where there can be no child; raises HostError where nothing comes in time."""
        if self._away is not None and time.monotonic() < self._away_until:
            raise self._away
        limit_s = min(foreign.LIMIT_S, self._patience_s())
        try:
            for each in ask(limit_s):
                yield each
        except foreign.Late:
            self._away = away(self._outputs.path, "workdir:", limit_s)
            self._away_until = time.monotonic() + foreign.AWAY_S
            raise self._away from None
        except OSError:  # no process more is allowed
            for each in alone():
                yield each


def _matches(patterns: "_Patterns", path: str) -> "Optional[bool]":
    return next((yes for pattern, yes in patterns.compiled() if pattern.match(path)), None)


def _only_the_dot_keeps_it(patterns: "_Patterns", path: str) -> bool:
    """Whether the path would be wanted if wildcards matched leading dots."""
    if "/." not in "/" + path or _matches(patterns, path) is not None:
        return False
    names = path.split("/")
    return bool(_matches(patterns, "/".join("\ufffd" + n[1:] if n[:1] == "." else n for n in names)))


class _Patterns:
    """(regular expression, whether it is wanted): compiled when the first file is met, for most runs write none."""

    def __init__(self, patterns: "Optional[List[Tuple[str, bool]]]") -> None:
        self._texts = patterns
        self._compiled = []  # type: List[Tuple[Pattern[str], bool]]

    def compiled(self) -> "List[Tuple[Pattern[str], bool]]":
        """Them, the last one first; raises HostError where there are none to be had."""
        if self._texts is None:
            raise HostError("")
        if not self._compiled and self._texts:
            import re  # it takes longer to load than the look

            self._compiled = [(re.compile(regex, re.DOTALL), yes) for regex, yes in reversed(self._texts)]
        return self._compiled


def _enter(top: int, path: str) -> int:
    """Open the directory `path` below `top`, one name after another; raises OSError where one leads out of there."""
    descriptor = os.dup(top)
    for name in path.split("/") if path else []:
        if name in ("", ".", ".."):
            os.close(descriptor)
            raise OSError("%r leads elsewhere" % path)
        try:
            below = os.open(name, _DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _kind(mode: int) -> str:
    for is_that, name in (
        (stat.S_ISLNK, "a link, which is not followed"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISDIR, "a directory"),
    ):
        if is_that(mode):
            return name
    return "a device"
