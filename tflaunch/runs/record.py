"""The launcher's record of its runs, on disk: one directory a run.

    $TFLAUNCH_STATE, else $XDG_STATE_HOME/tflaunch/runs, else ~/.local/state/tflaunch/runs
    └── trainer-k3f9x2/
        ├── run.json         what was started, by whom, and how its hosts are reached
        ├── outcome.json     how it ended; absent while it runs, and when the launcher was killed
        ├── lock             held (flock) for as long as the launcher lives, so no pid need be trusted
        └── logs/worker-0.log   every byte that the task wrote; worker-0.1.log after its first restart

Directories are 0700 and files 0600: a command line or an environment may hold secrets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tflaunch import __version__
from tflaunch.hosts import Host, Hostfile
from tflaunch.protocol.errors import EXIT_STOPPED, RecordError, UsageError
from tflaunch.protocol.job import TaskId, log_name
from tflaunch.protocol.outcome import Outcome, outcome_data

if TYPE_CHECKING:  # most verbs plan nothing
    from tflaunch.planning.cluster_plan import ClusterPlan

Status = Literal["running", "detached", "ended", "orphaned", "corrupt"]
LIVELY = ("running", "detached", "orphaned")  # in these a run may be alive

VALUE_LEFT_OUT = "***"  # for that of a variable
# Options that set variables, -e also at the end of several in one word, each with what stands before the value.
_VARIABLES = (("--env", "[^=]+="), ("-[a-zA-Z]*e", "[^=]+="), ("--job-env", "[^=]+=[^=]+="))
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_STEM_LENGTH = 33  # with a dash and six characters: 40
_FORMAT = 1
_ASIDE = ".clean-"  # how the names of records that are being removed begin
_MAKING_S = 3600.0
_TRIES, _PAUSE_S = 5, 0.02  # to lock a record
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # how a rename says so, on either system
_OPEN_LOGS = 64  # a laptop allows 256 descriptors, and every host needs some of them too


def state_root() -> Path:
    """Return the directory that holds all records; it need not exist."""
    if chosen := os.environ.get("TFLAUNCH_STATE"):
        return Path(chosen).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification has relative paths ignored.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "tflaunch" / "runs"


def new_run_id(stem: str) -> str:
    """Return a fresh id such as `trainer-k3f9x2`: at most 40 characters, safe as a file name anywhere."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_STEM_LENGTH].rstrip("-")
    return f"{name or 'run'}-{''.join(secrets.choice(_BASE32) for _ in range(6))}"


@contextlib.contextmanager
def naming(root: Path | None = None) -> Iterator[None]:
    """Inside, nobody else looks for a name that is free, and takes it; raises RecordError."""
    root = root or state_root()
    with _writing(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def is_run_id(text: str) -> bool:
    """Return whether `text` is 1 to 64 of a-z, 0-9, `.`, `_` and `-`, begins with a letter or a digit, without `..`."""
    return bool(_RUN_ID.fullmatch(text)) and ".." not in text


def check_run_id(text: str) -> str:
    """Return `text` when it is a run id; raises UsageError for anything that could leave its directory."""
    if not is_run_id(text):
        raise UsageError(
            f"not a run id: {text[:80]!r}",
            "It is 1 to 64 of a-z, 0-9, '.', '_' and '-', begins with a letter or a digit, and has no '..'.",
        )
    return text


@dataclass(frozen=True)
class RunInfo:
    """One line of the list of runs; of a corrupt record only its id, path and `problem` are known."""

    run_id: str
    status: Status
    path: Path
    started: float = 0.0  # epoch seconds
    command: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    exit_code: int | None = None  # once ended
    problem: str = ""  # why it cannot be read


@dataclass
class _Log:
    """A file that is open; nobody else writes to it."""

    descriptor: int
    size: int


class Record:
    """The record of one run.  The launcher that created it holds its lock until `close`."""

    def __init__(self, path: Path, about: dict[str, Any], lock: int | None = None) -> None:
        self.path = path
        self.about = about  # run.json, as data
        self.failure = ""  # why no more logs are written here
        self._lock = lock
        self._logs: OrderedDict[tuple[TaskId, int], _Log] = OrderedDict()  # least recently used first
        self._skipped: dict[tuple[TaskId, int], int] = {}  # bytes of a log that never come

    @property
    def run_id(self) -> str:
        """The name of the run, and of its directory."""
        return self.path.name

    @property
    def command(self) -> tuple[str, ...]:
        """The launcher's own command line."""
        return tuple(self.about["command"])

    @property
    def ssh_config(self) -> Path | None:
        """The ssh_config that its hosts are reached by, if one was named."""
        named = self.about.get("ssh_config")
        return Path(named) if named else None

    @property
    def started(self) -> float:
        """When the run began, in epoch seconds."""
        return float(self.about["started"])

    @classmethod
    def create(
        cls,
        run_id: str,
        *,
        plan: ClusterPlan,
        hostfile: Hostfile,
        command: Sequence[str],
        ssh_config: str | None = None,
        detached: bool = False,
        root: Path | None = None,
    ) -> Record:
        """Write the record of a run that begins, and lock it.

        It appears whole or not at all.  Raises UsageError for a bad or used id, RecordError when the disk
        says no.
        """
        root = root or state_root()
        path = root / check_run_id(run_id)
        about = _about(
            run_id,
            plan=plan,
            hostfile=hostfile,
            command=command,
            ssh_config=ssh_config,
            detached=detached,
        )
        with _writing(path):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=f".{run_id[:40]}-", dir=root))  # 0700
            lock = None
            try:
                (building / "logs").mkdir(mode=0o700)
                _write_json(building / "run.json", about)
                lock = os.open(building / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                building.rename(path)
            except BaseException as error:
                if lock is not None:
                    os.close(lock)
                shutil.rmtree(building, ignore_errors=True)
                if isinstance(error, OSError) and error.errno in _IN_THE_WAY and path.exists():
                    raise UsageError(
                        f"there is already a run {run_id!r}: {path}",
                        "Choose another run id, or leave it out and get a fresh one.",
                    ) from None
                raise
        return cls(path, about, lock)

    @classmethod
    def open(cls, name: str, root: Path | None = None) -> Record:
        """Open the record of a run by its id, or by the beginning of its id when only one begins so.

        Raises UsageError when none or several fit, RecordError when the record cannot be read.
        """
        root = root or state_root()
        check_run_id(name)
        names = _names(root)
        found = [name] if name in names else [other for other in names if other.startswith(name)]
        if not found:
            raise UsageError(
                f"no run {name!r} is on record in {root}",
                "A run of another machine is found by its hosts: give the hostfile too.",
            )
        if len(found) > 1:
            shown = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
            raise UsageError(f"{len(found)} runs begin with {name!r}: {shown}", "Write more of the id.")
        path = root / found[0]
        with _reading(path):
            return cls(path, _read_about(path))

    @classmethod
    def reopen(cls, run_id: str, root: Path | None = None) -> Record:
        """Open the record of a run that is to go on, and lock it.

        Raises UsageError when there is none, or another launcher has it; RecordError when it cannot be read.
        """
        record = cls.open(check_run_id(run_id), root)
        if record.run_id != run_id:
            raise UsageError(f"no run {run_id!r} is on record", f"is {record.run_id} meant?")
        with _reading(record.path):
            lock = os.open(record.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for attempt in range(_TRIES):  # somebody who only looks holds it for an instant
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if attempt == _TRIES - 1:
                        os.close(lock)
                        pid = record.about.get("pid")
                        raise UsageError(
                            f"{run_id} is going on: its launcher, pid {pid}, is alive",
                            f"watch it: tflaunch attach {run_id}; or end it: tflaunch stop {run_id}",
                        ) from None
                    time.sleep(_PAUSE_S)
        record._lock = lock
        return record

    def resume(
        self,
        hostfile: Hostfile,
        command: Sequence[str],
        ssh_config: str | None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """Note that the run goes on, how its hosts are reached now, and why others are left out; raises RecordError."""
        from tflaunch.planning.cluster_plan import ClusterPlan

        about = _about(
            self.run_id,
            plan=ClusterPlan(self.run_id, (), left_out=left_out or {}),
            hostfile=hostfile,
            command=command,
            ssh_config=ssh_config,
            detached=False,
        )
        self.about = {**about, "started": self.started}
        with _writing(self.path):
            _write_json(self.path / "run.json", self.about)
            (self.path / "outcome.json").unlink(missing_ok=True)

    def read(self, name: str) -> dict[str, Any] | None:
        """What else was written into the record under that name; None: nothing. Raises RecordError."""
        with _reading(self.path):
            try:
                return _read_object(self.path / name)
            except FileNotFoundError:
                return None

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Keep something more in the record; raises RecordError."""
        with _writing(self.path):
            _write_json(self.path / name, dict(value))

    @property
    def plan(self) -> ClusterPlan:
        """The plan that was launched, of what the user set in `env` only the names.

        Raises RecordError when the record does not hold one.
        """
        from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan

        with _reading(self.path):
            plan = _tuples(self.about["plan"])
            tasks = tuple(TaskPlan(**{**task, "id": TaskId(*task["id"])}) for task in plan["tasks"])
            return ClusterPlan(**{**plan, "tasks": tasks})

    def append_log(self, task: TaskId, offset: int, data: bytes, attempt: int = 0) -> None:
        """Store bytes of a task's log that begin at `offset` there; what is already stored is not doubled.

        Bytes that never came are a hole in the file, so that offsets are those of the host's log; but for those that
        `skip_log` has named.  Raises
        RecordError the first time that the disk says no, and stores nothing after that: the run goes on,
        and the host has the log.
        """
        if self.failure:
            return
        try:
            log = self._logs.get((task, attempt))
            if log is None:
                while len(self._logs) >= _OPEN_LOGS:
                    os.close(self._logs.popitem(last=False)[1].descriptor)
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(self.log_path(task, attempt), flags, 0o600)
                log = self._logs[task, attempt] = _Log(descriptor, os.fstat(descriptor).st_size)
            self._logs.move_to_end((task, attempt))
            offset -= self._skipped.get((task, attempt), 0)
            known = max(0, log.size - offset)
            rest, at = memoryview(data)[known:], offset + known
            while rest:
                written = os.pwrite(log.descriptor, rest, at)
                rest, at = rest[written:], at + written
                log.size = at
        except OSError as error:
            self.failure = _sentence(error)
            raise RecordError(
                f"cannot write {self.log_path(task, attempt)}: {self.failure}",
                "The run goes on; its logs stay on the hosts, this machine's copies are no longer complete.",
            ) from error

    def skip_log(self, task: TaskId, offset: int, attempt: int = 0) -> None:
        """What of that log comes before `offset`, and is not here, is gone: what follows stands right behind."""
        log = self._logs.get((task, attempt))
        try:
            size = log.size if log is not None else self.log_path(task, attempt).stat().st_size
        except OSError:
            size = 0
        self._skipped[task, attempt] = max(0, offset - size)

    def end_log(self, task: TaskId, attempt: int = 0) -> None:
        """Keep that log open no longer: nothing more comes."""
        log = self._logs.pop((task, attempt), None)
        if log is not None:
            os.close(log.descriptor)

    def log_path(self, task: TaskId, attempt: int = 0) -> Path:
        """Return where the launcher's copy of a task's log is; it exists once the task wrote something."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", task.job):
            raise ValueError(f"not a job name: {task.job!r}")
        return self.path / "logs" / log_name(task, attempt)

    def replan(self, plan: ClusterPlan, hostfile: Hostfile) -> None:
        """Note that the run goes on by another plan, and on which hosts it may be; raises RecordError."""
        self.about = {**self.about, "plan": _plain(_without_values(plan)), "hostfile": _plain(hostfile)}
        with _writing(self.path):
            _write_json(self.path / "run.json", self.about)

    def finish(self, outcome: Outcome) -> None:
        """Write how the run ended; raises RecordError.  The record stays locked until `close`."""
        with _writing(self.path):
            _write_json(self.path / "outcome.json", {**outcome_data(outcome), "ended": time.time()})

    def discard(self) -> None:
        """Remove the record of a run that never began."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def outcome(self) -> dict[str, Any] | None:
        """Return outcome.json as data, or None when the run has not ended (or its launcher was killed).

        Keys: `status`, `exit_code`, `seconds`, `ended`, `exits` (task, host, code, signal, seconds,
        stopped), `first_failure`, `unverified`, `survivors`, `cards`, `host_logs`.  Raises RecordError.
        """
        with _reading(self.path):
            return _read_outcome(self.path)

    def running(self) -> bool:
        """Return whether the launcher that created this record is alive; raises RecordError."""
        if self._lock is not None:
            return True
        with _reading(self.path):
            return _locked(self.path)

    def close(self) -> None:
        """Close the logs and give up the lock; may be called twice."""
        for log in self._logs.values():
            os.close(log.descriptor)
        self._logs.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def hostfile_from(record: Record) -> Hostfile:
    """Rebuild the Hostfile of a run, so that its hosts are reached as they were then; raises RecordError."""
    with _reading(record.path):
        hostfile = _tuples(record.about["hostfile"])
        return Hostfile(hostfile["source"], tuple(Host(**host) for host in hostfile["hosts"]))


def forget_orphan(run_id: str, root: Path | None = None) -> None:
    """Note that a run whose launcher is gone has been stopped, so that nobody looks for it again."""
    note_end(Outcome(run_id, "interrupted", EXIT_STOPPED, 0.0), root)


def note_end(outcome: Outcome, root: Path | None = None) -> None:
    """Note how a run has ended whose launcher is gone, if it is on record here and nobody has noted it yet."""
    try:
        record = Record.open(outcome.run_id, root)
        if record.run_id == outcome.run_id and not record.running() and record.outcome() is None:
            seconds = outcome.seconds or max(0.0, time.time() - record.started)
            record.finish(dataclasses.replace(outcome, seconds=seconds))
    except (UsageError, RecordError):
        return  # another machine's run, or a record that cannot be written: nothing depends on it


def set_aside(run_id: str, root: Path) -> Path | None:
    """Take a record out of the list, to be removed; None when its launcher is alive.  Raises RecordError."""
    path = root / check_run_id(run_id)
    aside = root / f"{_ASIDE}{run_id}-{secrets.token_hex(4)}"
    with _writing(path):
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:  # damaged
            path.rename(aside)
            return aside
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.rename(aside)
        except BlockingIOError:
            return None
        finally:
            os.close(lock)
    return aside


def unfinished(root: Path) -> list[Path]:
    """Records that were never whole, or no longer are, and nobody is at work on; raises RecordError."""
    with _reading(root):
        return [
            path for path in root.glob(".*") if path.is_dir() and not path.is_symlink() and _abandoned(path)
        ]


def _abandoned(path: Path) -> bool:
    # Whoever makes a record holds its lock within the same moment.
    made = time.time() - path.lstat().st_mtime > _MAKING_S
    return (made or path.name.startswith(_ASIDE)) and not _locked(path)


def list_runs(root: Path | None = None) -> list[RunInfo]:
    """Return all runs on record, newest first, corrupt ones last; raises RecordError."""
    root = root or state_root()
    runs = [_info(root / name) for name in _names(root)]
    return sorted(runs, key=lambda run: (run.status == "corrupt", -run.started, run.run_id))


def _names(root: Path) -> list[str]:
    with _reading(root):
        try:
            return sorted(name for name in os.listdir(root) if _RUN_ID.fullmatch(name))  # noqa: PTH208
        except FileNotFoundError:
            return []


def _about(
    run_id: str,
    *,
    plan: ClusterPlan,
    hostfile: Hostfile,
    command: Sequence[str],
    ssh_config: str | None,
    detached: bool,
) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "tflaunch": __version__,
        "run_id": run_id,
        "started": time.time(),
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "cwd": os.getcwd(),  # noqa: PTH109  the logical or physical directory, whichever the system gives
        "command": list(command),
        "ssh_config": ssh_config,
        "detached": detached,
        "hostfile": _plain(hostfile),
        "plan": _plain(_without_values(plan)),
    }


def without_values(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, with VALUE_LEFT_OUT for the values of --env and --job-env."""
    end = words.index("--") if "--" in words else len(words)  # what follows is the program's own
    return (*map(_without_value, ("", *words), words[:end]), *words[end:])


def _without_value(before: str, word: str) -> str:
    for option, name in _VARIABLES:
        # The value is in the word behind the option, or in the option's own.
        joined = "=" if option.startswith("--") else "=?"  # --env-file is another option
        found = re.match(name if re.fullmatch(option, before) else f"{option}{joined}{name}", word)
        if found:
            return found[0] + VALUE_LEFT_OUT
    return word


def _without_values(plan: ClusterPlan) -> ClusterPlan:
    """That plan without the values of variables that tflaunch does not decide: they may be secrets."""
    from tflaunch.inputs.variables import DECIDED

    tasks = [
        dataclasses.replace(
            task, env={name: value if name in DECIDED else VALUE_LEFT_OUT for name, value in task.env.items()}
        )
        for task in plan.tasks
    ]
    return dataclasses.replace(plan, tasks=tuple(tasks))


def _info(path: Path) -> RunInfo:
    try:
        about = _read_about(path)
        # The lock first: a launcher writes its outcome, then unlocks.
        locked = _locked(path)
        outcome = _read_outcome(path)
        alone: Status = "detached" if about.get("detached") else "orphaned"
        status: Status = "running" if locked else alone if outcome is None else "ended"
        return RunInfo(
            run_id=path.name,
            status=status,
            path=path,
            started=float(about["started"]),
            command=without_values([str(word) for word in about["command"]]),
            hosts=tuple(str(host["name"]) for host in about["hostfile"]["hosts"]),
            exit_code=int(outcome["exit_code"]) if outcome and not locked else None,
        )
    except OSError as error:
        return RunInfo(path.name, "corrupt", path, problem=_sentence(error))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return RunInfo(path.name, "corrupt", path, problem=f"{type(error).__name__}: {error}")


def _locked(path: Path) -> bool:
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read_about(path: Path) -> dict[str, Any]:
    about = _read_object(path / "run.json")
    if about.get("format") != _FORMAT:
        raise ValueError(f"run.json has format {about.get('format')!r}, this tflaunch reads {_FORMAT}")
    return about


def _read_outcome(path: Path) -> dict[str, Any] | None:
    try:
        return _read_object(path / "outcome.json")
    except FileNotFoundError:
        return None


def _read_object(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return data


def _write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a file that is, at every moment, absent, old or complete."""
    text = json.dumps(data) + "\n"  # with an indent, json is many times slower
    descriptor, building = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(building).replace(path)
    except BaseException:
        Path(building).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    """Return what JSON can hold: dataclasses and mappings as objects, sequences as arrays."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _tuples(value: Any) -> Any:
    """Return what `_plain` made, with the sequences of the shared types (all are tuples) as they were."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write the record {path}: {_sentence(error)}",
            "Set TFLAUNCH_STATE= to a directory on a disk that you can write to.",
        ) from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot read the record {path}: {_sentence(error)}",
            "Give the hostfile too, then the record is not needed.",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"cannot read the record {path}: {error}",
            "It is damaged, or of another version of tflaunch. Give the hostfile too, then it is not needed.",
        ) from error


def _sentence(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
