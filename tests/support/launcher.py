"""`tflaunch` as a user runs it: a real process with a home, a record and hosts of its own.

    launcher = Launcher(tmp_path, network.config)        # or the `launcher` fixture
    done = launcher.run("run", hostfile, script, "--", "argument")
    with launcher.start("run", ...) as running:
        running.wait_for("training")                     # until its stderr (or stdout) says so
        running.interrupt()
        assert running.end() == 130

Everything that a run starts on a host, its agents included, is found by `leftovers`: over SSH and locally the
home directory of all of it lies below the test's own directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import yaml

from tests.support import kept_agent, preloaded
from tests.support.patience import PATIENCE_S, until
from tflaunch.agent.host import foreign
from tflaunch.documents.json_documents import DOCUMENTS
from tflaunch.documents.json_objects import of_document, of_event

TFLAUNCH = (sys.executable, "-c", "from tflaunch.__main__ import command; command()")
OVER_SSH = (
    "run",
    "up",
    "sweep",
    "tune",
    "check",
    "stop",
    "clean",
    "ps",
    "stacks",
    "top",
    "profile",
    "status",
    "attach",
    "logs",
    "fetch",
    "tensorboard",
)

# A trainer that writes what it was told to $OUT/worker-0.json; a ps then waits to be stopped.
TELL = """\
import json, os, signal, sys
task = os.environ["TFLAUNCH_TASK"]
told = {
    "argv": [os.fsencode(word).hex() for word in sys.argv],
    "env": dict(os.environ),
    "cwd": os.getcwd(),  # noqa: PTH109  the logical or physical directory, whichever the system gives
    "python": sys.executable,
    "here": os.path.dirname(os.path.abspath(__file__)),
    "stdin": sys.stdin.read(),
    "ignored": [number for number in signal.Signals if signal.getsignal(number) == signal.SIG_IGN],
    "files": sorted(os.path.join(place, name) for place, _, names in os.walk(".") for name in names),
}
path = os.path.join(os.environ["OUT"], task.replace("/", "-") + ".json")
with open(path + ".new", "w") as file:
    json.dump(told, file)
os.rename(path + ".new", path)
if task.startswith("ps"):
    signal.pause()
"""


class SshConfig(Protocol):
    """Where the ssh_config of the test's hosts comes from: `tests.support.sshd.SshNetwork`."""

    @property
    def config(self) -> Path: ...


@dataclass(frozen=True)
class Told:
    """What a task of TELL has written down."""

    argv: tuple[bytes, ...]
    env: Mapping[str, str]
    cwd: str
    python: str
    here: str
    stdin: str
    ignored: tuple[int, ...]
    files: tuple[str, ...]

    @property
    def host(self) -> str:
        """Where it ran."""
        return self.env["TFLAUNCH_HOST"]


def told(out: Path) -> dict[str, Told]:
    """What the tasks of TELL wrote into `out`, by task."""
    found = {}
    for path in out.glob("*.json"):
        said: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in json.loads(path.read_text()).items()
        }
        said["argv"] = tuple(map(bytes.fromhex, said["argv"]))
        job, _, index = path.stem.rpartition("-")
        found[f"{job}/{index}"] = Told(**said)
    return found


@dataclass(frozen=True)
class Process:
    """A live process that a run has started."""

    pid: int
    words: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def is_agent(self) -> bool:
        """Whether it is of the agent (what sshd has started, the guard, the daemon), not a task's."""
        return "tflaunch-agent" in self.words

    @property
    def asks(self) -> bool:
        """Whether it is a child of an agent, or of another, that asks what may never answer."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text().strip() in foreign.NAMES
        except OSError:  # it has ended
            return False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal; that it has ended meanwhile is fine."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def __str__(self) -> str:
        return f"{self.pid} {' '.join(word for word in self.words if len(word) < 200)}"


def processes(holds: str = "") -> list[Process]:
    """All live processes whose environment may be read, and `holds` that text; a zombie has none any more."""
    found = []
    text = os.fsencode(holds)
    for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - often asked, of every process there is
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb", 0) as file:  # noqa: PTH123
                environment = file.read()
            if text not in environment:
                continue
            env = dict(os.fsdecode(each).partition("=")[::2] for each in environment.split(b"\0") if each)
            words = tuple(map(os.fsdecode, Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]))
            if env:
                found.append(Process(int(pid), words, env))
    return found


def alive(pid: int) -> bool:
    """Whether a process `pid` lives; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def parents(pid: int) -> int:
    """The parent of `pid`, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """What `--json` printed; every line must be an object, and every event as it is declared."""
        found: list[dict[str, Any]] = [json.loads(line) for line in self.out.splitlines()]
        for each in found:
            if "event" in each:
                assert not (fault := of_event(each)), fault
        return found

    def check_documents(self, verb: str) -> None:
        """Fails unless every document that `--json` has printed is as it is declared."""
        assert "{host}" not in self.out, "a hint that does not name its host"
        for each in map(json.loads, self.out.splitlines()):
            fault = of_event(each) if "event" in each else of_document(verb, each)
            assert not fault, fault

    @property
    def sentences(self) -> str:
        """stderr on one line: how a table or a narrow terminal broke it does not matter."""
        return " ".join(self.err.split())

    def ran(self, code: int = 0) -> Done:
        """Itself, if it ended with `code`."""
        assert self.code == code, f"exit code {self.code}\n{self.err}\n{self.out}"
        assert "Traceback" not in self.err, self.err
        return self


@dataclass(frozen=True)
class Inside:
    """Another machine of this kernel, on which a command is typed."""

    words: Sequence[str]  # that lead there, before the command's own
    namespaces: Sequence[str]  # its files in /proc
    cwd: Path


HERE = Inside((), (), Path())


def started(
    argv: Sequence[str | bytes | Path],
    cwd: Path,
    env: Mapping[str, str],
    inside: Inside = HERE,
    *,
    streams: tuple[int, int, int],
    controls: bool = False,
) -> subprocess.Popen[bytes] | preloaded.Preloaded:
    """A command in a session of its own, forked where that can be; `controls`: its terminal controls it."""
    words = [os.fsdecode(word) for word in argv[len(inside.words) :]]
    if tuple(words[:2]) == TFLAUNCH[:2] and preloaded.can_start(env):
        return preloaded.Preloaded(
            words[2],
            words[3:],
            env,
            cwd / inside.cwd,
            streams=streams,
            namespaces=inside.namespaces,
            controls=controls,
        )
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_take_terminal if controls else None,  # noqa: PLW1509
    )


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Running:
    """A command that runs, its output in files; as a context it is killed at the end if it still lives."""

    def __init__(
        self,
        argv: Sequence[str | bytes | Path],
        directory: Path,
        cwd: Path,
        env: Mapping[str, str],
        inside: Inside = HERE,
    ) -> None:
        directory.mkdir(parents=True)
        self.stdout, self._err = directory / "out", directory / "err"
        with (
            Path(os.devnull).open("rb") as nothing,
            self.stdout.open("wb") as out,
            self._err.open("wb") as err,
        ):
            streams = (nothing.fileno(), out.fileno(), err.fileno())
            self.process = started(argv, cwd, env, inside, streams=streams)

    @property
    def out(self) -> str:
        """stdout so far."""
        return self.stdout.read_text("utf-8", "surrogateescape")

    @property
    def err(self) -> str:
        """stderr so far."""
        return self._err.read_text("utf-8", "surrogateescape")

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until what it printed holds `text` (`count` times); fails when it ends without."""

        def there() -> bool:
            ended = self.process.poll() is not None
            if (self.out + self.err).count(text) >= count:
                return True
            assert not ended, (
                f"ended with {self.process.returncode}, never said {text!r}\n{self.err}\n{self.out}"
            )
            return False

        until(
            there, f"{text!r} in its output", 2 * PATIENCE_S
        )  # an engine may start a cluster of its own first

    @property
    def run_id(self) -> str:
        """The run that it has started; waits for it."""
        self.wait_for("run ")
        found = until(lambda: re.search(r"^run (\S+)$", self.err, re.MULTILINE), "the run's id")
        return str(found[1])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.signal(signal.SIGINT)

    def end(self, patience_s: float = 2 * PATIENCE_S) -> int:
        """Wait for its end, which may come after TensorFlow was imported; returns the exit code."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {patience_s:g} s\n{self.err}\n{self.out}") from None

    def done(self, patience_s: float = 2 * PATIENCE_S) -> Done:
        """Wait for its end; returns everything about it."""
        code = self.end(patience_s)
        return Done(code, self.out, self.err)

    def close(self) -> None:
        """Kill it if it still lives."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, traceback: TracebackType | None) -> None:
        self.close()


class Launcher:
    """A user with a home directory, trainers, hostfiles and records, all below `directory`."""

    as_declared = True  # what `--json` prints is compared with what this version declares

    def __init__(self, directory: Path, network: SshConfig | None = None) -> None:
        self.directory = directory
        self.home = directory / "launcher-home"
        self.home.mkdir(exist_ok=True)
        self.state = directory / "state"  # the launcher's records
        self.hosts = directory / "hosts"  # `run_dir` of every host
        kept_agent.keep(self.hosts, *kept_agent.pythons_here())
        self.code = directory / "code"
        self.code.mkdir(exist_ok=True)
        self._network = network
        self._started: list[Running] = []

    # -- what a user has -----------------------------------------------------------------------------------

    def script(self, text: str, name: str = "trainer.py") -> Path:
        """A trainer with that source, in a directory with nothing else but other trainers."""
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def forget_agent(self) -> None:
        """Have hosts keep nothing, as before their first run."""
        shutil.rmtree(self.hosts)

    def hostfile(self, hosts: Iterable[object], name: str = "hosts.yaml", **defaults: object) -> Path:
        """A hostfile of these hosts (names or mappings); `run_dir` is below the test's directory.

        A default that is None is left out.
        """
        path = self.directory / name
        settings = {"run_dir": str(self.hosts), "gpus": 0, **defaults}
        settings = {key: value for key, value in settings.items() if value is not None}
        content = {"defaults": settings, "hosts": list(hosts)}
        path.write_text(yaml.safe_dump(content, allow_unicode=True))
        return path

    def local(self, count: int = 4, **defaults: object) -> Path:
        """A hostfile of hosts that are all this machine, without SSH."""
        return self.hostfile([f"local[1-{count}]"], "hosts.yaml", connection="local", **defaults)

    # -- what a user does ----------------------------------------------------------------------------------

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        """The command line, with the test's own ssh_config."""
        ssh: list[str | Path] = ["-F", self._network.config] if self._network and verb in OVER_SSH else []
        return [*TFLAUNCH, verb, *ssh, *words]

    def inside(self) -> Inside:
        """Where its commands are typed."""
        return HERE

    def env(self, **more: str) -> dict[str, str]:
        """The environment of the user's shell."""
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("TFLAUNCH_", "XDG_"))
        }
        env |= {"HOME": str(self.home), "TFLAUNCH_STATE": str(self.state), "COLUMNS": "200"}
        env |= {"VIRTUAL_ENV": sys.prefix, **more}  # the environment that the tests run in is the active one
        env.pop("SSH_AUTH_SOCK", None)
        return env

    def start(
        self,
        verb: str,
        *words: str | bytes | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Running:
        """Start `tflaunch VERB ...`."""
        running = Running(
            self.argv(verb, *words),
            self.directory / "output" / str(len(self._started)),
            cwd or self.code,
            self.env(**(env or {})),
            self.inside(),
        )
        self._started.append(running)
        return running

    def run(
        self,
        verb: str,
        *words: str | bytes | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """Run `tflaunch VERB ...` to its end."""
        with self.start(verb, *words, cwd=cwd, env=env) as running:
            done = running.done()
        if "--json" in words and verb in DOCUMENTS and self.as_declared:
            done.check_documents(f"{verb} --all-users" if "--all-users" in words else verb)
        return done

    # -- what is there -------------------------------------------------------------------------------------

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What runs on the hosts: tasks, whatever they started, agents; of all runs or of one."""
        inside = f"{self.directory}{os.sep}"
        mine = {running.process.pid for running in self._started} | {os.getpid()}
        return [
            process
            for process in processes(f"HOME={inside}")
            if process.pid not in mine
            and process.env.get("HOME", "").startswith(inside)
            and not "".join(process.words[:1]).rpartition("/")[2].startswith("sshd")  # the test's own servers
            and (
                run is None
                or process.env.get("TFLAUNCH_RUN") == run
                or (process.is_agent and run in process.words)
            )
        ]

    def agents(self, host: str | None = None) -> dict[str, int]:
        """Pids of agent and guard, as the agent of (the only run on) the host has written them down."""
        records = list(self.hosts.glob(f"tflaunch-*/*/{host or '*'}/agent.json"))
        assert len(records) == 1, records
        about = json.loads(records[0].read_text())
        return {"agent": about["pid"], "guard": about["guard"]}

    def wait_until_nothing_is_left(self, patience_s: float = PATIENCE_S) -> None:
        """Until no process of any run lives on any host; fails with what does."""
        deadline = time.monotonic() + patience_s
        while left := self.leftovers():
            assert time.monotonic() < deadline, f"still alive after {patience_s:g} s: {[*map(str, left)]}"
            again = (
                time.monotonic() + 1
            )  # to look at all processes of this machine costs more than to look at these
            while time.monotonic() < again and any(alive(process.pid) for process in left):
                time.sleep(0.02)

    def wait_until_no_run_is_kept(self) -> None:
        """Until no host keeps the directory of a run: an agent whose run started nothing removes it as it leaves."""
        until(lambda: not self.run_directories(), f"no run directory: {self.run_directories()}")

    def records(self) -> list[Path]:
        """The launcher's records of runs."""
        return sorted(self.state.glob("[!.]*"))

    def run_directories(self) -> list[Path]:
        """What is in the run directories of all hosts: `<run>/<host>`."""
        return sorted(path for path in self.hosts.glob("tflaunch-*/[!.]*/*") if path.parent.name != "code")

    def close(self) -> None:
        """End what the test started; fails when a run has left something behind."""
        for running in self._started:
            running.close()
        try:
            self.wait_until_nothing_is_left()
        finally:
            for process in self.leftovers():
                process.kill()
