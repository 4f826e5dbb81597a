"""`tflaunch ps` and `tflaunch status`: what hosts tell of runs, from any machine that has their names."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.detached import detached, end
from tests.support.endless import endless, kill
from tests.support.launcher import Launcher
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import SshNetwork


@pytest.fixture
def hostfile(network: SshNetwork, launcher: Launcher) -> Path:
    """Two hosts, each with a disk of its own."""
    names = [network.add().name for _ in range(2)]
    return launcher.hostfile([{"name": name, "run_dir": str(launcher.hosts / name)} for name in names])


@pytest.fixture
def elsewhere(tmp_path: Path, network: SshNetwork) -> Iterator[Launcher]:
    """Another machine of the same user: it has no record of any run."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    other = Launcher(directory, network)
    yield other
    other.close()


def test_a_live_run_is_seen_from_any_machine(launcher: Launcher, elsewhere: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as running:
        run = running.run_id
        for user, words in ((launcher, ()), (elsewhere, ("--hosts", hostfile))):
            table = user.run("ps", *words).ran().out.splitlines()
            assert len(table) == 2
            assert table[1].split()[:5] == [run, "●", "running", "2/2", "host[1-2]"]
            assert "--ps=1 --workers=1" in table[1]
            assert user.run("ps", "-q", *words).ran().out == f"{run}\n"
            document = json.loads(user.run("status", "--json", run[:-1], *words).ran().out)
            tasks = {each["task"]: each for each in document["tasks"]}
            assert (document["run_id"], document["state"], document["running"]) == (run, "running", 2)
            assert document["command"][:2] == [
                "tflaunch",
                "run",
            ]  # and not the file that Python was told to run
            assert document["command"][-2:] == ["--workers=1", "--grace=2"]
            assert sorted(tasks) == ["ps/0", "worker/0"]
            for each in tasks.values():
                assert Path(each["log"]).read_text() == "here I am\n"
                assert Path(f"/proc/{each['pid']}/environ").read_bytes().count(run.encode())
                assert each["attempts"] == 1
                assert each["port"]
            assert {each["host"]: each["state"] for each in document["hosts"]} == {
                "host1": "alive",
                "host2": "alive",
            }
            page = user.run("status", *words).ran().out
            assert "worker/0" in page
        here = launcher.run("status").ran().out
        assert f"its launcher is pid {running.process.pid} on this machine" in here
        there = elsewhere.run("status", "-H", hostfile).ran().out
        assert f"its launcher ({getpass.getuser()}@{socket.gethostname()}) keeps it alive" in there
        running.signal(signal.SIGKILL)
        running.end()
        orphan = json.loads(elsewhere.run("status", "-H", hostfile, "--json").ran().out)
        assert (orphan["run_id"], orphan["state"]) == (run, "running")
        launcher.run("stop", run).ran()
    nothing = elsewhere.run("ps", "-H", hostfile).ran()
    assert nothing.out == ""
    assert "no run is alive on these hosts" in nothing.sentences
    assert "1 more that have ended: tflaunch ps -a" in nothing.sentences
    assert "stopped" in elsewhere.run("ps", "-a", "-H", hostfile).ran().out
    newest = elsewhere.run("status", "-H", hostfile).ran()
    assert f"{run}: the newest run; none is alive" in newest.sentences


def test_the_first_failure_is_told_first(launcher: Launcher, elsewhere: Launcher, hostfile: Path) -> None:
    script = launcher.script("""
        import os, sys, time
        if os.environ["TFLAUNCH_TASK"] == "worker/1":
            print("the reason")
            sys.exit(7)
        time.sleep(600)
    """)
    launcher.run("run", hostfile, script, "--ps=1", "--workers=2", "--grace=1").ran(7)
    (record,) = launcher.records()
    page = elsewhere.run("status", record.name, "-H", hostfile).ran().out
    lines = page.splitlines()
    assert "✗ failed" in lines[0]
    assert "worker/1 on host" in page
    assert "exited with code 7" in page
    assert page.index("│ the reason") < page.index("worker/0")
    table = elsewhere.run("ps", "-a", "--hosts", hostfile).ran().out
    assert f"{record.name}  ✗ failed" in table
    document = json.loads(elsewhere.run("ps", "-a", "--json", "--hosts", hostfile).ran().out)
    (run,) = document["runs"]
    assert (run["state"], run["first_failure"], run["alive"]) == ("failed", "worker/1", False)
    assert launcher.run("ps", "-a").ran().out.splitlines()[1].split()[:3] == [record.name, "✗", "failed"]
    launcher.run("ps").ran(2)  # no hostfile, and no run on record that may be alive


def test_a_host_that_is_down_is_said(
    network: SshNetwork, launcher: Launcher, elsewhere: Launcher, hostfile: Path
) -> None:
    with endless(launcher, hostfile) as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        network.sshds[1].kill()
        down = elsewhere.run("ps", "--hosts", hostfile).ran(69)
        assert run in down.out
        assert "refuses the connection" in down.sentences
        document = json.loads(elsewhere.run("status", run, "--hosts", hostfile, "--json").ran(69).out)
        assert {each["host"]: each["state"] for each in document["hosts"]} == {
            **{"host1": "alive", "host2": "unreachable"}
        }
        assert sorted(each["state"] for each in document["tasks"]) == ["running", "unknown"]
        assert "refuses the connection" in document["unreachable"]["host2"]["message"]
        network.sshds[0].kill()
        # Only this machine's record knows now that there is, or was, such a run.
        blind = launcher.run("ps").ran(69)
        assert blind.out.splitlines()[1].split()[:3] == [run, "?", "unknown"]
        elsewhere.run("status", run, "--hosts", hostfile).ran(69)
        for sshd in network.sshds:
            sshd.start()
        kill(launcher, run, agents=True)
        until(lambda: not any(each.is_agent for each in launcher.leftovers(run)), "the end of all agents")
        strays = elsewhere.run("status", run, "--hosts", hostfile).ran().out
        assert "the agent is dead, but these live on: pid" in strays
        launcher.run("stop", run, "--grace=0").ran()


def test_a_run_without_launcher(launcher: Launcher, elsewhere: Launcher, hostfile: Path, out: Path) -> None:
    run = detached(launcher, hostfile, out, "--restarts=2")
    end(out, "worker-1", 3)

    def again() -> dict[str, Any] | None:
        document = json.loads(elsewhere.run("status", run, "-H", hostfile, "--json").ran().out)
        tasks = {each["task"]: each for each in document["tasks"]}
        restarted = tasks["worker/1"]["attempts"] == 2 and tasks["worker/1"]["state"] == "running"
        return document if restarted else None

    document = until(again, "the second attempt")
    assert (document["state"], document["detached"], document["first_failure"]) == ("running", True, None)
    assert [task["before"] for task in document["tasks"] if task["task"] != "worker/1"] == [[], []]
    page = elsewhere.run("status", "-H", hostfile).ran().out
    assert "detached: it goes on without a launcher" in page
    assert re.search(r"worker/1 +host[12] +1 +✗ exit code 3 +\S+ +worker-1.log", page)
    stays = json.loads(elsewhere.run("clean", "-H", hostfile, "--older=0s", "--json").ran().out)["stays"]
    assert "it is alive on host" in stays[run]
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    launcher.wait_until_nothing_is_left()
    for user in (launcher, elsewhere):
        assert user.run("ps", "-a", hostfile).ran().out.splitlines()[1].split()[:3] == [
            run,
            "✓",
            "succeeded",
        ]
    assert launcher.run("ps").ran().out == ""
    launcher.run("clean", "-H", hostfile, "--older=0s").ran()
    assert [*launcher.hosts.glob("*/tflaunch-*/*"), *launcher.records()] == [
        *launcher.hosts.glob("*/tflaunch-*/code")
    ]


def test_on_a_terminal_it_has_colours_and_in_a_pipe_none(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as running:
        assert "\x1b" not in launcher.run("status").ran().out
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
        env = launcher.env(TERM="xterm-256color")
        del env["COLUMNS"]
        argv = launcher.argv("status")
        process = subprocess.Popen(argv, stdin=other, stdout=other, stderr=other, env=env, cwd=launcher.code)
        os.close(other)
        screen = b""
        with contextlib.suppress(OSError):  # a terminal ends like that
            while more := os.read(main, 4096):
                screen += more
        os.close(main)
        assert process.wait(PATIENCE_S) == 0
        assert b"\x1b[" in screen
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode()).splitlines()
        tasks = [line for line in lines if line.startswith(("worker/0", "ps/0", "task"))]
        assert len(tasks) == 3
        assert max(map(len, tasks)) <= 72
        running.interrupt()
        running.end()


def test_what_makes_no_sense_is_refused(launcher: Launcher, hostfile: Path) -> None:
    launcher.run("ps", "-q", "--json", "--hosts", hostfile).ran(2)
    unknown = launcher.run("status", "nobody-aaaaaa", "--hosts", hostfile).ran(2)
    assert "no run nobody-aaaaaa is known on host[1-2] (" in unknown.sentences
    launcher.run("status", "../x", "--hosts", hostfile).ran(2)
    assert "tflaunch ps --hosts" in launcher.run("ps").ran(2).sentences


@pytest.mark.parametrize("words", [("ps", "-a"), ("clean", "-n"), ("schema",)], ids=" ".join)
def test_a_full_disk_behind_stdout_is_a_sentence(
    launcher: Launcher, words: tuple[str, ...], hostfile: Path
) -> None:
    hosts = () if words == ("schema",) else (f"--hosts={hostfile}",)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            launcher.argv(*words, *hosts),
            env=launcher.env(),
            cwd=launcher.code,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot write to stdout: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
