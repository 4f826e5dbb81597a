"""The record of runs: on a real disk, with locks held by real processes."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from tests.support.descriptors import how_many
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import GpuLeft, HostLost, Outcome, TaskExit
from tflaunch.runs.record import Record, check_run_id, hostfile_from, run_ids_locked, state_root
from tflaunch.runs.record_list import list_runs
from tflaunch.runs.run_ids import new_run_id

W0 = TaskId("worker", 0)
HOSTFILE = Hostfile(
    "hosts.yaml",
    (
        Host(
            "gpu01",
            ssh_host="gpu01.lab",
            user="me",
            port=2222,
            setup=("module load cuda", "conda activate tf"),
            env=MappingProxyType({"A": "1"}),
            gpus=(0, "GPU-7"),
            ports=(2000, 2010),
            labels={"rack": "b"},
        ),
        Host("here", connection="local", gpus=0),
    ),
)
PLAN = ClusterPlan(
    "trainer-abc234",
    (
        TaskPlan(
            W0,
            "gpu01",
            "10.0.0.1",
            2000,
            ("GPU-7",),
            ("1",),
            ("python", "t.py", "a b", "\udcff"),
            {"K": "v"},
            (),
            None,
        ),
    ),
    ("a note",),
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFLAUNCH_STATE", str(tmp_path / "runs"))
    return tmp_path / "runs"


def create(run_id: str = "trainer-abc234") -> Record:
    return Record.create(run_id, plan=PLAN, hostfile=HOSTFILE, command=["tflaunch", "run", "\udcfe"])


def test_where_records_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert state_root() == tmp_path / "runs"
    monkeypatch.delenv("TFLAUNCH_STATE")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_root() == Path("/state/tflaunch/runs")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_root() == Path("/home/me/.local/state/tflaunch/runs")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_root() == Path("/home/me/.local/state/tflaunch/runs")


@pytest.mark.parametrize(
    "stem", ["trainer", "My Trainer", "..", "", "-x-", "ünï", "a" * 300, "a..b", "x/../y"]
)
def test_new_ids_are_short_safe_and_different(stem: str) -> None:
    ids = {new_run_id(stem) for _ in range(100)}
    assert len(ids) == 100
    for run_id in ids:
        assert check_run_id(run_id) == run_id
        assert len(run_id) <= 40
    assert new_run_id("trainer").startswith("trainer-")


@pytest.mark.parametrize(
    "text",
    ["", "../x", "..", ".", ".x", "-x", "a b", "a/b", "A", "a..b", "a\n", "ü", "a" * 65, "a\0", "$(x)", "~"],
)
def test_hostile_ids_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        check_run_id(text)
    with pytest.raises(UsageError):
        create(text)
    with pytest.raises(UsageError):
        Record.open(text)


def test_a_record_gives_back_what_was_put_in(root: Path) -> None:
    record = create()
    opened = Record.open("trainer-abc234")
    [task] = PLAN.tasks
    assert opened.plan == dataclasses.replace(PLAN, tasks=(dataclasses.replace(task, env={"K": "***"}),))
    assert hostfile_from(opened) == HOSTFILE
    assert opened.command == ("tflaunch", "run", "\udcfe")
    assert opened.about["pid"] == os.getpid()
    assert opened.about["cwd"] == str(Path.cwd())
    assert opened.outcome() is None
    assert opened.started == record.started > 0
    record.close()
    assert sorted(path.name for path in root.iterdir()) == ["trainer-abc234"]


def test_only_the_owner_can_read_a_record(root: Path) -> None:
    before = os.umask(0)
    try:
        record = create()
        record.logs.append(W0, 0, b"secret")
        record.finish(Outcome(record.run_id, "succeeded", 0, 1.0))
        record.close()
    finally:
        os.umask(before)
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_id_is_used_once() -> None:
    create().close()
    with pytest.raises(UsageError, match="already a run"):
        create()
    assert len(list_runs()) == 1


def test_a_record_is_found_by_the_beginning_of_its_id() -> None:
    for run_id in ("trainer-abc234", "trainer-abd234", "eval", "eval-2"):
        create(run_id).close()
    assert Record.open("trainer-abc").run_id == "trainer-abc234"
    assert Record.open("eval").run_id == "eval"
    with pytest.raises(UsageError, match="2 runs begin with 'trainer': trainer-abc234, trainer-abd234"):
        Record.open("trainer")
    with pytest.raises(UsageError, match="no run 'nothing' is on record"):
        Record.open("nothing")


# Logs


def test_the_logs_of_a_task_are_those_of_all_its_attempts(root: Path) -> None:
    record = create()
    for task, attempt in ((W0, 10), (W0, 2), (TaskId("worker", 10), 0), (TaskId("worker", 10), 1)):
        record.logs.append(task, 0, b"x", attempt)
    (root / "trainer-abc234" / "logs" / "worker-0.x.log").touch()
    assert [path.name for path in record.logs.of(W0)] == ["worker-0.2.log", "worker-0.10.log"]
    record.logs.append(W0, 0, b"x")
    assert record.logs.of(W0)[0].name == "worker-0.log"
    assert record.logs.of(TaskId("ps", 0)) == []
    record.close()


def test_logs_are_stored_by_offset_and_never_doubled(root: Path) -> None:
    record = create()
    record.logs.append(W0, 0, b"0123")
    record.logs.append(W0, 4, b"4567")
    record.logs.append(W0, 2, b"234567")  # all there
    record.logs.append(W0, 6, b"6789")  # half of it there
    record.logs.append(W0, 12, b"cd")  # bytes that never came are a hole
    record.logs.append(W0, 14, b"")
    record.close()
    again = Record.open(record.run_id)  # another launcher that continues
    again.logs.append(W0, 12, b"cdef")
    again.close()
    assert (root / "trainer-abc234" / "logs" / "worker-0.log").read_bytes() == b"0123456789\0\0cdef"


def test_more_tasks_than_descriptors() -> None:
    record = create()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/dev/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, used + 80), hard))
    try:
        for turn in range(2):
            for index in range(200):
                record.logs.append(TaskId("worker", index), turn * 2, b"%d\n" % turn)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    record.close()
    logs = list((record.path / "logs").iterdir())
    assert len(logs) == 200
    assert {path.read_bytes() for path in logs} == {b"0\n1\n"}


def test_a_log_cannot_leave_its_directory(tmp_path: Path) -> None:
    record = create()
    with pytest.raises(ValueError, match="not a job name"):
        record.logs.append(TaskId("../../x", 0), 0, b"x")
    target = tmp_path / "target"
    target.write_bytes(b"")
    record.logs.path(W0).symlink_to(target)
    with pytest.raises(RecordError):
        record.logs.append(W0, 0, b"x")
    assert target.read_bytes() == b""
    record.close()


def test_a_full_disk_is_said_once_and_the_run_goes_on() -> None:
    record = create()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then the kernel answers EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        record.logs.append(W0, 0, b"x" * 900)
        with pytest.raises(RecordError, match=r"worker-0\.log: File too large"):
            record.logs.append(W0, 900, b"y" * 900)
        record.logs.append(W0, 1800, b"z")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert record.logs.failure == "File too large"
    record.finish(Outcome(record.run_id, "succeeded", 0, 1.0))
    record.close()
    assert record.logs.path(W0).stat().st_size == 1000
    assert list_runs()[0].status == "ended"


@pytest.mark.parametrize("place", ["file/runs", "/proc/nothing/here"])
def test_a_place_that_cannot_be_written_names_the_way_out(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TFLAUNCH_STATE", str(tmp_path / place))
    with pytest.raises(RecordError) as caught:
        create()
    assert str(tmp_path / place) in caught.value.message
    assert "TFLAUNCH_STATE=" in caught.value.hint
    assert caught.value.exit_code == 73


# How runs stand


def test_the_outcome_is_kept() -> None:
    record = create()
    first = TaskExit(W0, "gpu01", None, 9, 3.5, b"tail")
    record.finish(
        Outcome(
            record.run_id,
            "failed",
            137,
            4.0,
            {W0: first},
            first,
            {"here": "gone"},
            {"gpu01": ("pid 3 x",)},
            str(record.path),
            {W0: "/log"},
            gpus={"gpu01": (GpuLeft("GPU 0 is in use", own=True),)},
        )
    )
    record.close()
    outcome = Record.open(record.run_id).outcome()
    assert outcome is not None
    assert outcome.pop("ended") >= record.started
    failure = {
        "task": "worker/0",
        "host": "gpu01",
        "code": None,
        "signal": "SIGKILL",
        "seconds": 3.5,
        "stopped": False,
        "attempt": 0,
    }
    assert outcome == {
        "status": "failed",
        "exit_code": 137,
        "seconds": 4.0,
        "exits": [failure],
        "first_failure": failure,
        "unverified": {"here": "gone"},
        "gpus": {"gpu01": [{"text": "GPU 0 is in use", "own": True}]},
        "survivors": {"gpu01": ["pid 3 x"]},
        "host_logs": {"worker/0": "/log"},
        "restarts": 0,
    }
    lost = create("lost")
    lost.finish(Outcome("lost", "failed", 76, 1.0, first_failure=HostLost("gpu01", "silent")))
    lost.close()
    data = Record.open("lost").outcome()
    assert data is not None
    assert data["first_failure"] == {"host": "gpu01", "reason": "silent"}


def test_runs_are_listed_newest_first_with_how_they_stand() -> None:
    assert list_runs() == []
    ended = create("ended")
    ended.finish(Outcome("ended", "failed", 3, 1.0))
    assert list_runs()[0].status == "running"  # its launcher is still tidying up
    ended.close()
    ended.close()
    create("orphaned").close()
    running = create("running")
    runs = list_runs()
    assert [(run.run_id, run.status, run.exit_code) for run in runs] == [
        ("running", "running", None),
        ("orphaned", "orphaned", None),
        ("ended", "ended", 3),
    ]
    assert runs[0].hosts == ("gpu01", "here")
    assert runs[0].command == ("tflaunch", "run", "\udcfe")
    assert running.running()
    assert Record.open("running").running()
    assert not Record.open("orphaned").running()
    running.close()


def test_a_launcher_that_is_killed_leaves_an_orphan(root: Path) -> None:
    script = textwrap.dedent("""
        import subprocess, sys, time
        from tflaunch.hosts import Hostfile
        from tflaunch.planning.plan import ClusterPlan
        from tflaunch.runs.record import Record
        Record.create("r-1", plan=ClusterPlan("r-1", ()), hostfile=Hostfile("x", ()), command=[])
        child = subprocess.Popen(["sleep", "1000"])  # must not inherit the lock
        print(child.pid, flush=True)
        time.sleep(1000)
    """)
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    try:
        assert [run.status for run in list_runs(root)] == ["running"]
        launcher.kill()
        launcher.wait()
        assert [run.status for run in list_runs(root)] == ["orphaned"]
    finally:
        os.kill(child, signal.SIGKILL)
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "\xff", "{}", '{"format": 99}', '{"format": 1}', '{"format":1,"started":"x"}'],
)
def test_a_corrupt_record_is_shown_as_such(root: Path, text: str) -> None:
    create("good").close()
    create("bad").close()
    (root / "bad" / "run.json").write_bytes(text.encode("latin-1"))
    (root / "empty").mkdir()
    (root / "file").write_text("")
    (root / ".hidden").mkdir()
    runs = {run.run_id: run for run in list_runs()}
    assert sorted(runs) == ["bad", "empty", "file", "good"]
    assert runs["good"].status == "orphaned"
    for run_id in ("bad", "empty", "file"):
        assert runs[run_id].status == "corrupt"
        assert runs[run_id].problem
    with pytest.raises(RecordError):
        hostfile_from(Record.open("bad"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", '{"started": Infinity}'),
        ("run.json", '{"plan": {"tasks": [{"id": ["worker"], "host": "a"}]}}'),
        ("run.json", '{"plan": {"tasks": [{"id": ["worker", "x"], "host": "a"}]}}'),
        ("run.json", "[" * 100_000),
        ("outcome.json", '{"exit_code": Infinity}'),
        ("outcome.json", '{"exit_code": 1, "exits": [{"task": "worker/0"}]}'),
        ("outcome.json", "[" * 100_000),
    ],
)
def test_one_record_that_is_damaged_hides_no_other(root: Path, name: str, text: str) -> None:
    create("good").close()
    create("bad").close()
    bad = root / "bad"
    (bad / "slots.json").write_text("{}")
    about = json.loads((bad / "run.json").read_text()) if name == "run.json" else {}
    (bad / name).write_text(json.dumps({**about, **json.loads(text)}) if text.endswith("}") else text)
    assert {run.run_id: run.status for run in list_runs()} == {"bad": "corrupt", "good": "orphaned"}


@pytest.mark.parametrize(
    "text", ["{}", '{"engine": "slurm"}', '{"engine": "slurm", "handle": 7}', "[" * 100_000]
)
def test_damaged_slots_are_an_error_not_a_crash(root: Path, text: str) -> None:
    create("bad").close()
    (root / "bad" / "slots.json").write_text(text)
    with pytest.raises(RecordError, match="cannot read the record"):
        assert Record.open("bad").slots


def test_a_corrupt_outcome_is_an_error_not_a_crash(root: Path) -> None:
    create("bad").close()
    (root / "bad" / "outcome.json").write_text('{"exit')
    assert [run.status for run in list_runs()] == ["corrupt"]
    with pytest.raises(RecordError):
        Record.open("bad").outcome()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_told(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    create("r-1").close()
    before = how_many()

    def flock(_: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tflaunch.runs.record.fcntl", SimpleNamespace(**{**vars(fcntl), "flock": flock}))
    why = re.escape(os.strerror(number))
    with pytest.raises(RecordError, match=why), run_ids_locked():
        pass
    with pytest.raises(RecordError, match=why):
        create("r-2")
    with pytest.raises(RecordError, match=why):
        Record.reopen("r-1")
    assert how_many() == before


def test_nothing_half_written_is_ever_seen(root: Path) -> None:
    with pytest.raises(TypeError):
        Record.create("bad", plan=PLAN, hostfile=HOSTFILE, command=[object()])  # type: ignore[list-item]
    assert list_runs() == []
    assert not root.exists() or list(root.iterdir()) == []
    record = create("good")
    assert json.loads((record.path / "run.json").read_text())["run_id"] == "good"
    record.close()
