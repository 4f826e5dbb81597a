"""What is said of tasks that do not use their GPUs, through `tflaunch run`: the NVML library alone is simulated."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.frameworks import WITHOUT_KERAS
from tests.support.lab import Gpus, uuid
from tests.support.launcher import Running
from tests.support.patience import until

SOON = [
    f"--threshold={each}"
    for each in (
        "look_s=0.5",
        "gpu_look_s=1",
        "no_gpu_s=2",
        "no_gpu_alone_s=3",
        "gpu_wait_s=3",
        "nan_looks=2",
    )
]
# TensorFlow for CPUs only, which says so as soon as it is imported.
CPU_ONLY = """
    import os, time
    import tensorflow
    print("imported", flush=True)
    time.sleep(600)
"""
# worker/0 uses its GPU, and has a data loader that may see none.  Once that has said so, worker/1 says it of itself.
WITH_LOADER = """
    import os, pathlib, subprocess, sys, time
    out = pathlib.Path(os.environ["OUT"])
    if os.environ["TFLAUNCH_TASK"] == "worker/0":
        (out / "trainer.pid").write_text(str(os.getpid()))
        print("begins", flush=True)
        loader = "import time, tensorflow; print('loads', flush=True); open('%s/loads', 'w'); time.sleep(600)" % out
        subprocess.Popen([sys.executable, "-c", loader], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    else:
        while not (out / "loads").exists():
            time.sleep(0.05)
        import tensorflow
    time.sleep(600)
"""
# Waits as NCCL does, and moves no bytes.
WAITS = """
    import os, pathlib, time
    out = pathlib.Path(os.environ["OUT"])
    print("has", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    def batches():
        while not (out / "go").exists():
            time.sleep(0.2)
    batches()
"""
DIVERGES = """
    import time
    for step in range(10_000):
        print("step", step, "loss:", "nan" if step > 3 else 0.5, flush=True)
        time.sleep(0.2)
"""
USE = "mem=81920 used=60000 limit=700000"


def words(gpus: Gpus, script: str, workers: int, *more: str) -> tuple[str | Path, ...]:
    trainer = gpus.launcher.script(script)
    return (
        "run",
        gpus.hostfile,
        trainer,
        "--ps=0",
        f"--workers={workers}",
        f"--env=OUT={gpus.out}",
        WITHOUT_KERAS,
        *SOON,
        *more,
    )


def status(gpus: Gpus, running: Running) -> tuple[str, dict[str, object]]:
    """The page, and what the JSON document says of what holds."""
    page = gpus.launcher.run("status", running.run_id).ran().out
    document = json.loads(gpus.launcher.run("status", "--json", running.run_id).ran().out)
    return page, document["holds"] or {}


def test_require_gpu_ends_a_run_whose_tensorflow_sees_none(gpus: Gpus) -> None:
    gpus.add()
    done = gpus.launcher.run(*words(gpus, CPU_ONLY, 1, "--require-gpu")).ran(65)
    assert (
        "worker/0 on host1 uses no GPU, although it was given one: TensorFlow finds no CUDA driver"
        in done.err
    )
    assert (
        "in a container, give it the GPUs; on the host, nvidia-smi must work (--require-gpu)"
        in done.sentences
    )
    assert "nothing is left running" in done.sentences
    record = json.loads((gpus.launcher.records()[0] / "outcome.json").read_text())
    assert record["first_failure"]["exit_code"] == 65
    gpus.launcher.wait_until_nothing_is_left()


def test_require_gpu_where_there_are_none(gpus: Gpus) -> None:
    gpus.add(0)
    done = gpus.launcher.run(*words(gpus, CPU_ONLY, 1, "--require-gpu")).ran(65)
    assert "--require-gpu: no task gets a GPU: host1: 0 GPUs" in done.sentences
    assert "name hosts that have GPUs, or leave --require-gpu out" in done.sentences


def test_a_run_whose_gpus_do_nothing_ends_if_the_user_wants_that(gpus: Gpus) -> None:
    """And the user's own command hears of it."""
    gpus.add()
    heard = gpus.out / "heard"
    told = f'echo "$TFLAUNCH_STATUS $TFLAUNCH_EXIT_CODE $TFLAUNCH_FAILURE" > {heard}'
    done = gpus.launcher.run(*words(gpus, WAITS, 1, "--stop-idle=3", "--on-end", told)).ran(124)
    assert "no GPU of the run has done anything for" in done.sentences
    status, code, failure = heard.read_text().strip().split(" ", 2)
    assert (status, code) == ("failed", "124")
    assert failure.startswith("no GPU of the run has done anything for")
    assert failure.endswith("(--stop-idle)")


def test_a_loader_without_gpu_is_no_failure(gpus: Gpus) -> None:
    gpus.add()
    gpus.add()
    with gpus.launcher.start(*words(gpus, WITH_LOADER, 2, "--grace=1")) as running:
        running.wait_for("begins")
        pid = (gpus.out / "trainer.pid").read_text()
        gpus.fleets[0].change(
            f"gpu uuid={uuid(1)} {USE} util=90 power=500000", f"proc gpu=0 pid={pid} mem=59000"
        )
        running.wait_for("loads")
        running.wait_for("worker/1 on host2 uses no GPU")
        running.interrupt()
        done = running.done().ran(130)
    assert "Could not find cuda drivers" in done.out
    assert "worker/0 on host1 uses no GPU" not in done.sentences


def test_the_gpu_that_all_wait_for_and_what_status_shows(gpus: Gpus) -> None:
    for _ in range(2):
        gpus.add()
    with gpus.launcher.start(*words(gpus, WAITS, 2)) as running:
        running.wait_for("has GPU", 2)
        assert "its GPU has been idle" not in status(gpus, running)[0]
        gpus.fleets[0].change(f"gpu uuid={uuid(1)} {USE} util=100 power=91000")
        gpus.fleets[1].change(f"gpu uuid={uuid(2)} {USE} util=0 power=70000")
        running.wait_for("worker/1 on host2: its GPU has been idle for ")
        running.wait_for("while worker/0's is busy at 91 W of 700 W: it waits for it in a collective")
        until(lambda: "its GPU has been idle" in status(gpus, running)[0], "status to show it")
        page, held = status(gpus, running)
        assert "! worker/1 on host2: its GPU has been idle for " in page
        assert "this has been so for " in page
        assert isinstance(held["sentences"], list)
        files = [*gpus.launcher.run_directories()]
        assert {(path / "holds.json").stat().st_mode & 0o777 for path in files} == {0o600}
        for number in (1, 2):
            gpus.fleets[number - 1].change(f"gpu uuid={uuid(number)} {USE} util=97 power=600000")
        running.wait_for("worker/1 goes on")
        until(lambda: "its GPU has been idle" not in status(gpus, running)[0], "status to show nothing")
        (gpus.out / "go").touch()
        running.done().ran(0)


def test_mig_instances_are_not_watched_and_status_says_so(gpus: Gpus) -> None:
    for _ in range(2):
        gpus.add()
    with gpus.launcher.start(*words(gpus, WAITS, 2)) as running:
        running.wait_for("has GPU", 2)
        gpus.fleets[0].change(f"gpu uuid={uuid(1)} mem=16384 error=15")
        until(
            lambda: "tflaunch cannot see whether GPUs wait for one another" in status(gpus, running)[0],
            "what is not watched",
        )
        (gpus.out / "go").touch()
        running.end()


def test_a_detached_run_ends_by_the_same_rules(gpus: Gpus) -> None:
    gpus.add()
    run = gpus.launcher.run(*words(gpus, DIVERGES, 1, "--stop-on-nan", "--detach")).ran(0)
    name = gpus.launcher.records()[0].name
    assert name in run.sentences

    def ended() -> bool:
        return bool(json.loads(gpus.launcher.run("status", "--json", name).ran().out)["outcome"])

    until(ended, "the end of the run")
    document = json.loads(gpus.launcher.run("status", "--json", name).ran().out)
    assert document["outcome"]["exit_code"] == 1
    assert document["outcome"]["first_failure"]["tasks"] == ["worker/0"]
    assert "the loss is NaN" in gpus.launcher.run("status", name).ran().out
    assert "(--stop-on-nan)" in gpus.launcher.run("attach", name).ran(1).sentences


def test_stop_on_nan(gpus: Gpus) -> None:
    gpus.add()
    done = gpus.launcher.run(*words(gpus, DIVERGES, 1, "--stop-on-nan")).ran(1)
    assert " that tell it, 'step " in done.sentences
    assert "worker/0 on host1: the loss is NaN in the last " in done.sentences
