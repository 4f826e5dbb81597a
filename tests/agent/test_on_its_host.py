"""What the agent takes and leaves on its host: its directory, disks, descriptors, CPU time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import (
    IS_ROOT,
    Host,
    descriptors,
    failure,
    marked,
    running,
    shell,
    small_disk,
    swept,
    task,
)
from tests.support.patience import PATIENCE_S, until
from tflaunch.agent import processes
from tflaunch.agent.files.rundir import RunDirectory
from tflaunch.code import bundle as sources
from tflaunch.code import shipping

# ---- descriptors and CPU time


def test_no_descriptor_strays(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    channel.ask("probe", lease=False, ports=None, count=4, answer="facts")
    pids = running(channel, task("sleep", "600", id="ps/0"), task("sleep", "600"))
    log = str(host.directory / "logs" / "worker-0.log")
    until(
        lambda: Path(f"/proc/{pids['worker/0']}/comm").read_text() == "sleep\n", "the program to be running"
    )
    assert descriptors(pids["worker/0"]) == {0: "/dev/null", 1: log, 2: log}
    own = str(host.directory / "agent.log")
    of_guard = descriptors(agent["guard"])
    [beats] = [number for number, path in of_guard.items() if path.startswith("pipe:")]  # those of the agent
    del of_guard[beats]
    assert of_guard == {0: "/dev/null", 1: own, 2: own}
    # Each of them is milliseconds of CPU on every host of every run.
    loaded = Path(f"/proc/{agent['pid']}/maps").read_text()
    assert not [name for name in ("libcrypto", "liblzma", "libbz2") if name in loaded]
    before = descriptors(agent["pid"])
    pipes = [name for name in before.values() if name.startswith("pipe:")]
    assert len(pipes) == 3, "the channel's, and that to the guard; gates and ready pipes are closed"
    for _ in range(5):
        host.attach().kill()
    until(lambda: len(descriptors(agent["pid"])) == len(before), "the agent to let go of what has left")
    host.attach()
    channel.send("restart", tasks={"worker/0": 1})
    again = channel.wait("started")["pid"]
    until(lambda: Path(f"/proc/{again}/comm").read_text() == "sleep\n", "the program to be running again")
    log = str(host.directory / "logs" / "worker-0.1.log")
    assert descriptors(again) == {0: "/dev/null", 1: log, 2: log}, "the other channel has reached a task"
    swept(channel)


def cpu_share(pid: int, period_s: float) -> float:
    """How much of one core that process uses."""

    def cpu_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = cpu_s(), time.monotonic()
    time.sleep(period_s)
    return (cpu_s() - before) / (time.monotonic() - began)


def test_an_agent_with_nothing_to_do_does_nothing(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, task("sleep", "600"))
    assert cpu_share(agent["pid"], 2.0) < 0.1, "a busy loop"
    swept(channel)


def test_an_agent_without_a_free_descriptor_rests_until_there_is_one(host: Host) -> None:
    channel = host.start()
    running(channel, shell("exec sleep 600"))
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]
    before = resource.prlimit(agent, resource.RLIMIT_NOFILE)
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (0, before[1]))
    caller = RunDirectory(str(host.parent), host.run, "h1").connect()
    assert caller is not None
    with contextlib.closing(caller):
        channel.ask("clock", sent=1.0, answer="clock")  # it has tried to let the caller in
        assert channel.ask("look", answer="looked")["tasks"] == {}  # a failure would end the run
        until(lambda: cpu_share(agent, 0.5) < 0.1, "it to rest")
        resource.prlimit(agent, resource.RLIMIT_NOFILE, before)
        caller.settimeout(PATIENCE_S)
        assert b"hello" in caller.recv(4096)
    swept(channel)


def test_an_orphan_that_ends_is_reaped(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, shell("(sh -c 'sleep 0.2' &) ; echo up; sleep 600"))
    channel.read_log("worker/0", lambda log: b"up" in log)

    def zombies() -> list[str]:
        stats = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                stats.append(path.read_text())
        return [each for each in stats if f" Z {agent['pid']} " in each]

    until(lambda: len(marked(host.run)) == 2, "the orphan to end")
    until(lambda: not zombies(), "the agent to reap it")
    swept(channel)


# ---- the run directory


def test_a_run_without_tasks_leaves_no_directory(host: Host) -> None:
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    channel.close()
    until(lambda: not host.directory.parent.exists(), "the directory of the run to go")
    assert list(host.parent.iterdir()) == []


def test_the_run_directory_is_private(host: Host) -> None:
    host.run_dir.mkdir(mode=0o777)
    host.run_dir.chmod(0o1777)
    channel = host.start()
    running(channel, shell("umask; echo secret"))
    channel.wait("exit")
    for path in (host.parent, host.directory.parent, host.directory, host.directory / "logs"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert host.run_dir.stat().st_mode & 0o7777 == 0o1777, "what was there before is not ours to change"
    swept(channel)


@pytest.mark.parametrize("name", ["../x", "..", ".", "a/b", "/etc", "", ".hidden"])
@pytest.mark.parametrize("part", ["run", "host"])
def test_a_name_that_leads_elsewhere_is_refused(host: Host, part: str, name: str) -> None:
    reason, _ = failure(host.open("start", **{part: name}))
    assert reason == f"{name!r} cannot be a directory name"
    assert not host.run_dir.exists()


def test_a_link_in_place_of_the_directory_is_refused(host: Host) -> None:
    elsewhere = host.work_dir / "elsewhere"
    elsewhere.mkdir()
    host.run_dir.mkdir()
    host.parent.symlink_to(elsewhere)
    reason, _ = failure(host.open("start"))
    assert reason == f"{host.parent} is not your directory but a link"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("verb", ["start", "visit"])
def test_a_directory_that_others_may_enter_is_named_and_stays_as_it_is(host: Host, verb: str) -> None:
    host.run_dir.mkdir()
    host.parent.mkdir()
    host.parent.chmod(0o755)
    reason, hint = failure(host.open(verb))
    assert reason == f"{host.parent} has the mode 0755: other users may look or write there"
    assert hint.startswith(f"look whether all in there is yours, then: chmod 700 {host.parent};")
    assert (host.parent.stat().st_mode & 0o777, list(host.parent.iterdir())) == (0o755, [])


@pytest.mark.skipif(not IS_ROOT, reason="only root can make somebody else's directory")
def test_somebody_elses_directory_is_refused(host: Host) -> None:
    host.parent.mkdir(parents=True)
    os.chown(host.parent, 12345, -1)
    reason, hint = failure(host.open("start"))
    assert reason == f"{host.parent} belongs to uid 12345, not to you (uid 0)"
    assert "run_dir" in hint


def test_a_place_that_cannot_be_written_is_named(host: Host) -> None:
    place = "/proc" if IS_ROOT else "/"
    reason, hint = failure(host.open("start", run_dir=f"{place}/tflaunch-tests"))
    assert "run_dir" in hint
    assert reason.startswith(f"{place}/tflaunch-tests")
    assert re.search(r"Permission denied|No such file|Read-only", reason)
    file = host.work_dir / "file"
    file.touch()
    reason, _ = failure(host.open("start", run_dir=str(file)))
    assert "Not a directory" in reason or "File exists" in reason


def test_a_full_disk_is_found_before_anything_starts(host: Host) -> None:
    host.run_dir.mkdir()
    login = small_disk(host.run_dir, "size=64k,nr_inodes=4")
    reason, hint = failure(host.open("start", login=login))
    assert "No space left on device" in reason
    assert "inodes are free" in reason
    assert "run_dir" in hint


def test_a_disk_that_fills_does_not_hide_how_the_task_ended(host: Host) -> None:
    host.run_dir.mkdir()
    channel = host.start(login=small_disk(host.run_dir, "size=256k"))
    code = host.work_dir / "code"
    code.mkdir()
    (code / "big").write_bytes(os.urandom(1_000_000))
    bundle = sources.bundle(code)
    channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")
    channel.write(next(shipping.frames(bundle, [0]))[0])
    reason, hint = failure(channel)
    assert "No space left on device" in reason
    assert "make room" in hint
    script = "head -c 1000000 /dev/zero; exit 6"
    channel.ask(
        "stage", tasks=[shell(script)], code=None, ports=[], gpus=[], door=False, attempt=0, answer="staged"
    )
    channel.send("release")
    exited = channel.wait("exit")
    assert exited["code"] == 6
    assert b"No space left" not in exited.body  # there was no room for even that
    assert swept(channel)["survivors"] == []


@pytest.mark.skipif(not IS_ROOT, reason="only root can make a directory that belongs to somebody else")
def test_a_parent_that_somebody_else_made_is_believed_nothing(host: Host) -> None:
    with subprocess.Popen(["sleep", "600"]) as victim:
        start = processes.read(victim.pid).start
        trap = Path(host.run_dir) / f"tflaunch-{os.getuid()}"
        directory = trap / "evil-abc123" / "h1"
        directory.mkdir(parents=True)
        (directory / "agent.json").write_text(json.dumps({"pid": victim.pid, "start": start}))
        os.chown(trap, 65534, 65534)
        for verb in ("visit", "start"):
            reason, _ = failure(host.open(verb))
            assert "belongs to uid 65534" in reason
        assert victim.poll() is None
        victim.kill()
