"""Tasks that truncate their own logs: what they write afterwards is seen all the same, and that is said once."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from tflaunch.agent.files.rundir import RunDirectory
from tflaunch.agent.tasks.logs import MARK_BYTES, TaskLogs, start

from tests.agent_over_pipes import Channel, Host, running, task
from tests.launcher import Launcher, until
from tflaunch.protocol import wire


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run" / "h1" / "logs").mkdir(parents=True)
    return RunDirectory(str(tmp_path), "run", "h1")


@pytest.fixture
def log(directory: RunDirectory) -> Path:
    """The log of worker/3; 100 bytes stand in it."""
    path = Path(directory.log_path("worker/3"))
    path.write_bytes(b"old line\n" * 11 + b"\n")
    return path


@pytest.fixture
def seen(directory: RunDirectory, log: Path) -> TaskLogs:
    """As the agent has it, which has seen those bytes."""
    logs = TaskLogs(directory, "worker/3")
    assert (logs.size(0), logs.begins(0)) == (100, (0, 0.0))
    return logs


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_offsets_go_on_behind_what_was_truncated(seen: TaskLogs, log: Path) -> None:
    os.truncate(log, 0)
    assert seen.size(0) == 100
    begins, when = seen.begins(0)
    assert (begins, when > 0) == (100, True)
    append(log, b"new\n")
    assert seen.size(0) == 104
    assert seen.read(0, 0, 1000) == b""
    assert seen.read(0, 100, 1000) == b"new\n"
    assert seen.tail(0) == b"new\n"
    assert seen.last_lines(5) == (0, 100)
    assert start(seen, {"tail": 1}) == [0, 100]
    os.truncate(log, 0)
    append(log, b"x\n")
    assert seen.read(0, 104, 1000) == b"x\n"
    assert seen.begins(0)[0] == 104


def test_one_that_has_grown_beyond_its_old_size_is_known_by_what_stood_there(
    seen: TaskLogs, log: Path
) -> None:
    os.truncate(log, 0)
    append(log, b"new line\n" * 50)  # before anybody looked
    assert seen.size(0) == 100 + 450
    assert seen.read(0, 100, 1000) == b"new line\n" * 50


def test_one_that_has_come_to_its_old_size_is_known_too(seen: TaskLogs, log: Path) -> None:
    os.truncate(log, 0)
    append(log, b"new line\n" * 11 + b"\n")
    assert seen.size(0) == 200
    assert seen.read(0, 100, 1000) == b"new line\n" * 11 + b"\n"


def test_one_that_is_only_written_on_is_not_taken_for_truncated(seen: TaskLogs, log: Path) -> None:
    for size in (1, MARK_BYTES - 1, MARK_BYTES, 100_000):
        append(log, b"\0" * size)
        assert seen.begins(0) == (0, 0.0)
    assert seen.size(0) == log.stat().st_size


def test_a_hole_before_what_is_new_is_left_out(seen: TaskLogs, log: Path) -> None:
    """Who opened its log anew, without appending, writes on where it was when somebody truncates it."""
    with log.open("r+b", buffering=0) as file:
        file.seek(1 << 20)
        file.write(b"x")
        assert seen.size(0) == (1 << 20) + 1
        os.truncate(log, 0)
        assert seen.size(0) == (1 << 20) + 1
        file.write(b"new\n")
    end = seen.size(0)
    new = seen.read(0, seen.begins(0)[0], 1 << 20)
    assert new.endswith(b"new\n")
    assert len(new) <= 4096, "at most what the file system keeps at once"
    assert end == seen.begins(0)[0] + len(new)


def test_one_that_comes_later_goes_on_by_the_same_offsets(
    directory: RunDirectory, seen: TaskLogs, log: Path
) -> None:
    os.truncate(log, 0)
    append(log, b"new\n")
    assert seen.size(0) == 104
    later = TaskLogs(directory, "worker/3").find()
    assert later.size(0) == 104
    assert later.read(0, 100, 1000) == b"new\n"
    assert later.begins(0)[0] == 100
    assert later.begins(0)[1] == pytest.approx(seen.begins(0)[1], abs=0.001)


def test_what_an_older_agent_has_noted_is_understood(directory: RunDirectory, log: Path) -> None:
    Path(f"{log}.times").write_text("100.0 0 9\n200.0 0 18\n")
    assert TaskLogs(directory, "worker/3").find().since(150.0) == (0, 9)


def test_a_log_that_is_truncated_after_its_task_has_ended(seen: TaskLogs, log: Path) -> None:
    seen.end()
    os.truncate(log, 0)
    assert seen.size(0) == 100
    assert seen.read(0, 0, 10) == b""
    assert seen.begins(0)[0] == 100
    assert seen.read(0, 100, 10) == b""


# ---- through a real agent

# Writes, waits for a line of input (a fifo), truncates its log in its own way, writes on.
TRUNCATES = """
import os, sys
os.write(1, b"one\\n" * 100)
os.mkfifo("go")
open("go").read()
if sys.argv[1] == "open":
    out = open("/proc/self/fd/1", "w")
elif sys.argv[1] == "truncate":
    os.system("truncate -s 0 /proc/self/fd/1")
    out = sys.stdout
else:
    os.ftruncate(1, 0)
    out = sys.stdout
out.write("two\\n")
out.flush()
open("went", "w").close()
open("go").read()
out.write("three\\n" * 100)
out.close()
os._exit(0)
"""


def go(host: Host) -> None:
    fifo = host.directory / "work" / "go"
    until(fifo.exists, "the task to wait")
    fifo.write_text("")


@pytest.mark.parametrize("how", ["open", "truncate", "ftruncate"])
def test_what_a_task_writes_after_it_has_truncated_its_log_comes(host: Host, how: str) -> None:
    if how == "truncate" and not shutil.which("truncate"):
        pytest.skip("no truncate(1)")
    channel = host.start()
    running(channel, task("python3", "-c", TRUNCATES, how))
    first = b"one\n" * 100
    assert channel.read_log("worker/0", lambda log: len(log) >= len(first)) == first
    go(host)
    cut = next_cut(channel)
    assert (cut["task"], cut["attempt"], cut["offset"], cut.body) == ("worker/0", 0, len(first), b"")
    second = first + b"two\n"
    assert channel.read_log("worker/0", lambda log: len(log) >= len(second)) == second
    until((host.directory / "work" / "went").exists, "the task to go on")
    late = host.attach(after=0, logs={}, client="late")  # who comes later sees what is there, and hears of it
    assert next_cut(late)["offset"] == len(first)
    go(host)
    whole = second + b"three\n" * 100
    exit = None
    while exit is None or len(channel.log["worker/0"]) < len(whole):
        message = channel.next()
        assert message is not None
        exit = message if message.type == "exit" else exit
    assert channel.log["worker/0"] == whole
    assert exit["log_bytes"] == len(whole)
    assert exit.body == whole[len(first) :]
    resume(host, second, whole)  # one that had lost its connection
    channel.send("end", grace_s=0.0)
    swept = channel.wait("swept")
    assert swept["logs"] == {"worker/0": [0, len(whole)]}
    channel.leave()
    until(lambda: not (host.directory / "agent.sock").exists(), "the end of the agent")
    resume(host, second, whole)  # from what the agent has left


def resume(host: Host, known: bytes, whole: bytes) -> None:
    """Attach with that much of the log, and get the rest."""
    channel = host.open("visit", run="", host="")
    channel.wait("hello")
    channel.ask("attach", run=host.run, host="h1", answer="hello")
    channel.log["worker/0"] = known
    channel.send("watch", after=0, logs={"worker/0": [0, len(known)]}, window=1 << 20, client="again")
    assert channel.read_log("worker/0", lambda log: len(log) >= len(whole)) == whole


def next_cut(channel: Channel) -> wire.Message:
    """The next message that tells of a truncation."""
    while True:
        message = channel.next_raw()
        assert message is not None
        if message.type == "log" and message.fields.get("cut"):
            return message


# ---- as a user sees it

ROTATES = """
    import os, time
    for generation in range(3):
        for number in range(500):
            print("generation", generation, "line", number, flush=True)
        while not os.path.exists(os.path.join(os.environ["OUT"], str(generation))):
            time.sleep(0.01)
        os.truncate("/proc/self/fd/1", 0)
    print("the end", flush=True)
"""
LINES = [f"generation {generation} line {number}" for generation in range(3) for number in range(500)]


def test_a_run_whose_task_truncates_its_log_shows_and_records_all_of_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    words = (launcher.local(1), launcher.script(ROTATES), "--ps=0", "--workers=1", f"--env=OUT={out}")
    with launcher.start("run", *words) as running:
        for generation in range(3):
            running.wait_for(f"generation {generation} line 499")
            (out / str(generation)).touch()
        done = running.done().ran()
    shown = [line.partition("│ ")[2] for line in done.out.splitlines() if line.startswith("worker/0")]
    assert [line for line in shown if line in {*LINES, "the end"}] == [*LINES, "the end"]
    [record] = launcher.records()
    log = record / "logs" / "worker-0.log"
    assert log.read_text().splitlines() == [*LINES, "the end"]
    said = re.findall(
        r"worker/0 on local1 truncated its own log at \d\d:\d\d: what it wrote before is in (\S+)",
        done.sentences,
    )
    assert said == [str(log)] * 3
    attached = launcher.run("logs", record.name).ran()
    assert "the end" in attached.out
    assert attached.sentences.count("truncated its own log") == 1
    assert "what it wrote before is there no more" in attached.sentences
