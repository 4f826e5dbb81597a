"""`tflaunch stacks`: where the tasks of a run are, while they go on; with real TensorFlow, and in containers."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.support.launcher import Launcher
from tests.support.patience import until
from tflaunch.agent.host import processes as agent_processes
from tflaunch.agent.tasks.live_stacks import Dumps

# worker/1 stands in batches(), the others wait for it.
ODD_ONE_OUT = """
    import os, threading, time
    def batches():
        if os.environ["TFLAUNCH_TASK"] == "worker/1":
            time.sleep(600)
    def train():
        batches()
        threading.Event().wait()
    print("ready", flush=True)
    train()
"""

EXAMPLE = Path(__file__).parents[2] / "examples" / "multi_worker_mirrored.py"


def test_the_odd_one_out_is_seen_from_anywhere(launcher: Launcher) -> None:
    script = launcher.script(ODD_ONE_OUT)
    hosts = launcher.local(2)
    launcher.run("run", hosts, script, "--ps=0", "--workers=3", "--detach").ran()
    until(lambda: launcher.run("logs").out.count("ready") == 3, "all workers to be there")

    shown = launcher.run("stacks").ran().out.splitlines()
    assert "worker/0 on local1, worker/2 on local1 are at the same place" in shown, shown
    assert "  → trainer.py:8 in train()" in shown
    at = shown.index("worker/1 on local2")
    assert shown[at + 2 : at + 5] == [
        "    trainer.py:10 in <module>",
        "    trainer.py:7 in train()",
        "  → trainer.py:5 in batches()",
    ]
    assert any("in the kernel:" in line and "nanosleep" in line for line in shown[at:])

    # Another machine, which has no record of the run; one task alone; JSON.
    stranger = {"TFLAUNCH_STATE": str(launcher.directory / "elsewhere")}
    asked = launcher.run("stacks", "worker/1", "--hosts", hosts, "--json", env=stranger).ran()
    (task,) = json.loads(asked.out)["tasks"]
    assert (task["task"], task["host"]) == ("worker/1", "local2")
    (stack,) = task["processes"][0]["stacks"]
    assert [frame["function"] for frame in stack["frames"]] == ["<module>", "train", "batches"]
    assert stack["frames"][-1] == {"file": "trainer.py", "line": 5, "function": "batches", "own": True}

    assert "has no task worker/7" in launcher.run("stacks", "worker/7").ran(2).sentences
    assert launcher.run("logs").out.count("\n") == 3, "nothing of it is in a log"
    launcher.run("stop").ran()
    gone = launcher.run("stacks", "--hosts", hosts).ran(2).sentences
    assert f"no run is alive on local[1-2] ({hosts})" in gone
    assert "tflaunch ps -a lists those that have ended, too" in gone


def test_a_run_without_stacks(launcher: Launcher) -> None:
    script = launcher.script(ODD_ONE_OUT)
    launcher.run("run", launcher.local(1), script, "--ps=0", "--workers=1", "--detach", "--no-stacks").ran()
    until(lambda: "ready" in launcher.run("logs").out, "the worker to be there")
    out = launcher.run("stacks").ran().out
    assert "no stacks: the run was started with --no-stacks" in out
    assert "sleeps in " in out, "what the kernel tells is shown"
    launcher.run("stop").ran()


def test_eighteen_dumps_do_not_disturb_a_training(launcher: Launcher) -> None:
    """Both workers go on with the same steps."""
    words = ("--ps=0", "--workers=2", "--no-flags", "--grace=2")
    more = ("--", "--steps=1000000", "--checkpoint_steps=20")
    with launcher.start("run", launcher.local(2), EXAMPLE, *words, *more) as running:
        until(lambda: "step 20 " in running.out, "the training", 90)
        marked = agent_processes.marked(agent_processes.every().values(), running.run_id)
        trainers = {(str(each.pid), 0): [each] for each in marked if each.name.startswith("python")}
        assert len(trainers) == 2
        dumps, came = Dumps(), []
        for number in range(18):
            done: list[bool] = []
            began = time.monotonic()
            dumps.ask(trainers, str, False, 1000.0 * number, lambda: done.append(True))  # noqa: B023
            until(lambda: dumps.tick(1000.0 * number + time.monotonic() - began) or done, "a dump")  # noqa: B023
            came += [dumps.of(key, tree[0], 1000.0 * number)[0] for key, tree in trainers.items()]
        seen = running.out.count("  loss of the batch ")
        until(lambda: running.out.count("  loss of the batch ") >= seen + 4, "the training to go on")
        running.interrupt()
        assert running.end() == 130
    whys = [each.why_none for each in came if not each.found]
    assert not whys
    assert all("<module>" in str(each.found[0]["frames"][-1]) for each in came if each.found)
    assert "most recent call first" not in running.out, "nothing of it is in a log"
