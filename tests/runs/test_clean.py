"""`tflaunch clean`: what goes, what stays, and that nothing else is ever touched."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.ages import make_old
from tests.support.endless import endless, kill
from tests.support.launcher import Done, Launcher
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import SshNetwork
from tflaunch.protocol import removal


@pytest.fixture
def hostfile(network: SshNetwork, launcher: Launcher) -> Path:
    """Two hosts, each with a disk of its own."""
    return launcher.hostfile([separate(launcher, network.add().name) for _ in range(2)])


def separate(launcher: Launcher, name: str) -> dict[str, str]:
    return {"name": name, "run_dir": str(launcher.hosts / name)}


def directories(launcher: Launcher, run: str) -> list[Path]:
    """Everything there is of a run: on the hosts, and the record."""
    return sorted([*launcher.hosts.glob(f"*/tflaunch-*/{run}"), *launcher.state.glob(run)])


def kept_bytes(launcher: Launcher, alive: str = "") -> int:
    """What all runs take but for one, which goes on writing, and for the modules that agents store all the time."""
    homes = [*launcher.hosts.glob("tflaunch-*"), *launcher.hosts.glob("*/tflaunch-*")]
    kept = [*launcher.state.iterdir(), *(path for home in homes for path in home.iterdir())]
    runs = [path for path in kept if path.name not in (alive, "code")]
    code = [path for home in homes for path in home.glob("code/*") if not path.name.startswith("agent-")]
    return sum(removal.Size(str(path)).bytes for path in (*runs, *code))


def ended_run(launcher: Launcher, hostfile: Path, days: float = 0, text: str = "print('done')") -> str:
    """A run of two workers that has ended, as if so many days ago."""
    script = launcher.script(text)
    launcher.run("run", hostfile, script, "--ps=0", "--workers=2", "--done=all").ran()
    launcher.wait_until_nothing_is_left()  # its guards' last words make its directories new
    newest = max(launcher.records(), key=lambda path: path.stat().st_mtime)
    if days:
        for directory in directories(launcher, newest.name):
            make_old(directory, days)
    return newest.name


def test_old_new_and_alive(launcher: Launcher, hostfile: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years")
    link = f"import os; os.symlink({str(precious)!r}, 'data-%d' % os.getpid())"
    old = ended_run(launcher, hostfile, 30, link)
    new = ended_run(launcher, hostfile)
    with endless(launcher, hostfile) as running:
        alive = running.run_id
        for directory in directories(launcher, alive):
            make_old(directory)
        told = launcher.run("clean", "--hosts", hostfile, "--dry-run").ran()
        assert old in told.out
        assert "--dry-run: nothing was removed" in told.out
        assert len(directories(launcher, old)) == 3
        before = kept_bytes(launcher, alive)
        done = launcher.run("clean", "--hosts", hostfile, "--json").ran()
        document = json.loads(done.out)
        assert directories(launcher, old) == []
        assert len(directories(launcher, new)) == 3
        assert len(directories(launcher, alive)) == 3
        assert document["unreachable"] == {}
        freed = sum(place["freed_bytes"] for place in document["places"])
        assert before - kept_bytes(launcher, alive) == freed > 0
        for entry in document["places"]:
            assert list(entry["removed"]) == [old]
            assert entry["stay"]["runs"] == 2
            assert entry["failed"] == {}
        words = ("--older=0s", "--keep-last=2", "--json")
        again = json.loads(launcher.run("clean", "--hosts", hostfile, *words).ran().out)
        assert again["stays"] == {
            **{alive: "it is alive on host[1-2], this machine", new: "it is one of the newest 2"}
        }
        assert launcher.leftovers(alive)
        assert (precious / "thesis").read_text() == "years"

        refused = launcher.run("clean", alive).ran(2)
        assert f"{alive} stays: it is alive" in refused.sentences
        assert f"tflaunch stop {alive}" in refused.sentences
        nothing = launcher.run("clean", "--hosts", hostfile).ran()
        assert "host[1-2]: nothing to remove; 2 stay" in nothing.out
        running.interrupt()
        running.end()
    named = launcher.run("clean", alive[:-1], "-y").ran()
    assert "1 run removed" in named.out
    assert directories(launcher, alive) == []


def test_two_names_of_one_directory_are_one_place(network: SshNetwork, launcher: Launcher) -> None:
    shared = launcher.hostfile([network.add().name for _ in range(2)])
    script = launcher.script("print('done')")
    launcher.run("run", shared, script, "--ps=0", "--workers=2", "--done=all").ran()
    before = kept_bytes(launcher)
    done = launcher.run("clean", "--hosts", shared, "--older=0s", "--json").ran()
    places = json.loads(done.out)["places"]
    assert [entry["hosts"] for entry in places] == [["host1", "host2"], []]
    assert sum(entry["freed_bytes"] for entry in places) == before - kept_bytes(launcher) > 0
    assert launcher.run_directories() == []


def test_all_but_the_newest_and_by_size(launcher: Launcher, hostfile: Path) -> None:
    big = "open('big', 'wb').write(b'x' * 3_000_000)"
    runs = [ended_run(launcher, hostfile, days, big) for days in (9, 8, 7, 6)]
    launcher.run("clean", "-H", hostfile, "--max-size=11M").ran()
    assert [len(directories(launcher, run)) for run in runs] == [1, 3, 3, 3]  # the records here are small
    launcher.run("clean", "-H", hostfile, "--keep-last=2").ran()
    assert [len(directories(launcher, run)) for run in runs] == [0, 0, 3, 3]
    launcher.run("clean", "-H", hostfile, "--older=0s", "--keep-last=1").ran()
    assert [len(directories(launcher, run)) for run in runs] == [0, 0, 0, 3]


def test_a_host_that_is_down(network: SshNetwork, launcher: Launcher, hostfile: Path) -> None:
    ended = ended_run(launcher, hostfile, 30)
    with endless(launcher, hostfile) as running:
        lost = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        kill(launcher, lost, agents=True)
        until(lambda: not any(each.is_agent for each in launcher.leftovers(lost)), "the end of all agents")
        kill(launcher, lost, agents=False)
        launcher.wait_until_nothing_is_left()
    for directory in directories(launcher, lost):
        make_old(directory)
    network.sshds[1].kill()
    done = launcher.run("clean", "--hosts", hostfile).ran(69)
    assert "refuses the connection" in done.sentences
    assert f"{lost} stays: it may be alive on host2, not asked" in done.out
    left = [path.relative_to(launcher.directory).parts[:2] for path in directories(launcher, ended)]
    assert left == [("hosts", "host2")]
    assert len(directories(launcher, lost)) == 3
    network.sshds[1].start()
    launcher.run("clean", "--hosts", hostfile).ran()
    assert directories(launcher, ended) + directories(launcher, lost) == []


def test_a_run_that_starts_meanwhile_is_not_touched(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as first:  # one lives and one begins
        script = launcher.script("import time; print('second', flush=True); time.sleep(3600)")
        with launcher.start("run", hostfile, script, "--ps=1", "--workers=1", "--grace=0") as second:
            cleans: list[Done] = []
            while second.out.count("second") < 2:
                assert second.process.poll() is None, second.err
                cleans.append(launcher.run("clean", "--hosts", hostfile, "--older=0s", "-y").ran())
            assert cleans
            launcher.run("clean", "--hosts", hostfile, "--older=0s", "-y").ran()
            for running in (first, second):
                assert len(directories(launcher, running.run_id)) == 3
                running.interrupt()
                assert running.end() == 130, running.err
    launcher.run("clean", "--hosts", hostfile, "--older=0s", "-y").ran()
    assert launcher.records() == []


def test_on_a_terminal_it_asks(launcher: Launcher, hostfile: Path) -> None:
    run = ended_run(launcher, hostfile, 30)
    for answer in (b"\n", b"y\n"):
        main, other = pty.openpty()
        process = subprocess.Popen(
            launcher.argv("clean", "--hosts", hostfile),
            stdin=other,
            stdout=other,
            stderr=other,
            env=launcher.env(TERM="dumb"),
            cwd=launcher.code,
        )
        os.close(other)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(main, 4096)
        assert run.encode() in shown
        os.write(main, answer)
        try:
            while more := os.read(main, 4096):
                shown += more
        except OSError:
            pass  # a terminal ends like that
        assert process.wait(PATIENCE_S) == 0
        os.close(main)
        assert (b"nothing was removed" in shown) is (answer == b"\n")
        assert bool(directories(launcher, run)) is (answer == b"\n")


def test_what_makes_no_sense_is_refused(launcher: Launcher, hostfile: Path) -> None:
    for words in (
        ("--older=soon",),
        ("--older=7",),
        ("--max-size=lots",),
        ("--keep-last=-1",),
        ("trainer-aaaaaa", "--older=1d"),
        ("../../etc",),
        ("nobody-aaaaaa",),
    ):
        launcher.run("clean", "--hosts", hostfile, *words).ran(2)
    shutil.rmtree(launcher.hosts, ignore_errors=True)
    nowhere = launcher.run("clean").ran(2)
    assert "tflaunch clean --hosts" in nowhere.sentences
