"""`tflaunch` without the half second that Python takes to import it, which is most of what a short command costs.

One process for each worker of pytest has imported all that a launcher imports, and forks for each command: a process
of its own with the words, environment, directory, namespaces, streams and session of that command, which goes on as a
new one does once its imports are over.  What a new one does before that, and what others see of it in /proc (words,
environment), is tested where commands are always started anew: in terminals, of a wheel and in docs/.  With
`TFLAUNCH_PRELOADED=0`, or the fixture `started_anew`, they are everywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Read by Python at its start, or by libraries when they are imported.
AT_START = (
    "PYTHON",
    "PY_COLORS",
    "LANG",
    "LC_",
    "TERM",
    "TZ",
    "FORCE_COLOR",
    "GITHUB_ACTIONS",
    "TYPER",
    "_TYPER",
    "LD_",
    "OPENSSL",
)

SERVER = """
import ctypes, gc, importlib, os, pickle, pkgutil, select, socket, sys
import tflaunch.__main__, fabric, tflaunch.console
for each in pkgutil.walk_packages(tflaunch.__path__, "tflaunch."):
    if not each.name.startswith(("tflaunch.agent", "tflaunch.in_task", "tflaunch.console.gpu_")):
        importlib.import_module(each.name)
import pydantic.json_schema, rich.columns, rich.live, rich.markup, rich.padding, rich.panel, rich.table, yaml
from tflaunch.sessions import payload
payload.loader(), payload.agent(), payload.packed_module()
setns = ctypes.CDLL(None, use_errno=True).setns
gc.freeze()
server = socket.socket(fileno=int(sys.argv[1]))
server.send(b"r")
poll = select.poll()
poll.register(server, select.POLLIN)
ended = {}
while True:
    for number, _ in poll.poll():
        if number in ended:
            pid, told = ended.pop(number)
            poll.unregister(number)
            os.close(number)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(told, b"%d" % status)
            os.close(told)
            continue
        size, streams, _, _ = socket.recv_fds(server, 8, 4)
        if not size:
            os._exit(0)
        data = b""
        while len(data) < int(size):
            data += server.recv(int(size) - len(data))
        pid = os.fork()
        if not pid:
            break
        for each in streams[:3]:
            os.close(each)
        server.send(b"%-8d" % pid)
        number = os.pidfd_open(pid)
        ended[number] = pid, streams[3]
        poll.register(number, select.POLLIN)
    else:
        continue
    break
os.setsid()
for number, each in enumerate(streams[:3]):
    os.dup2(each, number)
os.closerange(3, max([*streams, *ended, *(told for _, told in ended.values()), server.detach()]) + 1)
program, words, environment, directory, namespaces = pickle.loads(data)
for each in [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in namespaces]:
    if setns(each, 0):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(each)
os.chdir(directory)
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
    ) -> None:
        data = pickle.dumps((program, words, dict(env), str(cwd), namespaces))
        self._told, told = os.pipe()
        server = _server()
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
    """Whether a command with this environment would start as the server has started."""
    return os.environ.get("TFLAUNCH_PRELOADED") != "0" and _at_start(env) == _at_start(_OWN)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_START)}


_OWN = dict(os.environ)
_servers: dict[int, socket.socket] = {}  # by the process that uses it


def _server() -> socket.socket:
    if os.getpid() not in _servers:
        ours, theirs = socket.socketpair()
        # Without HOME: a test takes a process with the home that it has made for one that a run has left.
        env = {name: value for name, value in _OWN.items() if name != "HOME"}
        words = [sys.executable, "-c", SERVER, str(theirs.fileno())]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            words,
            env=env,
            cwd="/",
            stdin=nothing,
            stdout=nothing,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        assert ours.recv(1) == b"r", f"ended with {process.wait()}"

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        _servers[os.getpid()] = ours
    return _servers[os.getpid()]
