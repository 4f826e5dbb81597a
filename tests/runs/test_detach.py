"""Runs that go on without a launcher, seen from any terminal: they end by the rules, start again, can be watched."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.detached import COUNT, detached, end
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork
from tflaunch.agent import processes


def events(launcher: Launcher, host: str) -> list[dict[str, object]]:
    """What the agent of that host has noted."""
    [path] = launcher.hosts.glob(f"tflaunch-*/*/{host}/events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def coordinator(launcher: Launcher, host: str) -> int:
    """The pid of the process that decides, on its host: the agent's only child that is no task."""
    agent = launcher.agents(host)["agent"]

    def find() -> list[int]:
        found = [
            each.pid
            for each in processes.every().values()
            if each.parent == agent and b"tflaunch-agent" in processes.command(each.pid)
        ]
        return found if len(found) == 1 else []  # a task that is just being started looks like it, too

    [pid] = until(find, "a coordinator")
    return int(pid)


def host_of(launcher: Launcher, task: str) -> str:
    """Where a task runs."""
    [log] = launcher.hosts.glob(f"tflaunch-*/*/*/logs/{task.replace('/', '-')}.log")
    return log.parent.parent.name


def test_it_ends_by_itself_when_its_workers_are_done(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out)
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    done = launcher.run("attach", run).ran()
    assert f"{run} succeeded: 3 tasks" in done.err
    assert "the work is done" in done.err
    [record] = launcher.records()  # which knows now, and looks no more
    assert json.loads((record / "outcome.json").read_text())["status"] == "succeeded"
    launcher.wait_until_nothing_is_left()


def test_the_first_failure_ends_it_and_is_told(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out)
    end(out, "worker-1", 7)
    launcher.wait_until_nothing_is_left()
    done = launcher.run("attach", run).ran(7)
    assert "worker/1 on" in done.err
    assert "exited with code 7" in done.err
    assert f"{run} failed" in done.err


def test_watching_starts_and_stops_nothing(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out)
    with launcher.start("attach", run) as one, launcher.start("attach", "--only=ps/0") as other:
        one.wait_for("worker-1 attempt 0 number 5")
        other.wait_for("ps-0 attempt 0 number 5")
        one.interrupt()
        assert one.end() == 130
        assert "not watching any more; the run goes on" in one.err
        assert "worker-" not in other.out
        assert len(launcher.leftovers(run)) > 0
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        assert other.end() == 0


def test_stop_ends_it(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out)
    launcher.run("stop", run).ran()
    launcher.wait_until_nothing_is_left()
    assert "stopped by SIGTERM or `tflaunch stop`" in launcher.run("attach", run).ran(143).err


def test_what_the_tasks_wrote_can_be_read_from_anywhere(launcher: Launcher, out: Path) -> None:
    hosts = launcher.local(3)
    run = detached(launcher, hosts, out)
    elsewhere = {"TFLAUNCH_STATE": str(launcher.directory / "elsewhere")}
    with launcher.start("logs", "-f", run, "worker/0", "-H", str(hosts), env=elsewhere) as following:
        following.wait_for("worker-0 attempt 0 number 9")
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        assert following.end() == 0
    launcher.wait_until_nothing_is_left()
    [path] = launcher.hosts.glob("tflaunch-*/*/*/logs/worker-0.log")
    assert following.out == path.read_text()  # of one task alone: byte for byte
    last = path.read_text().splitlines()[-3:]
    assert launcher.run("logs", run, "worker/0", "--tail=3").ran().out.splitlines() == last
    found = launcher.run("logs", run, "--grep", r"number 1$").ran().out.splitlines()
    assert sorted(line.split("│ ")[1] for line in found) == [
        f"{task} attempt 0 number 1" for task in ("ps-0", "worker-0", "worker-1")
    ]
    assert launcher.run("logs", run, "worker/0", "--since=1h").ran().out == path.read_text()
    unknown = launcher.run("logs", run, "worker/9").ran(2)
    assert "worker/9: the run has no such task; it has ps/0 worker/0-1" in unknown.err


def test_a_task_that_fails_starts_again(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out, "--restarts=2")
    host = host_of(launcher, "worker/1")
    end(out, "worker-1", 3)
    until(lambda: [e for e in events(launcher, host) if e.get("attempt") == 1], "the second attempt")
    launcher_of_logs = launcher.start("logs", run, "-f", "worker/1")
    launcher_of_logs.wait_for("worker-1 attempt 1 number 3")
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    done = launcher.run("attach", run).ran()
    assert "worker/1 on" in done.err
    assert "it starts again in 1 s (restart 1 of 2)" in done.err
    assert launcher_of_logs.end() == 0
    logs = sorted(path.name for path in launcher.hosts.glob("tflaunch-*/*/*/logs/worker-1*.log"))
    assert logs == ["worker-1.1.log", "worker-1.log"]
    assert launcher_of_logs.out == "".join(
        next(launcher.hosts.glob(f"tflaunch-*/*/*/logs/{name}")).read_text()
        for name in ("worker-1.log", "worker-1.1.log")
    )


def test_the_whole_cluster_starts_again(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out, "--restarts=1", "--restart=cluster", "--grace=0.2")
    end(out, "worker-1", 3)

    def second_attempts() -> bool:
        logs = launcher.hosts.glob("tflaunch-*/*/*/logs/*.1.log")
        return len([path for path in logs if "number 2" in path.read_text()]) == 3

    until(second_attempts, "all three to run again")
    end(out, "worker-0", 4)
    launcher.wait_until_nothing_is_left()
    done = launcher.run("attach", run).ran(4)
    assert "all tasks are stopped and start again" in done.err
    assert "the cluster was started again once (--restarts 1); no more" in done.err


def test_one_who_decides_and_dies_is_replaced(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out, "--restarts=2")
    host = host_of(launcher, "worker/0")
    first = coordinator(launcher, host)
    end(out, "worker-1", 3)
    until(lambda: list(launcher.hosts.glob("tflaunch-*/*/*/logs/worker-1.1.log")), "the second attempt")
    os.kill(first, signal.SIGKILL)
    until(lambda: not processes.read(first), "its end")
    assert coordinator(launcher, host) != first
    time.sleep(1.0)  # what it has learnt from the journals must start nothing a second time
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    done = launcher.run("attach", run).ran()
    assert f"{run} succeeded" in done.err
    assert "cannot be used" not in done.sentences  # what the first one had left
    assert not list(launcher.hosts.glob("tflaunch-*/*/*/logs/worker-1.2.log"))
    launcher.wait_until_nothing_is_left()


def test_one_who_takes_over_does_not_start_the_cluster_again(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out, "--restarts=1", "--restart=cluster", "--grace=0.2")
    host = host_of(launcher, "worker/0")
    end(out, "worker-1", 3)
    until(lambda: len(list(launcher.hosts.glob("tflaunch-*/*/*/logs/*.1.log"))) == 3, "second attempts")
    first = coordinator(launcher, host)
    os.kill(first, signal.SIGKILL)
    until(lambda: not processes.read(first), "its end")
    assert coordinator(launcher, host) != first
    time.sleep(1.0)  # in which it learns from the journals
    end(out, "worker-1", 4)
    launcher.wait_until_nothing_is_left()
    done = launcher.run("attach", run).ran(4)
    assert done.err.count("all tasks are stopped and start again") == 1
    assert "the cluster was started again once (--restarts 1); no more" in done.err
    assert not list(launcher.hosts.glob("tflaunch-*/*/*/logs/*.2.log"))


def test_one_who_decides_dies_after_a_restart_of_the_cluster(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out, "--restarts=2", "--restart=cluster", "--grace=0.2")
    host = host_of(launcher, "worker/0")
    end(out, "worker-1", 3)
    until(lambda: len(second_starts(launcher)) == 3, "all three to run again")
    first = coordinator(launcher, host)
    os.kill(first, signal.SIGKILL)
    until(lambda: not processes.read(first), "its end")
    assert coordinator(launcher, host) != first
    time.sleep(1.5)  # what has been carried out is not ordered a second time
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    done = launcher.run("attach", run).ran()
    assert f"{run} succeeded" in done.err
    assert not list(launcher.hosts.glob("tflaunch-*/*/*/logs/*.2.log"))
    launcher.wait_until_nothing_is_left()


def second_starts(launcher: Launcher) -> list[dict[str, object]]:
    """The second starts of all tasks, as far as they are noted."""
    lines = [
        json.loads(line)
        for path in launcher.hosts.glob("tflaunch-*/*/*/events.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [each for each in lines if each["type"] == "started" and each["attempt"] == 1]


# Its ps takes a second to end.
SLOW_END = """
    import os, pathlib, signal, sys, time
    task, out = os.environ["TFLAUNCH_TASK"].replace("/", "-"), pathlib.Path(os.environ["OUT"])
    def told(*_):
        (out / f"{task}.told").touch()
        time.sleep(1.0)
        sys.exit(143)
    signal.signal(signal.SIGTERM, told)
    (out / f"{task}.ready").touch()
    while not (out / f"{task}.stop").exists():
        time.sleep(0.02)
    sys.exit(int((out / f"{task}.stop").read_text()))
"""


@pytest.mark.parametrize("code", [0, 7])
def test_one_who_decides_dies_while_it_ends(launcher: Launcher, out: Path, code: int) -> None:
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--lease=20", "--ps-grace=0.2", "--restarts=0")
    done = launcher.run("run", "-d", launcher.local(3), launcher.script(SLOW_END), *words).ran()
    found = re.search(r"(\S+) goes on by itself: 3 tasks", done.err)
    assert found, done.err
    run = found[1]
    first = coordinator(launcher, host_of(launcher, "worker/0"))
    until((out / "ps-0.ready").exists, "the ps to know what to do at its end")
    end(out, "worker-1", code)
    if not code:
        end(out, "worker-0", code)
    until((out / "ps-0.told").exists, "the end to begin")
    os.kill(first, signal.SIGKILL)
    launcher.wait_until_nothing_is_left()
    done = launcher.run("attach", run).ran(code)
    assert f"{run} {'failed' if code else 'succeeded'}" in done.err


def kill_agent(launcher: Launcher, host: str) -> None:
    os.kill(launcher.agents(host)["agent"], signal.SIGKILL)


def kill_both(launcher: Launcher, host: str) -> None:
    agents = launcher.agents(host)
    for name in ("guard", "agent"):
        os.kill(agents[name], signal.SIGKILL)
    for each in launcher.leftovers():
        if each.env.get("TFLAUNCH_HOST") == host:
            each.kill()


@pytest.mark.parametrize("kill", [kill_agent, kill_both])
def test_without_the_host_that_decides_the_others_end_by_themselves(
    launcher: Launcher, out: Path, kill: Callable[[Launcher, str], None]
) -> None:
    run = detached(launcher, launcher.local(3), out)
    pid = coordinator(launcher, host_of(launcher, "worker/0"))
    kill(launcher, host_of(launcher, "worker/0"))
    until(lambda: not processes.read(pid) or kill is kill_both, "the coordinator's end")
    if processes.read(pid):
        os.kill(pid, signal.SIGKILL)
    launcher.wait_until_nothing_is_left()  # the lease is 6 s
    done = launcher.run("attach", run).ran(76)
    assert "is lost" in done.err
    assert "no coordinator has renewed the lease for " in done.sentences


def test_what_lives_on_without_anybody_who_looks_after_it_is_told_with_the_next_step(
    launcher: Launcher, out: Path
) -> None:
    """The coordinator, the agent and the guard of the host that decides are killed; its tasks live on."""
    run = detached(launcher, launcher.local(3), out)
    host = host_of(launcher, "worker/0")
    pids = [coordinator(launcher, host), *launcher.agents(host).values()]
    mine = [each for each in launcher.leftovers(run) if each.env.get("TFLAUNCH_HOST") == host]
    [task] = [each.pid for each in mine if each.env.get("TFLAUNCH_TASK") == "worker/0" and not each.is_agent]
    for pid in pids:  # the guard's end is not the agent's, nor the agent's the coordinator's
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    alive = re.compile(
        rf"{host}: the agent is dead, but these live on: (.*pid {task} python.*); to end them: tflaunch stop {run}"
    )
    done = launcher.run("attach", run).ran(76)  # once the others have ended their part
    assert alive.search(done.sentences), done.err
    assert alive.search(launcher.run("status", run).ran().out)
    assert processes.read(task), "nobody has ended it"
    assert f"{host}: ended what {run} had left" in launcher.run("ps").ran().sentences
    assert not processes.read(task)
    launcher.wait_until_nothing_is_left()


def test_a_host_that_dies_ends_the_run(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out)
    kill_agent(launcher, host_of(launcher, "worker/1"))
    launcher.wait_until_nothing_is_left()
    done = launcher.run("attach", run).ran(76)
    assert f"{host_of(launcher, 'worker/1')} was lost" in done.err


def test_over_ssh_from_another_machine(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    hosts = launcher.hostfile([network.add().name for _ in range(2)])
    run = detached(launcher, hosts, out)
    elsewhere = {"TFLAUNCH_STATE": str(launcher.directory / "elsewhere")}
    with launcher.start("attach", run, "-H", str(hosts), env=elsewhere) as watching:
        watching.wait_for("worker-1 attempt 0 number 5")
        for sshd in network.sshds:
            sshd.kill_sessions()
        watching.wait_for("is back after", 2)
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        assert watching.end() == 0
    shown = [line.split("│ ")[1] for line in watching.out.splitlines() if line.startswith("worker/1")]
    [path] = launcher.hosts.glob("tflaunch-*/*/*/logs/worker-1.log")
    assert shown == path.read_text().splitlines()  # every line once, though the connection was cut
    launcher.wait_until_nothing_is_left()


# ---- with a launcher, and without a host


def test_a_lost_host_is_replaced_by_a_spare(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    hosts = launcher.hostfile([network.add().name for _ in range(3)])
    spare = network.sshds[-1]
    words = (
        "--ps=0",
        "--workers=2",
        f"--env=OUT={out}",
        "--lease=6",
        f"--spares={spare.name}",
        "--restarts=1",
    )
    with (
        contextlib.ExitStack() as cleanup,
        launcher.start("run", hosts, launcher.script(COUNT), *words) as running,
    ):
        running.wait_for("worker-1 attempt 0 number 5")
        watching = cleanup.enter_context(launcher.start("attach", running.run_id))
        watching.wait_for("worker-1 attempt 0 number 5")
        lost = host_of(launcher, "worker/1")
        assert lost != spare.name
        for process in launcher.leftovers(running.run_id):  # the whole host goes
            if process.env.get("TFLAUNCH_HOST") == lost or (process.is_agent and lost in process.words):
                process.kill()
        running.wait_for(f"{lost} is lost; planning anew")
        running.wait_for("worker-1 attempt 1 number 5")
        watching.wait_for("worker-1 attempt 1 number 5")
        assert (launcher.hosts / f"tflaunch-{os.getuid()}" / running.run_id / spare.name).exists()
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        done = running.done().ran()
        assert watching.end() == 0
    shown = [line.split("│ ")[1] for line in done.out.splitlines() if line.startswith("worker/0")]
    logs = [*launcher.hosts.glob("tflaunch-*/*/*/logs/worker-0.log")]
    logs += launcher.hosts.glob("tflaunch-*/*/*/logs/worker-0.1.log")
    assert shown == [line for path in logs for line in path.read_text().splitlines()]
    watched = [line.split("│ ")[1] for line in watching.out.splitlines() if line.startswith("worker/0")]
    assert watched == shown
    launcher.wait_until_nothing_is_left()


def test_logs_of_a_host_that_falls_silent_are_not_waited_for_for_ever(
    network: SshNetwork, launcher: Launcher, out: Path
) -> None:
    flood = (
        "import sys, time\nfor _ in range(2_000_000): sys.stdout.write('x' * 99 + chr(10))\ntime.sleep(600)\n"
    )
    hosts = launcher.hostfile([network.add().name])
    trainer = launcher.script(flood)
    done = launcher.run("run", "-d", hosts, trainer, "--ps=0", "--workers=1", "--lease=6").ran()
    found = re.search(r"(\S+) goes on by itself", done.err)
    assert found, done.err
    [log] = launcher.hosts.glob("tflaunch-*/*/*/logs/worker-0.log")
    until(lambda: log.stat().st_size >= 200_000_000, "much to read")
    with launcher.start("logs", found[1]) as reading:
        until(lambda: reading.stdout.stat().st_size > 0, "the first lines")
        network.sshds[0].freeze()
        done = reading.done().ran(69)
        network.sshds[0].thaw()
    assert "the rest of its logs did not come" in done.sentences
    launcher.run("stop", found[1]).ran()
