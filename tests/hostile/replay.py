"""The launcher's own code against what agents once said, with one lie in it; and what is promised of that.

A case is a real `tflaunch` command, in a process of its own that is forked from one in which the modules are loaded,
over two hosts of `connection: local` whose `python3` plays the recording (tests.hostile.relay): all of the launcher
is real.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hostile import relay
from tests.hostile.cases import HOSTILE, Case, messages, recordings, samples
from tests.hostile.mutations import MARK
from tests.hostile.record import HOSTS

CODES = (0, 2, 65, 69, 70, 73, 74, 76, 124, 130, 143)  # of tflaunch.cli.exit_codes, beside the tasks' own
PATIENCE_S = float(os.environ.get("PATIENCE", "60"))  # for what waits for no time limit
LONG_S = 130.0
CPU_S = 10.0
MEMORY_MB = 400  # more than the command takes otherwise
INTERRUPT_S = 2.0  # for a command that does not end by itself
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")
FAKED = re.compile("^fake .*", re.MULTILINE)  # what stands behind the newline of mutations.ESCAPES
SAYS_LINES = ("log", "exit", "tensorboard")  # whose lines are shown as lines
DEFECTS = (
    "Traceback (most recent call last)",
    "a defect of tflaunch",
    "Exception in thread",
    "Exception ignored",
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass(frozen=True)
class Breach:
    """A promise that was not kept."""

    case: str
    what: str

    def __str__(self) -> str:
        return f"{self.case}: {self.what}"


@dataclass(frozen=True)
class Seen:
    """How the command of a case has ended."""

    case: Case
    code: int | None  # None: it did not end
    out: bytes
    err: bytes
    seconds: float
    cpu_s: float
    memory_mb: float
    odd: tuple[str, ...]  # files where none should be
    told: bool  # the lie was told


class _Stage:
    """What a case plays on: a directory of its own."""

    def __init__(self, case: Case, root: Path) -> None:
        recorded = recordings()[case.scenario]
        text = (
            json.dumps(recorded)
            .replace("@ROOT@", str(root))
            .replace("@PYTHON@", str(Path(sys.executable).parent))
        )
        recorded = json.loads(text)
        self.case, self.root = case, root
        for name, content in recorded["files"].items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8", "surrogateescape")
        for name in ("home", "scratch", "code"):
            (root / name).mkdir(exist_ok=True)
        (root / "channels.json").write_text(json.dumps(recorded["channels"]))
        (root / "samples.json").write_text(json.dumps(samples()))
        (root / "plan.json").write_text(
            json.dumps(
                {
                    "mode": "play",
                    "channels": str(root / "channels.json"),
                    "samples": str(root / "samples.json"),
                    "scratch": str(root / "scratch"),
                    "mutation": str(case.mutation),
                    "hosts": [HOSTILE],
                }
            )
        )
        lease = ["--lease=5s"] if recorded["words"][0] in ("run", "sweep") else []
        self.argv = ["tflaunch", *recorded["words"], *lease, *case.view.split()]
        self.ends = recorded["ends"]
        self.before = self._files()

    @property
    def env(self) -> dict[str, str]:
        """The user's."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TFLAUNCH_", "XDG_"))
        }
        bins = self.root.parent / "bin"
        return {
            **kept,
            "HOME": str(self.root / "home"),
            "TFLAUNCH_STATE": str(self.root / "state"),
            "TFLAUNCH_CANARY": str(self.root / "canary"),
            relay.PLAN: str(self.root / "plan.json"),
            "PATH": f"{bins}:{os.environ['PATH']}",
            "COLUMNS": "200",
        }

    def _files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def odd(self) -> tuple[str, ...]:
        """Files that nobody asked for: all but records of runs, and outputs that match the patterns."""
        got = r"code/got(/\.tflaunch-fetched|/out(/[\w-]+\.txt|/\.tflaunch-[\w-]+\.part)?)?"
        mine = re.compile(rf"(state|scratch|home/\.cache)(/.*)?|out|err|{got}")
        odd = [name for name in sorted(self._files() - self.before) if not mine.fullmatch(name)]
        odd += [name for name in self._files() if MARK in name]
        odd += ["/tmp/" + MARK] if Path("/tmp", MARK).exists() else []
        if (self.root / "canary").exists():
            odd.append("a module that the host has named was imported")
        return tuple(odd)


def play(cases: Iterable[Case], jobs: int = 2, keep: Path | None = None) -> Iterator[Seen]:
    """Play these cases, `jobs` at a time; to be called in a process without threads.  `keep`: leave the directories."""
    _load()
    # No TemporaryDirectory: the commands are forked from here, and the first that ends would remove it.
    top = keep or Path(tempfile.mkdtemp(prefix="tflaunch-attacked-"))
    top.mkdir(exist_ok=True)
    relay.install(top / "bin")
    with contextlib.ExitStack() as stack:
        if keep is None:
            stack.callback(shutil.rmtree, top, ignore_errors=True)
        running: dict[int, tuple[_Stage, float, float]] = {}
        waiting = iter(cases)
        number = 0
        left = True
        try:
            while left or running:
                while left and len(running) < jobs:
                    case = next(waiting, None)
                    if case is None:
                        left = False
                        break
                    number += 1
                    root = top / f"case{number:05}"
                    root.mkdir()
                    stage = _Stage(case, root)
                    now = time.monotonic()
                    running[_fork(stage)] = (stage, now, now + (LONG_S if case.mutation.slow else PATIENCE_S))
                yield from _reap(running, keep is not None)
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)


def _reap(running: dict[int, tuple[_Stage, float, float]], keep: bool) -> Iterator[Seen]:
    for pid, (stage, began, end) in list(running.items()):
        now = time.monotonic()
        done, status, used = os.wait4(pid, os.WNOHANG)
        if not done and now < end:
            if not stage.ends and now - began > INTERRUPT_S:
                stage.ends = True  # Ctrl-C once
                os.kill(pid, signal.SIGINT)
            continue
        code: int | None = None
        if done:
            code = os.waitstatus_to_exitcode(status)
        else:
            os.kill(pid, signal.SIGKILL)
            _, _, used = os.wait4(pid, 0)
        del running[pid]
        root = stage.root
        yield Seen(
            stage.case,
            code,
            (root / "out").read_bytes(),
            (root / "err").read_bytes(),
            now - began,
            used.ru_utime + used.ru_stime,
            used.ru_maxrss / 1024,
            stage.odd(),
            (root / "scratch" / "told").exists(),
        )
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
        return
    time.sleep(0.005)


def _load() -> None:
    from tflaunch.cli import VERBS, application

    application(VERBS)
    import importlib
    import pkgutil

    import tflaunch

    for module in pkgutil.walk_packages(tflaunch.__path__, "tflaunch."):
        if not module.name.startswith(("tflaunch.agent", "tflaunch.in_task", "tflaunch.__main__")):
            importlib.import_module(module.name)


def _fork(stage: _Stage) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    env = stage.env
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        for number, name in ((1, "out"), (2, "err")):
            with (stage.root / name).open("wb") as file:
                os.dup2(file.fileno(), number)
        os.chdir(stage.root / "code")
        os.environ.clear()
        os.environ.update(env)
        sys.argv = list(stage.argv)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
        from tflaunch.cli import main

        code = main()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return code


def breaches(seen: Seen) -> list[Breach]:
    """What was promised and did not come about."""
    mutation = seen.case.mutation
    text = (seen.out + b"\n" + seen.err).decode("utf-8", "replace")
    found = []
    if seen.code is None:
        found.append(f"did not end within {seen.seconds:.0f} s")
    elif seen.code < 0:
        found.append(f"ended by signal {-seen.code}")
    elif seen.code not in CODES and not _forged(seen):
        found.append(f"exit code {seen.code}")
    for defect in DEFECTS:
        if defect in text:
            found.append(f"{defect.split(' (')[0]}: {_last_words(text, defect)}")
            break
    if (row := FAKED.search(text)) and mutation.type not in SAYS_LINES:
        found.append(f"a newline made a row: {row[0]!r}")
    if shown := CONTROL.search(text):
        line = text[max(0, shown.start() - 60) : shown.end() + 20]
        found.append(f"showed {shown[0]!r}: {line!r}")
    if "--json" in seen.case.view and (problem := _no_json(seen.out)):
        found.append(problem)
    found += [f"wrote {name}" for name in seen.odd]
    if seen.cpu_s > CPU_S:
        found.append(f"{seen.cpu_s:.0f} s of CPU")
    if seen.memory_mb > MEMORY_MB + _own_mb():
        found.append(f"{seen.memory_mb:.0f} MB of memory")
    if len(text) > 3_000_000:
        found.append(f"{len(text) / 1e6:.1f} MB shown")
    return [Breach(str(seen.case), what) for what in found]


def _own_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _forged(seen: Seen) -> bool:
    """Whether it is the code of a task: of one in the recording, or one that the host has made up."""
    if seen.code != 1 and seen.case.mutation.type in ("exit", "outcome", "runs"):
        return True
    codes = {recordings()[seen.case.scenario]["code"]}
    for host in HOSTS:
        for message in messages(seen.case.scenario, host):
            if message.type == "exit":
                signal_ = message.fields["signal"]
                codes.add(message.fields["code"] if signal_ is None else 128 + signal_)
    return seen.code in codes


def _no_json(out: bytes) -> str:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    for document in [out] if out.startswith(b"{\n") or out.startswith(b"[") else out.splitlines():
        try:
            json.loads(document, parse_constant=refuse)
        except ValueError as error:
            return f"no JSON: {error}: {document[:80]!r}"
    return ""


def _last_words(text: str, defect: str) -> str:
    after = text[text.index(defect) :]
    if defect.startswith("a defect"):
        return after.splitlines()[0][:160]
    frames = _FRAME.findall(after)
    last = [frame for frame in frames if "/tflaunch/" in frame[0]] or frames
    place = ":".join((last[-1][0].rpartition("/tflaunch/")[2], *last[-1][1:])) if last else ""
    error = next(
        (line for line in after.splitlines()[1:] if line and not line.startswith((" ", "Traceback"))), ""
    )
    return f"{error[:140]} at {place}"


def breaches_of(cases: Sequence[Case], jobs: int = 2) -> list[Breach]:
    """All promises that these cases break."""
    return [breach for seen in play(cases, jobs) for breach in breaches(seen)]
