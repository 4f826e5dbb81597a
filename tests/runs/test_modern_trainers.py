"""Programs that know nothing of cluster flags, as they come: they run at once, or it is said what to type."""

from __future__ import annotations

from tests.support.launcher import Launcher

# As a Keras script is told: by TF_CONFIG.  `worker_strategy.py` beside it says that there is no ps.
TRAINER = """
    import argparse, json, os
    from worker_strategy import strategy
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    config = json.loads(os.environ["TF_CONFIG"])
    print("task", config["task"]["index"], "of", sorted(config["cluster"]), "epochs", epochs)
"""
STRATEGY = """
    def strategy():
        import tensorflow as tf
        return tf.distribute.MultiWorkerMirroredStrategy()
"""
OF_ARGPARSE = """
    import argparse
    argparse.ArgumentParser().parse_args()
"""


def test_a_trainer_that_knows_tf_config_alone_runs_at_once(launcher: Launcher) -> None:
    launcher.script(STRATEGY, "worker_strategy.py")
    trainer = launcher.script(TRAINER)
    done = launcher.run("run", launcher.local(), trainer, "--workers=2", "--", "--epochs", "5").ran()
    assert "task 1 of ['worker'] epochs 5" in done.out
    assert (
        "  the program gets no cluster flags: trainer.py:7 reads TF_CONFIG, and none is in its text"
        in done.err
    )
    assert "  no ps is started: worker_strategy.py:4 uses MultiWorkerMirroredStrategy" in done.err

    planned = (
        launcher.run("run", launcher.local(), trainer, "--workers=1", "--dry-run", "--json").ran().events
    )
    plan = next(event for event in planned if event["event"] == "plan")
    assert [note.partition(":")[0] for note in plan["choices"]] == [
        "Python on local[1-4]",
        "the program gets no cluster flags",
        "no ps is started",
    ]
    forced = ("--workers=1", "--ps=1", "--flags", "--dry-run", "--json")
    planned = launcher.run("run", launcher.local(), trainer, *forced).ran().events
    plan = next(event for event in planned if event["event"] == "plan")
    assert [task["task"] for task in plan["tasks"]] == ["ps/0", "worker/0"]
    assert "--task_index=0" in plan["tasks"][0]["argv"]
    assert [note.partition(":")[0] for note in plan["choices"]] == ["Python on local[1-4]"]


def test_code_that_is_on_the_hosts_is_not_read_here(launcher: Launcher) -> None:
    trainer = launcher.script(TRAINER)
    words = ("--workers=1", "--no-sync", "--dry-run", "--json")
    [plan] = [
        event
        for event in launcher.run("run", launcher.local(), trainer, *words).ran().events
        if event["event"] == "plan"
    ]
    assert "--task_index=0" in plan["tasks"][0]["argv"]
    assert [note.partition(":")[0] for note in plan["choices"]] == ["Python on local[1-4]"]


def test_a_trainer_that_takes_no_flags_is_told_apart_by_its_last_words(launcher: Launcher) -> None:
    trainer = launcher.script(OF_ARGPARSE)
    run = ("run", launcher.local(), trainer, "--workers=1", "--grace=2")
    report = launcher.run(*run, "--json").ran(2).events[-1]
    assert report["hint"].startswith("the program does not take the cluster flags: --no-flags")
    shown = launcher.run("status", report["run_id"]).ran()
    assert "→ the program does not take the cluster flags: --no-flags leaves them out" in shown.out
    launcher.run(*run, "--no-flags", "--ps=0").ran()
    job = launcher.directory / "job.yaml"
    job.write_text(f"program: {trainer}\nflags: false\nroles: {{ps: 0, worker: 1}}\n")
    assert "task_index" not in launcher.run("run", launcher.local(), job, "--dry-run").ran().out
    assert "--task_index=0" in launcher.run("run", launcher.local(), job, "--dry-run", "--flags").ran().out


def test_what_to_type_for_a_module_above_the_program_works(launcher: Launcher) -> None:
    launcher.script("", "lib/__init__.py")
    trainer = launcher.script("import lib\n", "train/trainer.py")
    run = ("run", launcher.local(), trainer, "--workers=1", "--ps=0")
    done = launcher.run(*run, cwd=trainer.parent)
    assert (
        f"→ lib lies in {launcher.code}, which is not shipped: --code-dir .. --env PYTHONPATH=." in done.err
    )
    launcher.run(*run, "--code-dir", "..", "--env", "PYTHONPATH=.", cwd=trainer.parent).ran()

    launcher.script("lib.py\n", "train/.gitignore")
    launcher.script("", "train/lib.py")
    done = launcher.run(*run, cwd=trainer.parent)
    assert "did not come to the hosts: --ship lib.py ships it" in done.err
    launcher.run(*run, "--ship", "lib.py", cwd=trainer.parent).ran()


def test_what_the_python_here_cannot_read_is_told_before_the_start(launcher: Launcher) -> None:
    trainer = launcher.script("import os\nprint 'hello'\n")
    done = launcher.run("run", launcher.local(), trainer, "--workers=1", "--ps=0")
    warning = done.err.index("! trainer.py:2: Python 3.")
    assert warning < done.err.index("connected")
