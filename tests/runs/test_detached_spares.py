"""A detached run that loses a host goes on with a spare, without a launcher."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.runs.test_detach import coordinator, events, host_of
from tests.support.detached import COUNT, end
from tests.support.launcher import Launcher
from tests.support.patience import until
from tflaunch.agent import processes

# As COUNT; and writes TF_CONFIG and its arguments where the test finds them.
TELLS = (
    """
    import json, os, pathlib, sys
    pathlib.Path(os.environ["OUT"], "%s.%s.told" % (os.environ["TFLAUNCH_TASK"].replace("/", "-"),
        os.environ["TFLAUNCH_ATTEMPT"])).write_text(json.dumps([json.loads(os.environ["TF_CONFIG"]), sys.argv[1:],
        os.environ.get("MINE")]))
"""
    + COUNT
)


def with_spares(launcher: Launcher, out: Path, hosts: Path, spares: str, *options: str) -> str:
    words = (
        "--ps=1",
        "--workers=2",
        f"--env=OUT={out}",
        "--lease=6",
        "--ps-grace=0.2",
        "--restarts=2",
        *options,
    )
    done = launcher.run("run", "-d", hosts, launcher.script(TELLS), f"--spares={spares}", *words).ran()
    found = re.search(r"(\S+) goes on by itself: 3 tasks", done.err)
    assert found, done.err
    return found[1]


def lose(launcher: Launcher, host: str) -> None:
    """End all of that host, as a crash of its machine does."""
    for process in launcher.leftovers():
        if process.env.get("TFLAUNCH_HOST") == host or (process.is_agent and host in process.words):
            process.kill()


def told(out: Path, task: str, attempt: int) -> list[Any]:
    path = out / f"{task}.{attempt}.told"
    return list(json.loads(until(lambda: path.exists() and path.read_text(), f"{task}, attempt {attempt}")))


def test_its_tasks_go_on_there_and_all_learn_where_they_are(launcher: Launcher, out: Path) -> None:
    hosts = launcher.local(4)
    run = with_spares(launcher, out, hosts, "local4", "--env=MINE={worker_hosts}")
    lost = host_of(launcher, "worker/1")
    config, _, _ = told(out, "worker-0", 0)
    lose(launcher, lost)
    with launcher.start("attach", run) as watching:
        watching.wait_for("worker-1 attempt 1 number 5")
        configs = [told(out, task, 1) for task in ("ps-0", "worker-0", "worker-1")]
        assert len({json.dumps(each[0]["cluster"]) for each in configs}) == 1
        cluster = configs[0][0]["cluster"]
        assert cluster["worker"][0] == config["cluster"]["worker"][0]
        assert cluster["ps"] == config["cluster"]["ps"]
        assert cluster["worker"][1] != config["cluster"]["worker"][1]
        assert f"--worker_hosts={','.join(cluster['worker'])}" in configs[1][1]
        assert configs[1][2] == ",".join(cluster["worker"])
        assert list(launcher.hosts.glob(f"tflaunch-*/{run}/local4/logs/worker-1.1.log"))
        shown = json.loads(launcher.run("status", run, "--json").ran().out)
        assert {task["task"]: task["host"] for task in shown["tasks"]}["worker/1"] == "local4"
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        done = watching.done().ran()
    assert f"{run} succeeded" in done.err
    assert "worker/1 moves to local4, and all tasks start again (restart 1 of 2)" in done.sentences
    assert "local4: worker/1 is on this host from now on" in done.sentences
    launcher.wait_until_nothing_is_left()


def test_a_second_loss_and_one_that_decides_and_dies(launcher: Launcher, out: Path) -> None:
    run = with_spares(launcher, out, launcher.local(5), "local[4-5]")
    decides = host_of(launcher, "worker/0")
    told(out, "worker-1", 0)
    lose(launcher, host_of(launcher, "worker/1"))
    told(out, "worker-1", 1)
    first = coordinator(launcher, decides)
    os.kill(first, signal.SIGKILL)
    until(lambda: not processes.read(first), "its end")
    assert coordinator(launcher, decides) != first
    lose(launcher, "local4")
    config, _, _ = told(out, "worker-1", 2)
    for worker in ("worker-0", "worker-1"):
        assert told(out, worker, 2)[0]["cluster"] == config["cluster"]
        end(out, worker)
    done = launcher.run("attach", run).ran()
    assert f"{run} succeeded" in done.err
    assert "worker/1 moves to local5, and all tasks start again (restart 2 of 2)" in done.sentences
    assert "cannot be used" not in done.sentences
    launcher.wait_until_nothing_is_left()
    assert not list(out.glob("*.3.told"))


def test_when_no_restart_is_left_it_ends(launcher: Launcher, out: Path) -> None:
    run = with_spares(launcher, out, launcher.local(5), "local[4-5]", "--restarts=1")
    told(out, "worker-1", 0)
    end(out, "worker-1", 3)
    told(out, "worker-1", 1)  # that was the one restart
    lost = host_of(launcher, "ps/0")
    lose(launcher, lost)
    launcher.wait_until_nothing_is_left()
    assert f"{lost} was lost" in launcher.run("attach", run).ran(76).err


def test_a_spare_that_is_lost_before_it_is_needed_is_not_missed(launcher: Launcher, out: Path) -> None:
    run = with_spares(launcher, out, launcher.local(5), "local[4-5]")
    told(out, "worker-1", 0)
    lose(launcher, "local4")
    decider = host_of(launcher, "worker/0")
    until(
        lambda: [e for e in events(launcher, decider) if "without local4" in str(e.get("text"))],
        "a word of it",
    )
    lose(launcher, host_of(launcher, "worker/1"))
    told(out, "worker-1", 1)
    assert list(launcher.hosts.glob(f"tflaunch-*/{run}/local5/logs/worker-1.1.log"))
    launcher.run("stop", run).ran()
    launcher.wait_until_nothing_is_left()


def test_stop_ends_the_spare_too_and_leaves_nothing_there(launcher: Launcher, out: Path) -> None:
    run = with_spares(launcher, out, launcher.local(4), "local4")
    assert launcher.agents("local4")
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    launcher.wait_until_nothing_is_left()
    assert not list(launcher.hosts.glob(f"tflaunch-*/{run}/local4"))
    launcher.run("attach", run).ran()


def test_a_spare_that_fits_no_host_is_refused_at_the_start(launcher: Launcher, out: Path) -> None:
    words = ("--ps=1", "--workers=2", "--ps-hosts=local[1-3]", "--worker-hosts=local[1-3]", "--restarts=1")
    trainer = launcher.script(COUNT)
    done = launcher.run(
        "run", "-d", launcher.local(4), trainer, f"--env=OUT={out}", "--spares=local4", *words
    )
    assert "none of these hosts can take the place of a host of the run" in done.ran(65).sentences
    launcher.wait_until_nothing_is_left()


def test_tasks_of_a_host_that_shuts_down_move(launcher: Launcher, out: Path) -> None:
    """Its agent is told to end, says so, and ends its tasks."""
    run = with_spares(launcher, out, launcher.local(4), "local4", "--grace=0.2")
    told(out, "worker-1", 0)
    lost = host_of(launcher, "worker/1")
    os.kill(launcher.agents(lost)["agent"], signal.SIGTERM)
    assert told(out, "worker-1", 1)
    assert list(launcher.hosts.glob(f"tflaunch-*/{run}/local4/logs/worker-1.1.log"))
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    done = launcher.run("attach", run).ran()
    assert f"{lost} is lost (the agent was told to end (SIGTERM)): worker/1 moves to local4" in done.sentences
    launcher.wait_until_nothing_is_left()


def test_the_host_that_decides_has_no_spare(launcher: Launcher, out: Path) -> None:
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--spares=local4", "--restarts=1")
    trainer, hosts = launcher.script(COUNT), launcher.local(4)
    alone = ("--ps-hosts=local1", "--worker-hosts=local1")
    done = launcher.run("run", "-d", hosts, trainer, *words, *alone).ran(65)
    assert "all tasks are on local1, which coordinates the detached run" in done.sentences
    launcher.wait_until_nothing_is_left()
    done = launcher.run("run", "-d", hosts, trainer, *words).ran()
    assert (
        f"{host_of(launcher, 'worker/0')} decides for the run, so no spare can take its place"
        in done.sentences
    )
    launcher.run("stop").ran()
    launcher.wait_until_nothing_is_left()


def test_a_stop_while_its_tasks_move_ends_it(launcher: Launcher, out: Path) -> None:
    run = with_spares(launcher, out, launcher.local(4), "local4", "--grace=0.2")
    told(out, "worker-1", 0)
    decider = host_of(launcher, "worker/0")
    lose(launcher, host_of(launcher, "worker/1"))
    until(
        lambda: [e for e in events(launcher, decider) if "moves to local4" in str(e.get("text"))], "its move"
    )
    assert launcher.run("stop", run).code in (0, 69)  # the lost host may be found gone
    launcher.wait_until_nothing_is_left()
    launcher.run("attach", run).ran(143)
    assert not (out / "worker-1.1.told").exists()
