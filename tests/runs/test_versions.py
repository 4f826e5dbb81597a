"""Versions beside each other: each looks at, attaches to, hands over and ends what the other has started.

The older one is a wheel of tests/support/versions.  All tests have one set of hosts: two, with a GPU each.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tflaunch
from tests.support.detached import COUNT, end
from tests.support.lab import Gpus
from tests.support.launcher import Launcher, Running
from tests.support.sshd import SshNetwork
from tests.support.versions import OLD, OldLauncher, unpacked

NEWEST = "newest"
both_ways = pytest.mark.parametrize(("mine", "other"), [(NEWEST, OLD), (OLD, NEWEST)])


class Users:
    """One user with both versions, and the hosts."""

    def __init__(self, gpus: Gpus, place: Path) -> None:
        self.gpus = gpus
        self.place = place
        self.of = {NEWEST: gpus.launcher, OLD: OldLauncher(gpus.launcher, place)}
        self._runs = 0

    def words(self, *options: str) -> tuple[Path, tuple[str | Path, ...]]:
        """Where the tasks of the next run look for their end, and the words of `run` that start it."""
        self._runs += 1
        out = self.gpus.out / str(self._runs)
        out.mkdir()
        trainer = self.gpus.launcher.script(COUNT, "count.py")
        tasks = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--lease=20", "--ps-grace=0.2")
        return out, (*options, self.gpus.hostfile, trainer, *tasks)

    def start(self, version: str) -> tuple[Path, Running]:
        """A run in the foreground, all of whose tasks print."""
        out, words = self.words()
        running = self.of[version].start("run", *words)
        for task in ("ps-0", "worker-0", "worker-1"):
            running.wait_for(f"{task} attempt 0 number 5")
        return out, running

    def detach(self, version: str) -> tuple[Path, str]:
        """A detached run."""
        out, words = self.words("--detach")
        done = self.of[version].run("run", *words).ran()
        [run] = re.findall(r"(\S+) goes on by itself", done.err)
        return out, run


@pytest.fixture(scope="module")
def users(library: Path, client_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    directory = tmp_path_factory.mktemp("versions")
    (directory / "network").mkdir()
    network = SshNetwork(directory / "network", client_key)
    launcher = Launcher(directory, network)
    gpus = Gpus(library, directory, network, launcher)
    gpus.add()
    gpus.add()
    yield Users(gpus, unpacked(directory / "old"))
    launcher.close()
    network.close()


def looks(launcher: Launcher, run: str) -> None:
    """All that only looks at a run that goes on: 1 ps and 2 workers."""
    [listed] = json.loads(launcher.run("ps", "--json").ran().out)["runs"]
    assert (listed["run_id"], listed["state"]) == (run, "running")
    status = json.loads(launcher.run("status", run, "--json").ran().out)
    assert {each["task"]: each["state"] for each in status["tasks"]} == dict.fromkeys(
        ("ps/0", "worker/0", "worker/1"), "running"
    )
    assert "worker-1 attempt 0 number 3\n" in launcher.run("logs", run, "worker/1").ran().out
    shown = launcher.run("stacks", run, "worker/1").ran().out
    assert "count.py" in shown, shown


def watches(launcher: Launcher, run: str) -> Running:
    """`attach`, once it shows what each task prints."""
    watching = launcher.start("attach", run)
    for task in ("ps-0", "worker-0", "worker-1"):
        watching.wait_for(f"{task} attempt 0 number 5")
    return watching


def test_each_is_what_it_says(users: Users) -> None:
    """The older one is that of the wheel, whatever is installed here."""
    asked = (sys.executable, "-c", "import tflaunch; print(tflaunch.__file__, tflaunch.__version__)")
    found = {}
    for version, launcher in users.of.items():
        done = subprocess.run(
            asked, cwd=launcher.code, env=launcher.env(), check=True, capture_output=True, text=True
        )
        found[version] = done.stdout.split()
    assert found[OLD] == [str(users.place / "tflaunch/__init__.py"), OLD]
    assert found[NEWEST] == [tflaunch.__file__, tflaunch.__version__]


@both_ways
def test_a_run_with_its_launcher(users: Users, mine: str, other: str) -> None:
    _, running = users.start(mine)
    with running:
        looks(users.of[other], running.run_id)
        with watches(users.of[other], running.run_id) as watching:
            users.of[other].run("stop", running.run_id).ran()
            assert (watching.end(), running.end()) == (143, 143)
    assert "Traceback" not in running.err + watching.err
    users.gpus.launcher.wait_until_nothing_is_left()


@both_ways
def test_a_detached_run(users: Users, mine: str, other: str) -> None:
    out, run = users.detach(mine)
    looks(users.of[other], run)
    if other == NEWEST:
        assert "an older tflaunch started its run" in users.of[other].run("profile", run).ran(69).sentences
    with watches(users.of[other], run) as watching:
        end(out, "worker-0")
        end(out, "worker-1", 5)
        done = watching.done().ran(5)
    assert f"{run} failed" in done.err
    users.gpus.launcher.wait_until_nothing_is_left()
    for launcher in users.of.values():  # of a run that is over
        assert launcher.run("attach", run).ran(5)
        status = json.loads(launcher.run("status", run, "--json").ran().out)
        assert (status["state"], status["outcome"]["exit_code"]) == ("failed", 5)


@both_ways
def test_a_detached_run_is_stopped(users: Users, mine: str, other: str) -> None:
    _, run = users.detach(mine)
    with watches(users.of[other], run) as watching:
        users.of[other].run("stop", run).ran()
        watching.done().ran(143)
    users.gpus.launcher.wait_until_nothing_is_left()
    assert not users.of[mine].run("ps", "-q", "--hosts", users.gpus.hostfile).ran().out
    assert users.of[mine].run("attach", run).ran(143)


@both_ways
def test_a_run_is_handed_over(users: Users, mine: str, other: str) -> None:
    out, running = users.start(mine)
    with running:
        users.of[other].run("detach", running.run_id).ran()
        running.done().ran()
    for launcher in users.of.values():
        looks(launcher, running.run_id)
    end(out, "worker-0")
    end(out, "worker-1")
    assert f"{running.run_id} succeeded" in users.of[other].run("attach", running.run_id).ran().err
    users.gpus.launcher.wait_until_nothing_is_left()


@both_ways
def test_they_see_each_others_leases_and_queue(users: Users, mine: str, other: str) -> None:
    gpus = users.gpus
    names = [f"{each}-{mine}" for each in ("holder", "first", "second")]

    def start(version: str, name: str, *more: str) -> Running:
        return users.of[version].start(*gpus.words(name, 2, *more))

    def shown(version: str) -> str:
        return users.of[version].run("gpus", gpus.hostfile, "-F", gpus.network.config).ran().out

    with contextlib.ExitStack() as runs:
        holder = runs.enter_context(start(mine, names[0]))
        holder.wait_for("has GPU", 2)
        assert shown(other).count(f"run {holder.run_id}") >= 2, shown(other)
        refused = users.of[other].run(*gpus.words("refused", 1)).ran(65)
        assert f"run {holder.run_id}" in refused.sentences
        first = runs.enter_context(start(other, names[1], "--wait"))
        first.wait_for(" in line")
        second = runs.enter_context(start(mine, names[2], "--wait"))
        second.wait_for("2nd in line")
        [ahead] = re.findall(r"behind \S+'s run (\S+);", second.err)
        for version in users.of:
            waiting = re.findall(r"(?m)^(\d)\. \S+'s run (\S+) has waited", shown(version))
            assert [place for place, _ in waiting] == ["1", "2"]
            assert waiting[0][1] == ahead
        gpus.let_end(*names)
        for each in (holder, first, second):
            each.done().ran()
        assert first.run_id == ahead
    assert gpus.order == [each for each in names for _ in range(2)]
    assert gpus.tickets == []
    (gpus.out / "order").unlink()
    users.gpus.launcher.wait_until_nothing_is_left()


def test_the_older_one_follows_a_run_whose_tasks_are_warned_of_its_limit(users: Users) -> None:
    """They die of it once, which their exits say, and start again."""
    out, words = users.words("--detach", "--timeout=600", "--warn-before=585", "--restarts=1")
    run = re.findall(r"(\S+) goes on by itself", users.of[NEWEST].run("run", *words).ran().err)[0]
    with users.of[OLD].start("attach", run, "-H", users.gpus.hostfile) as watching:
        for task in ("ps-0", "worker-0", "worker-1"):
            watching.wait_for(f"{task} attempt 1 number 5")
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        assert watching.end() == 0
    assert "was killed by SIGUSR1" in watching.done().sentences
    assert "tasks got SIGUSR1 (--warn-before)" in watching.done().sentences
    users.gpus.launcher.wait_until_nothing_is_left()
