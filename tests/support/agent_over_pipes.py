"""The agent exactly as it is shipped: booted by `sh`, its channel a pair of pipes, no SSH in between."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S, until
from tflaunch.agent.host import processes
from tflaunch.protocol import wire
from tflaunch.sessions import payload


@functools.cache
def interpreters() -> list[str]:
    """Every Python >= 3.8 that can be had here, the oldest first, one of each version."""
    found: dict[tuple[int, ...], str] = {}
    candidates = [
        Path(sys.executable),
        Path("/usr/bin/python3"),
        *Path("/opt/python").glob("*/bin/python3"),
        *Path("~/.pyenv/versions").expanduser().glob("*/bin/python3"),
    ]
    for path in candidates:
        if path.exists():
            say = "import sys; print(*sys.version_info[:3])"
            said = subprocess.run([path, "-I", "-c", say], capture_output=True, text=True, check=False).stdout
            version = tuple(map(int, said.split()))
            if version >= (3, 8):
                found.setdefault(version, str(path))
    return [found[version] for version in sorted(found)]


def marked(run: str) -> list[processes.Process]:
    """The live processes that carry the mark of `run`."""
    return processes.marked(processes.every().values(), run)


def descriptors(pid: int) -> dict[int, str]:
    """What the descriptors of a process are open on."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found[int(entry.name)] = os.readlink(entry)  # noqa: PTH115 - `socket:[1]` is no path
    return found


def python_path(directory: Path, python: str) -> str:
    """A PATH where `python3` is `python`, made in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "python3"
    if not link.is_symlink():
        link.symlink_to(python)
    return f"{directory}:{os.environ['PATH']}"


class Channel:
    """The launcher's end: frames to the agent, messages from it; what sshd would start is a child of the test."""

    def __init__(
        self,
        verb: str,
        run: str = "",
        host: str = "",
        run_dir: str | Path = "",
        *,
        env: Mapping[str, str] | None = None,
        login: tuple[str, ...] = ("/bin/sh",),
        python: str = "",
        stderr: int | None = subprocess.PIPE,
    ) -> None:
        line = payload.boot_line(verb, run, host, str(run_dir), python)
        self.run = run
        self.log: dict[str, bytes] = {}
        self._decoder = wire.Decoder(magic=True)
        self._pending: list[wire.Message] = []
        self.written = 0  # bytes
        self._started = subprocess.Popen(
            [*login, "-c", line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=None if env is None else dict(env),
            bufsize=0,
            start_new_session=True,  # as sshd does
        )
        with contextlib.suppress(BrokenPipeError):  # it ended without reading: `last_words` tells why
            self.write(payload.loader())

    def write(self, data: bytes) -> None:
        assert self._started.stdin is not None
        self.written += len(data)
        view = memoryview(data)
        while view:
            view = view[self._started.stdin.write(view) :]

    def send(self, type: str, body: bytes = b"", **fields: Any) -> None:
        self.write(wire.encode(type, body, **fields))

    def leave(self) -> None:
        """As a launcher does at the end; an agent that nobody follows does not wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self.send("bye")

    @property
    def started_ended(self) -> bool:
        return self._started.poll() is not None

    def ignores(self, number: int) -> bool:
        """Whether what was started ignores that signal."""
        status = Path(f"/proc/{self._started.pid}/status").read_text()
        return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> number - 1 & 1)

    def next(self, patience_s: float = PATIENCE_S) -> wire.Message | None:
        """The next message, beats left out and logs gathered; None at the end of the channel."""
        message = self.next_raw(patience_s)
        if message is not None and message.type == "log":
            task = message["task"] + (f".{message['attempt']}" if message["attempt"] else "")
            assert message["offset"] == len(self.log.get(task, b"")), "a hole, or bytes sent twice"
            self.log[task] = self.log.get(task, b"") + message.body
        return message

    def next_raw(self, patience_s: float = PATIENCE_S) -> wire.Message | None:
        """The next message, beats left out; None at the end of the channel."""
        assert self._started.stdout is not None
        deadline = time.monotonic() + patience_s
        while True:
            while self._pending:
                message = self._pending.pop(0)
                if message.type == "lacks":
                    self.write(payload.agent())
                    continue
                if message.type != "beat":
                    return message
            left = deadline - time.monotonic()
            assert left > 0, f"no message within {patience_s:g} s"
            if select.select([self._started.stdout], [], [], left)[0]:
                data = os.read(self._started.stdout.fileno(), 1 << 18)
                if not data:
                    return None
                self._pending += self._decoder.feed(data)

    def wait(self, *types: str) -> wire.Message:
        """The next message of one of these types; logs are gathered on the way, `failed` fails the test."""
        while message := self.next():
            if message.type in types:
                return message
            assert message.type != "failed", message
        raise AssertionError(f"the channel ended before {types}: {self.last_words()}")

    def gather(self, type: str, count: int) -> list[wire.Message]:
        return [self.wait(type) for _ in range(count)]

    def read_log(self, task: str, enough: Callable[[bytes], bool]) -> bytes:
        """The log of `task` once `enough` of it has come; every byte is paid for with credit."""
        while not enough(self.log.get(task, b"")):
            size = len(self.wait("log").body)
            self.send("credit", bytes=size)
        return self.log[task]

    def ask(self, type: str, body: bytes = b"", *, answer: str, **fields: Any) -> wire.Message:
        self.send(type, body, **fields)
        return self.wait(answer)

    def noise(self) -> bytes:
        return self._decoder.noise

    def last_words(self) -> str:
        """What came on stderr, once what was started has ended."""
        assert self._started.stderr is not None
        self._started.wait(PATIENCE_S)
        # A guard keeps none of it open; a daemon points its own at agent.log.
        return self._started.stderr.read().decode("utf-8", "replace")

    def wait_end(self) -> int:
        """The exit status of what was started."""
        return self._started.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill -9 what was started: what a lost connection looks like from the agent."""
        if self._started.poll() is None:
            self._started.kill()
        self._started.wait(PATIENCE_S)

    def close(self) -> None:
        """The launcher goes away."""
        for stream in (self._started.stdin, self._started.stdout, self._started.stderr):
            if stream is not None:
                stream.close()

    def stop(self, number: int = signal.SIGSTOP) -> None:
        os.kill(self._started.pid, number)


class Host:
    """One host as a test sees it: opens channels, and leaves nothing of its runs behind."""

    def __init__(self, directory: Path, python: str | None = None) -> None:
        self.run_dir = directory / "runs"
        self.run = f"test-{os.getpid()}-{directory.name}"
        self.env = dict(os.environ)
        if python is not None:
            self.env["PATH"] = python_path(directory / "bin", python)
        self.work_dir = directory
        self._channels: list[Channel] = []
        self._watched: dict[int, int] = {}

    @property
    def parent(self) -> Path:
        return self.run_dir / f"tflaunch-{os.getuid()}"

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.parent / self.run / "h1"

    def open(self, verb: str = "start", **options: Any) -> Channel:
        options = {"run": self.run, "host": "h1", "run_dir": self.run_dir, "env": self.env, **options}
        channel = Channel(verb, **options)
        self._channels.append(channel)
        return channel

    def attach(self, **watch: Any) -> Channel:
        """A view onto the run, of its agent or of what that has left; with fields of `watch`, it watches."""
        channel = self.open("visit", run="", host="")
        channel.wait("hello")  # the visit's own
        hello = channel.ask("attach", run=self.run, host="h1", answer="hello")
        assert hello["run"] == self.run
        if watch:
            channel.send("watch", **{"after": 0, "logs": {}, "window": 1 << 20, "client": "", **watch})
        return channel

    def start(self, **options: Any) -> Channel:
        """An agent that has said hello; it and its guard are watched."""
        channel = self.open("start", **options)
        hello = channel.wait("hello")
        self.watch(hello["pid"])
        self.watch(self.guard(hello["pid"]))
        channel.send("renew", lease_s=120.0)
        return channel

    def watch(self, pid: int) -> None:
        """Have this process ended with the test, whatever happens."""
        process = processes.read(pid)
        if process is not None:
            self._watched[process.pid] = process.start

    def guard(self, agent_pid: int) -> int:
        agent = processes.read(agent_pid)
        assert agent is not None
        return agent.parent

    def close(self) -> None:
        for channel in self._channels:
            channel.kill()
            channel.close()
        for pid, start in self._watched.items():
            if (process := processes.read(pid)) and process.start == start:
                processes.send(process, signal.SIGKILL)
        for process in marked(self.run):
            processes.send(process, signal.SIGKILL)
        until(lambda: not marked(self.run), "the processes of the run to be gone")
        shutil.rmtree(self.run_dir, ignore_errors=True)


def kill_both(directory: Path) -> None:
    """Kill the agent of that run directory and its guard, neither of which can act between the two."""
    about = json.loads((directory / "agent.json").read_text())
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for name in ("guard", "pid"):
            os.kill(about[name], number)
    until(lambda: not processes.alive(about["pid"], about["start"]), "the agent's end")
    until(lambda: not processes.alive(about["guard"], about["guard_start"]), "the guard's end")


def task(*argv: str, id: str = "worker/0", **fields: Any) -> dict[str, Any]:
    """A task of a `stage` message."""
    return {"id": id, "argv": list(argv), "env": {}, "cwd": None, "setup": [], "decided": [], **fields}


def shell(script: str, id: str = "worker/0", **fields: Any) -> dict[str, Any]:
    return task("/bin/sh", "-c", script, id=id, **fields)


def staged(channel: Channel, *tasks: dict[str, Any], window: int = 1 << 20) -> None:
    """Stage the tasks, without shipped code, and follow their logs."""
    channel.send("probe", lease=False, ports=None, count=1)
    channel.wait("facts")
    channel.ask(
        "stage", tasks=list(tasks), code=None, ports=[], gpus=[], door=False, attempt=0, answer="staged"
    )
    channel.send("watch", after=0, logs={}, window=window, client="test")


def running(channel: Channel, *tasks: dict[str, Any], window: int = 1 << 20) -> dict[str, int]:
    """Stage and release; the pids by task."""
    staged(channel, *tasks, window=window)
    channel.send("release")
    return {said["task"]: said["pid"] for said in channel.gather("started", len(tasks))}


IS_ROOT = os.getuid() == 0


# A process that nothing but KILL ends, and that no process group or parent leads to.
ESCAPE = """
import os, signal, sys, time
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print("escaped", os.getpid(), flush=True)
time.sleep(600)
"""


def swept(channel: Channel, grace_s: float = 5.0) -> dict[str, Any]:
    """End the run and take leave."""
    said = channel.ask("end", grace_s=grace_s, answer="swept")
    channel.leave()
    assert said.fields.pop("n") > 0
    assert said.fields.pop("time") > 0
    return said.fields


def failure(channel: Channel) -> tuple[str, str]:
    """The next `failed` message: reason and hint."""
    while message := channel.next():
        if message.type == "failed":
            return message["reason"], message["hint"]
    raise AssertionError(f"the channel ended: {channel.last_words()}")


def gone(*pids: int) -> None:
    until(lambda: not any(processes.read(pid) for pid in pids), f"{pids} to be gone")


def bind(port: int, *options: int, family: int = socket.AF_INET6, uid: int | None = None) -> int:
    """0, or the error number of a bind to `port` on every address."""
    script = (
        "import os, socket, sys\n"
        "family, port, uid, options = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]\n"
        "if uid >= 0: os.setuid(uid)\n"
        "s = socket.socket(family)\n"
        "for option in options: s.setsockopt(socket.SOL_SOCKET, int(option), 1)\n"
        "try: s.bind(('', port))\n"
        "except OSError as error: sys.exit(error.errno)\n"
        "s.listen()\n"
    )
    words = [sys.executable, "-c", script, str(int(family)), str(port), str(-1 if uid is None else uid)]
    return subprocess.run([*words, *map(str, options)], check=False).returncode


def small_disk(directory: Path, size: str) -> tuple[str, ...]:
    """A login shell that finds a file system of `size` on `directory`."""
    mount = f"mount -t tmpfs -o {size} tmpfs '{directory}' || exit 99"
    script = f'{mount}; [ "$1" = -c ] && shift; exec /bin/sh -c "$1"'
    words = ("unshare", "-m", "/bin/sh", "-c", script, "sh")
    if not IS_ROOT or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no private file system can be mounted here: that takes root")
    return words


def environment(directory: Path, path: str | None = None, **other: str) -> dict[str, str]:
    """What sshd gives a command: little; `home` empty, so that no start-up file says anything."""
    home = directory / "home"
    home.mkdir(exist_ok=True)
    return {"HOME": str(home), "PATH": path if path is not None else os.environ["PATH"], **other}


def hello(channel: Channel) -> None:
    try:
        assert channel.wait("hello")["pid"] > 0
    finally:
        channel.kill()
        channel.close()


def boot(tmp_path: Path) -> int:
    """Boot an agent; returns how many bytes that took."""
    hello(channel := Channel("visit", run_dir=tmp_path, env=environment(tmp_path)))
    return channel.written


def kept_modules(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob(f"tflaunch-{os.getuid()}/code/agent-*.pyc"))
