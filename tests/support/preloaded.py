"""`tflaunch` without the half second that Python takes to import it, which is most of what a short command costs.

A process that has imported all that a launcher imports forks for each command: a process of its own with the words,
environment, directory, namespaces, streams, session and terminal of that command, which goes on as a new one does once
its imports are over.  There is one such process for each worker of pytest, and for each set of variables that Python
reads at its start.  `Preloaded` asks it; so does a program of C, `forked`, for what is typed into a shell.

What a new one does before that, and what others see of it in /proc (words, environment), is tested where commands are
started anew: the first of each verb in docs/, of a wheel, and by who asks for it.  With `TFLAUNCH_PRELOADED=0`, or the
fixture `started_anew`, they are everywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Read by Python at its start, or by libraries when they are imported.
AT_START = (
    "PYTHON",
    "PY_COLORS",
    "LANG",
    "LC_",
    "TERMINAL",
    "TZ",
    "FORCE_COLOR",
    "GITHUB_ACTIONS",
    "TYPER",
    "_TYPER",
    "LD_",
    "OPENSSL",
)

# It is asked with fields that end with a NUL each.  A command whose variables of its start are others starts anew.
SERVER = """
import ctypes, fcntl, gc, importlib, os, pkgutil, select, socket, sys, termios
import tflaunch.__main__, fabric, tflaunch.console
for each in pkgutil.walk_packages(tflaunch.__path__, "tflaunch."):
    if not each.name.startswith(("tflaunch.agent", "tflaunch.in_task", "tflaunch.console.gpu_")):
        importlib.import_module(each.name)
import pydantic.json_schema, rich.columns, rich.live, rich.markup, rich.padding, rich.panel, rich.table, yaml
from tflaunch.sessions import payload
payload.loader(), payload.agent(), payload.packed_module()
setns = ctypes.CDLL(None, use_errno=True).setns
started_with = dict(os.environ)
at_start = tuple(sys.argv[3].split())
gc.freeze()
server, listener = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
server.send(b"r")
poll = select.poll()
poll.register(server, select.POLLIN)
poll.register(listener, select.POLLIN)
ended = {}
while True:
    for number, _ in poll.poll():
        if number in ended:
            pid, told = ended.pop(number)
            poll.unregister(number)
            os.close(number)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            try:
                os.write(told, b"%d" % status)
            except BrokenPipeError:
                pass  # who asked is gone
            os.close(told)
            continue
        asking = listener.accept()[0] if number == listener.fileno() else server
        size, streams, _, _ = socket.recv_fds(asking, 8, 4)
        data = b""
        while size and len(data) < int(size) and (more := asking.recv(int(size) - len(data))):
            data += more
        if not size or len(data) < int(size):  # who asks has ended
            if asking is server:
                os._exit(0)
            for each in (*streams, asking.detach()):
                os.close(each)
            continue
        pid = os.fork()
        if not pid:
            break
        for each in streams[:3]:
            os.close(each)
        asking.send(b"%-8d" % pid)
        if asking is not server:
            asking.close()
        number = os.pidfd_open(pid)
        ended[number] = pid, streams[3]
        poll.register(number, select.POLLIN)
    else:
        continue
    break
os.setsid()
for number, each in enumerate(streams[:3]):
    os.dup2(each, number)
for number, name in enumerate(("stdin", "stdout", "stderr")):  # those of the server are of files that can be sought
    old = getattr(sys, name)
    as_lines = 1 if number == 2 or os.isatty(number) else -1
    new = open(number, old.mode, as_lines, encoding=old.encoding, errors=old.errors, closefd=False)
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)
fds = (asking.detach(), server.detach(), listener.detach())
os.closerange(3, max([*streams, *ended, *(told for _, told in ended.values()), *fds]) + 1)
fields = iter([os.fsdecode(each) for each in data.split(b"\\0")[:-1]])
program, directory, controls = next(fields), next(fields), next(fields)
namespaces, words = ([next(fields) for _ in range(int(next(fields)))] for _ in range(2))
environment = dict(each.partition("=")[::2] for each in fields)
for each in [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in namespaces]:
    if setns(each, 0):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(each)
if controls:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.chdir(directory)
read = [each for each in {*environment, *started_with} if each.startswith(at_start)]
if any(environment.get(each) != started_with.get(each) for each in read):
    os.execve(sys.executable, [sys.executable, "-c", program, *words], environment)
os.environ.clear()
os.environ.update(environment)
sys.argv[1:] = words
exec(program, {"__name__": "__main__"})
"""


class Preloaded:
    """A command that the server has forked, with what tests use of a `subprocess.Popen`."""

    def __init__(
        self,
        program: str,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        streams: Sequence[int],
        namespaces: Sequence[str] = (),
        controls: bool = False,
    ) -> None:
        """`controls`: its stdin is a terminal, and becomes the one that controls it."""
        counted = (each for part in (namespaces, words) for each in (str(len(part)), *part))
        variables = (f"{name}={value}" for name, value in env.items())
        fields = (program, str(cwd), "1" if controls else "", *counted, *variables)
        data = b"".join(os.fsencode(each) + b"\0" for each in fields)
        self._told, told = os.pipe()
        server = _server(_at_start(env)).asked
        socket.send_fds(server, [b"%-8d" % len(data)], [*streams, told])
        server.sendall(data)
        os.close(told)
        self.args = words
        self.pid = int(server.recv(8, socket.MSG_WAITALL))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, patience_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], patience_s)[0]:
            self.returncode = int(os.read(self._told, 16))
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def can_start(env: Mapping[str, str]) -> bool:
    """Whether a command with this environment would start as a server has started."""
    return os.environ.get("TFLAUNCH_PRELOADED") != "0" and _at_start(env) == _at_start(_OWN)


def forked(program: str, env: Mapping[str, str], directory: Path) -> str:
    """The text of a shell script that is this Python program, with its words, forked: what a `bin` of a test holds.

    The first for each first word is a Python of its own.  `directory` keeps which have been.
    """
    directory.mkdir()
    anew = shlex.join([sys.executable, "-c", program])
    if os.environ.get("TFLAUNCH_PRELOADED") == "0":
        return f'#!/bin/sh\nexec {anew} "$@"\n'
    there = shlex.join([str(_client()), str(_server(_at_start(env)).path), program])
    return f"""#!/bin/sh
seen={shlex.quote(str(directory))}/${{1##*/}}
[ -e "$seen" ] && exec {there} "$@"
: >"$seen"
exec {anew} "$@"
"""


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_START)}


@dataclass(frozen=True)
class _Server:
    asked: socket.socket  # by this process
    path: Path  # of the socket at which others ask


_OWN = dict(os.environ)
_servers: dict[tuple[int, frozenset[tuple[str, str]]], _Server] = {}  # by the process that uses it


@functools.cache
def _directory(user: int) -> Path:
    made = Path(tempfile.mkdtemp(prefix="tflaunch-forks-", dir="/tmp"))  # the path of a socket must be short
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def _client() -> Path:
    """forked.c, compiled."""
    made = _directory(os.getpid()) / "forked"
    subprocess.run(["gcc", "-O1", "-Wall", "-o", made, Path(__file__).with_name("forked.c")], check=True)
    return made


def _server(at_start: Mapping[str, str]) -> _Server:
    key = os.getpid(), frozenset(at_start.items())
    if key not in _servers:
        path = _directory(os.getpid()) / str(len(_servers))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        ours, theirs = socket.socketpair()
        # Without HOME: a test takes a process with the home that it has made for one that a run has left.
        env = {
            name: value for name, value in _OWN.items() if name != "HOME" and not name.startswith(AT_START)
        }
        fds = (theirs.fileno(), listener.fileno())
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *map(str, fds), " ".join(AT_START)],
            env={**env, **at_start},
            cwd="/",
            stdin=nothing,
            stdout=nothing,
            pass_fds=fds,
            start_new_session=True,
        )
        theirs.close()
        listener.close()
        assert ours.recv(1) == b"r", f"ended with {process.wait()}"

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        _servers[key] = _Server(ours, path)
    return _servers[key]
