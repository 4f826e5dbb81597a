"""Another user who sets traps: where a name lies in a directory that he may write to, he exchanges what has that name.

`World` has files that must stay as they are, and a name for him to play with.  `between_calls` has him do so between
every two system calls of what this process does, really as another uid: the kernel decides what he may do.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import os
import pwd
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

NOBODY = pwd.getpwnam("nobody")
CONTENT = "nobody else's\n"
MODE = 0o640  # of the victim's files: neither what tflaunch gives to private files nor to shared ones

# The calls between which he acts; those that look at a path, open one, or change something.
CALLS = (
    *(
        "chmod",
        "fchmod",
        "ftruncate",
        "fstat",
        "link",
        "listdir",
        "lstat",
        "mkdir",
        "open",
        "pread",
        "pwrite",
    ),
    *("readlink", "rename", "replace", "rmdir", "scandir", "stat", "symlink", "unlink", "utime", "write"),
)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """What this process does inside, it may do as he may; an OSError ends it."""
    os.setegid(NOBODY.pw_gid)
    os.seteuid(NOBODY.pw_uid)
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _is_ours(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_uid == 0 and stat.S_IMODE(info.st_mode) == MODE


def _handed_back(path: str, secret: str) -> bool:
    """Move what he has moved back to where it was; whether this was it."""
    if _is_ours(os.lstat(path)):
        os.rename(path, secret)
        return True
    return False


def _hand_back(directory: str, secret: str) -> None:
    for place, _, files in os.walk(directory):
        for name in files:
            _handed_back(os.path.join(place, name), secret)


# In the victim's home: names that tflaunch uses, if it were led there.
OURS = (
    ".profile",
    "GPU-a",
    "queue/ticket",
    "code/one.tree",
    "code/files/thesis",
    ".clean-old/thesis",
    ".told",
    "trainer-aaaaaa/h1/agent.json",
    "trainer-aaaaaa/run.json",
    "trainer-aaaaaa/outcome.json",
    "trainer-aaaaaa/lock",
    "sub/file",
    ".tflaunch-fetched",
)


class World:
    """A directory that is made anew for each try.

    `home` is the victim's, with files of names that tflaunch uses; `both` is one that both may write to, with a private
    file of the victim's, which he can move; `his` is his own.
    """

    def __init__(self, lab: Path) -> None:
        self.lab = lab
        self.home, self.both, self.his = lab / "home", lab / "both", lab / "his"
        self.secret = self.both / "secret"
        self._names = count()
        self._held = -1

    def make(self) -> None:
        """Everything as it was at first."""
        for entry in os.scandir(self.lab):
            if entry.path in (str(self.home), str(self.both)):
                continue
            if entry.is_dir(follow_symlinks=False):
                _hand_back(entry.path, str(self.secret))
                shutil.rmtree(entry.path)
            elif not _handed_back(entry.path, str(self.secret)):
                os.unlink(entry.path)
        os.mkdir(self.his, 0o755)
        os.chown(self.his, NOBODY.pw_uid, NOBODY.pw_gid)
        if self._held < 0:
            self._make_ours()
        if not self.secret.exists() or not _is_ours(self.secret.lstat()):
            self.secret.unlink(missing_ok=True)
            self._file(self.secret)
        self._held = os.open(self.secret, os.O_RDONLY)

    def _make_ours(self) -> None:
        self.lab.chmod(0o1777)
        for path, mode in ((self.home, 0o750), (self.both, 0o777)):
            path.mkdir()
            path.chmod(mode)
        for name in OURS:
            self._file(self.home / name)
        self._kept = self._tree()

    def _file(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTENT)
        path.chmod(MODE)
        os.utime(path, (1, 1))

    def _tree(self) -> dict[str, tuple[int, bytes]]:
        found = {}
        for place, directories, files in os.walk(self.home):
            found[place] = (os.lstat(place).st_mode, b"")
            for name in (*files, *directories):
                path = os.path.join(place, name)
                info = os.lstat(path)
                found[path] = (info.st_mode, Path(path).read_bytes() if stat.S_ISREG(info.st_mode) else b"")
        return found

    def check(self, what: str, removable: bool = False) -> None:
        """All that is the victim's is as it was; what he could have removed himself may be gone."""
        assert self._tree() == self._kept, what
        info = os.fstat(self._held)
        content = os.pread(self._held, 100, 0).decode()
        os.close(self._held)
        assert (content, stat.S_IMODE(info.st_mode)) == (CONTENT, MODE), what
        assert info.st_nlink == 1 or (removable and info.st_nlink == 0), what

    # -- what he puts there

    def absent(self, name: Path) -> None:
        """Take away what is there, if he may."""
        with contextlib.suppress(OSError):
            name.rename(self.secret if self._is_secret(name) else self.his / f"{next(self._names)}")

    def _is_secret(self, name: Path) -> bool:
        return not self.secret.exists() and _is_ours(name.lstat())

    def link(self, name: Path) -> None:
        self.absent(name)
        name.symlink_to(self.home)

    def link_to_a_file(self, name: Path) -> None:
        self.absent(name)
        name.symlink_to(self.home / ".profile")

    def directory(self, name: Path) -> None:
        """As it should be, but his."""
        self.absent(name)
        name.mkdir()
        name.chmod(0o1777)

    def closed(self, name: Path) -> None:
        self.absent(name)
        name.mkdir(mode=0o700)

    def way(self, name: Path) -> None:
        """A directory of his in which every name leads to the victim's."""
        self.absent(name)
        name.mkdir()
        for each in ("queue", "code", ".clean-old", "trainer-aaaaaa", "tflaunch-0", "sub", "GPU-a", ".told"):
            (name / each).symlink_to(self.home / each)
        name.chmod(0o1777)

    def file(self, name: Path) -> None:
        self.absent(name)
        name.touch()
        name.chmod(0o666)

    def fifo(self, name: Path) -> None:
        self.absent(name)
        os.mkfifo(name)

    def moved(self, name: Path) -> None:
        """A private file of the victim's."""
        self.absent(name)
        self.secret.rename(name)


Trap = Callable[[World, Path], None]
FOR_DIRECTORIES: tuple[Trap, ...] = (
    World.absent,
    World.link,
    World.directory,
    World.way,
    World.closed,
    World.file,
)
FOR_FILES: tuple[Trap, ...] = (
    World.absent,
    World.moved,
    World.link_to_a_file,
    World.file,
    World.fifo,
    World.closed,
)


def between_calls(
    world: World,
    name: Path,
    traps: tuple[Trap, ...],
    prepare: Callable[[], None],
    play: Callable[[], None],
    *,
    removable: bool = False,
) -> int:
    """Play, for each two traps and each system call: the first is there, the second instead just before that call.

    `prepare` completes each new world; returns how often it played.
    """
    time.sleep = lambda _: None  # he acts now, not meanwhile
    played = 0
    for first in traps:
        for second in traps:
            for at in count(1):
                world.make()
                prepare()
                with as_nobody():
                    first(world, name)

                def spring(number: int, at: int = at, second: Trap = second) -> None:
                    if number == at:
                        with as_nobody():
                            second(world, name)

                calls = _with_hooks(play, spring)
                world.check(f"{first.__name__}, then {second.__name__} before call {at}", removable)
                played += 1
                if calls < at or first is second:
                    break
    return played


def _with_hooks(play: Callable[[], None], spring: Callable[[int], None]) -> int:
    """Play, with `spring(n)` before the nth call; returns how many calls there were."""
    calls, springing = 0, False

    def hooked(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            nonlocal calls, springing
            if not springing:
                calls, springing = calls + 1, True
                try:
                    spring(calls)
                finally:
                    springing = False
            return real(*words, **options)

        return call

    places = [(os, name) for name in CALLS] + [(builtins, "open"), (fcntl, "flock"), (socket.socket, "bind")]
    before = [(place, name, getattr(place, name)) for place, name in places]
    try:
        for place, name, real in before:
            setattr(place, name, hooked(real))
        play()
    finally:
        for place, name, real in before:
            setattr(place, name, real)
    return calls
