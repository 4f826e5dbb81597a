"""The launcher's record of one run: what was started, its logs, how it ended.  record_files.py has the layout."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch import __version__
from tflaunch.hosts import Host, Hostfile
from tflaunch.protocol.errors import EXIT_STOPPED, RecordError, TflaunchError, UsageError
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import EndedByRule, Outcome, TaskExit, outcome_data, outcome_from
from tflaunch.runs.hidden_values import plan_without_values
from tflaunch.runs.record_files import (
    FORMAT,
    GIVEN_UP,
    SLOTS,
    check_format,
    is_locked,
    make_root,
    plain,
    read_about,
    read_object,
    read_outcome,
    reading,
    recorded_ids,
    state_root,
    tuples,
    write_object,
    writing,
)
from tflaunch.runs.record_logs import RecordLogs
from tflaunch.runs.run_ids import check_run_id

if TYPE_CHECKING:  # most verbs plan nothing
    from tflaunch.planning.cluster_plan import ClusterPlan

LAUNCHER_LOG = "launcher.log"  # what a launcher that has left its terminal has said since
_TRIES, _PAUSE_S = 5, 0.02  # to lock a record
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # a rename's errors if the target exists


@contextlib.contextmanager
def run_ids_locked(root: Path | None = None) -> Iterator[None]:
    """Lock the choice of run ids: inside, no other launcher can take a free one.  Raises RecordError."""
    root = root or state_root()
    make_root(root)
    with writing(root):
        lock = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writing(root):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class Record:
    """The record of one run.  The launcher that created it holds its lock until `close`."""

    def __init__(self, path: Path, about: dict[str, Any], lock: int | None = None) -> None:
        self.path = path
        self.about = about  # run.json, as data
        self.begun = False  # this launcher has started tasks
        self.logs = RecordLogs(path / "logs")
        self._lock = lock

    @property
    def run_id(self) -> str:
        """The name of the run, and of its directory."""
        return self.path.name

    @property
    def command(self) -> tuple[str, ...]:
        """The launcher's own command line.  Raises RecordError."""
        with reading(self.path):
            return tuple(self.about["command"])

    @property
    def ssh_config(self) -> Path | None:
        """The ssh_config that the launcher reaches the hosts by, if the user named one."""
        named = self.about.get("ssh_config")
        return Path(named) if named else None

    @property
    def code(self) -> str | None:
        """The digest of the code that was shipped; None where none was, or an older tflaunch wrote the record."""
        code = self.about.get("code")
        return code if isinstance(code, str) else None

    @property
    def started(self) -> float:
        """When the run began, in epoch seconds.  Raises RecordError."""
        with reading(self.path):
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
        code: str | None = None,
    ) -> Record:
        """Write the record of a run that begins, and lock it.

        code: the digest of the shipped code.  The record appears whole or not at all.
        Raises UsageError for a bad or used id, RecordError when the disk refuses.
        """
        root = state_root()
        path = root / check_run_id(run_id)
        about = _about(
            run_id,
            plan=plan,
            hostfile=hostfile,
            command=command,
            ssh_config=ssh_config,
            detached=detached,
        )
        about["code"] = code
        make_root(root)
        with writing(path):
            building = Path(tempfile.mkdtemp(prefix=f".{run_id[:40]}-", dir=root))  # 0700
            lock = None
            try:
                (building / "logs").mkdir(mode=0o700)
                write_object(building / "run.json", about)
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
        names = recorded_ids(root)
        found = [name] if name in names else [other for other in names if other.startswith(name)]
        if not found:
            raise UsageError(
                f"no run {name!r} is on record in {root}",
                "tflaunch ps -a lists those that are; a run of another machine is found by commands that have --hosts",
            )
        if len(found) > 1:
            shown = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
            raise UsageError(f"{len(found)} runs begin with {name!r}: {shown}", "Write more of the id.")
        path = root / found[0]
        with reading(path):
            return cls(path, read_about(path))

    @classmethod
    def reopen(cls, run_id: str) -> Record:
        """Open the record of a run that is to continue, and lock it.

        Raises UsageError when there is none, or another launcher has locked it; RecordError when it cannot be read.
        """
        record = cls.open(check_run_id(run_id))
        if record.run_id != run_id:
            raise UsageError(f"no run {run_id!r} is on record", f"is {record.run_id} meant?")
        with reading(record.path):
            lock = os.open(record.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                for attempt in range(_TRIES):  # a command that only tests the lock holds it for an instant
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if attempt == _TRIES - 1:
                            raise record._is_running() from None
                        time.sleep(_PAUSE_S)
            except BaseException:
                os.close(lock)
                raise
        record._lock = lock
        return record

    def _is_running(self) -> UsageError:
        return UsageError(
            f"{self.run_id} is running: its launcher, pid {self.about.get('pid')}, is alive",
            f"watch it: tflaunch attach {self.run_id}; or end it: tflaunch stop {self.run_id}",
        )

    def resume(
        self,
        hostfile: Hostfile,
        command: Sequence[str],
        ssh_config: str | None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """Note that the run continues, how the launcher reaches its hosts now, and why it leaves out some.

        Raises RecordError.
        """
        from tflaunch.planning.cluster_plan import ClusterPlan

        about = _about(
            self.run_id,
            plan=ClusterPlan(self.run_id, (), left_out=left_out or {}),
            hostfile=hostfile,
            command=command,
            ssh_config=ssh_config,
            detached=False,
        )
        self.about = {**about, "started": self.started, "code": self.code}
        with writing(self.path):
            write_object(self.path / "run.json", self.about)
            (self.path / "outcome.json").unlink(missing_ok=True)

    def restore(self, about: dict[str, Any], outcome: Mapping[str, Any] | None) -> None:
        """Have it as it was before `resume`; raises RecordError."""
        self.about = about
        with writing(self.path):
            write_object(self.path / "run.json", about)
            if outcome is not None:
                write_object(self.path / "outcome.json", outcome)

    def read(self, name: str, format: int | None = None) -> dict[str, Any] | None:
        """Return what `write` stored under that name, None if nothing; raises RecordError.

        format: what its `format` must be; another tflaunch may have written another one.
        """
        with reading(self.path):
            try:
                found = read_object(self.path / name)
            except FileNotFoundError:
                return None
            if format is not None:
                check_format(name, found, format)
            return found

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Store `value` in the record, in a file of that name; raises RecordError."""
        with writing(self.path):
            write_object(self.path / name, value)

    @property
    def plan(self) -> ClusterPlan:
        """The plan that was launched; of the variables that the user set it has only the names.

        Raises RecordError when the record does not hold one.
        """
        from tflaunch.planning.binding import Cores
        from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan

        with reading(self.path):
            plan = tuples(self.about["plan"])
            tasks = tuple(
                TaskPlan(**{**task, "id": TaskId(*task["id"]), "cores": Cores(**task.get("cores", {}))})
                for task in plan["tasks"]
            )
            return ClusterPlan(**{**plan, "tasks": tasks})

    def replan(self, plan: ClusterPlan, hostfile: Hostfile) -> None:
        """Note that the run continues by another plan, and on which hosts it may be; raises RecordError."""
        self.about = {
            **self.about,
            "plan": plain(plan_without_values(plan)),
            "hostfile": _hostfile_data(hostfile),
        }
        with writing(self.path):
            write_object(self.path / "run.json", self.about)

    def note_slots(self, engine: str, handle: Mapping[str, str]) -> None:
        """Note what it takes to give the run's slots back to this engine; raises RecordError."""
        with writing(self.path):
            (self.path / GIVEN_UP).unlink(missing_ok=True)  # that was an earlier request
        self.write(SLOTS, {"engine": engine, "handle": dict(handle)})

    def note_given_up(self) -> None:
        """Note that `tflaunch stop` gives up the request for slots, for the launcher that waits; raises RecordError."""
        self.write(GIVEN_UP, {"time": time.time()})

    @property
    def given_up(self) -> bool:
        """Whether `tflaunch stop` has given up the request for slots."""
        return (self.path / GIVEN_UP).exists()

    @property
    def slots(self) -> tuple[str, Mapping[str, str]] | None:
        """(engine, handle) of slots that were asked for; None for a run on hosts of its own.  Raises RecordError."""
        said = self.read(SLOTS)
        with reading(self.path):
            return None if said is None else (str(said["engine"]), dict(said["handle"]))

    def note_detached(self) -> None:
        """Note that the run goes on without its launcher; raises RecordError."""
        self.about = {**self.about, "detached": True}
        with writing(self.path):
            write_object(self.path / "run.json", self.about)

    def finish(self, outcome: Outcome) -> None:
        """Write how the run ended; raises RecordError.  The record stays locked until `close`."""
        with writing(self.path):
            write_object(self.path / "outcome.json", {**outcome_data(outcome), "ended": time.time()})

    def fail(self, error: TflaunchError) -> None:
        """Write why the run never began, and close: its launcher has left the terminal, and nobody has seen it."""
        why = EndedByRule(error.message, (), error.exit_code)
        with contextlib.suppress(RecordError):
            self.finish(Outcome(self.run_id, "failed", error.exit_code, 0.0, first_failure=why))
        self.close()

    @property
    def launcher_log(self) -> Path:
        """What a launcher that has left its terminal has said since; it is there once that has left."""
        return self.path / LAUNCHER_LOG

    def discard(self) -> None:
        """Remove this record: the run never began."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def outcome(self) -> dict[str, Any] | None:
        """Return outcome.json as data, or None when the run has not ended (or its launcher was killed).

        Keys: `status`, `exit_code`, `seconds`, `ended`, `exits` (task, host, code, signal, seconds,
        stopped), `first_failure`, `unverified`, `survivors`, `gpus`, `host_logs`.  Raises RecordError.
        """
        with reading(self.path):
            return read_outcome(self.path)

    def running(self) -> bool:
        """Return whether a launcher of this run is alive on this machine; raises RecordError."""
        if self._lock is not None:
            return True
        with reading(self.path):
            return is_locked(self.path)

    def close(self) -> None:
        """Close the logs and give up the lock; may be called twice."""
        self.logs.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _hostfile_data(hostfile: Hostfile) -> dict[str, Any]:
    """The hostfile as a record has it; tflaunch 0.2, which knows no slots, reads it where there are none."""
    hosts = [
        {key: value for key, value in plain(host).items() if key != "slot" or value}
        for host in hostfile.hosts
    ]
    return {"source": hostfile.source, "hosts": hosts, "notes": list(hostfile.notes)}


def hostfile_from(record: Record) -> Hostfile:
    """Return the Hostfile of a run as it was recorded, so that its hosts are reached in the same way.

    Raises RecordError.
    """
    with reading(record.path):
        hostfile = tuples(record.about["hostfile"])
        return Hostfile(hostfile["source"], tuple(Host(**host) for host in hostfile["hosts"]))


def note_stopped(run_id: str) -> None:
    """Note that a run whose launcher is gone was stopped, so that no command looks for it again."""
    note_end(Outcome(run_id, "interrupted", EXIT_STOPPED, 0.0))


def note_end(outcome: Outcome, root: Path | None = None) -> bool:
    """Note how a run ended after its launcher was gone, if the run is on record here without an outcome.

    Returns whether that was noted now.
    """
    try:
        record = Record.open(outcome.run_id, root)
        if record.run_id == outcome.run_id and not record.running() and record.outcome() is None:
            seconds = outcome.seconds or max(0.0, time.time() - record.started)
            record.finish(dataclasses.replace(outcome, seconds=seconds))
            return True
    except (UsageError, RecordError):
        pass  # the run of another machine, or a record that cannot be written: nothing depends on it
    return False


def end_on_record(run_id: str, exits: Mapping[TaskId, TaskExit]) -> Outcome | None:
    """How the run ended, as this machine has noted it; None where it has not.

    exits: the tasks' last exits, as their hosts tell of them.
    """
    try:
        record = Record.open(run_id)
        told = record.outcome() if record.run_id == run_id else None
        with reading(record.path):
            return outcome_from(run_id, told, exits) if told else None
    except (UsageError, RecordError):
        return None  # there is none, or it is damaged


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
        "format": FORMAT,
        "tflaunch": __version__,
        "run_id": run_id,
        "started": time.time(),
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "cwd": os.getcwd(),  # noqa: PTH109  the logical or physical directory, whichever the system gives
        "command": list(command),
        "ssh_config": ssh_config,
        "detached": detached,
        "hostfile": _hostfile_data(hostfile),
        "plan": plain(plan_without_values(plan)),
    }
