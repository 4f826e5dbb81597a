"""After the end of a run: whether NVML shows its GPUs free, and what is said when it does not."""

from __future__ import annotations

import fcntl
import itertools
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import descriptors
from tests.support.lab import Gpus, uuid
from tests.support.launcher import Running
from tests.support.patience import until
from tflaunch.agent.host import processes

# A parent waits for its vfork child in the kernel: state D, as a process has that a driver holds.
STUCK = "#include <unistd.h>\nint main(void) { if (vfork() == 0) { sleep(600); _exit(0); } return 0; }\n"


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[int]:
    """The pid of a process that is no run's and waits in the kernel."""
    program = tmp_path / "notebook"
    subprocess.run(["gcc", "-w", "-x", "c", "-o", program, "-"], input=STUCK, text=True, check=True)
    with subprocess.Popen(
        ["notebook"], executable=program, start_new_session=True, env={"HOME": "/"}
    ) as process:
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def started(gpus: Gpus, workers: int, *more: str, name: str = "run") -> Running:
    running = gpus.launcher.start(*gpus.words(name, workers, *more))
    running.wait_for("has GPU", workers)
    return running


def task_pid(gpus: Gpus, worker: int = 0) -> int:
    return int(until((gpus.out / f"worker-{worker}.pid").read_text, "the pid of a task"))


def used(host: int, *more: str, mebibytes: int = 4000) -> tuple[str, ...]:
    """The fleet of that host when its GPU is in use."""
    return (f"gpu uuid={uuid(host)} mem=16384 used={mebibytes}", *more)


def parent(pid: int) -> int:
    process = processes.read(pid)
    assert process is not None
    return process.parent


def leave_one_descriptor(pid: int) -> None:
    """That process can open one file more, and no two at a time."""
    free = (number for number in itertools.count() if number not in descriptors(pid))
    next(free)
    limit = (next(free), resource.prlimit(pid, resource.RLIMIT_NOFILE)[1])
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def test_what_keeps_a_gpu_is_named(gpus: Gpus, stranger: int) -> None:
    for _ in range(6):
        gpus.add()
    with started(gpus, 6) as running:
        leave_one_descriptor(parent(task_pid(gpus, 5)))
        gpus.fleets[0].change(*used(1, f"proc gpu=0 pid={task_pid(gpus, 0)} mem=4000"))
        gpus.fleets[1].change(*used(2, f"proc gpu=0 pid={stranger} mem=4000"))
        gpus.fleets[2].change(*used(3))
        gpus.fleets[3].change(*used(4), "delay_ms 60000")
        gpus.fleets[4].change(f"gpu uuid={uuid(5)} mem=16384 error=15")
        gpus.let_end("run")
        done = running.done().ran(76)
    own = f"✗ host1: GPU 0 is still in use by this run's pid {task_pid(gpus)} (it has ended, but the driver"
    assert own in done.sentences
    assert f"! host2: GPU 0 is still in use by pid {stranger} of " in done.sentences
    assert "notebook (D: waits in the kernel, cannot be killed)" in done.sentences
    assert "! host3: GPU 0 has 3.9 GiB in use, and no process is visible on it" in done.sentences
    assert (
        "! host4: GPU 0 could not be checked: nvmlDeviceGetHandleByIndex did not return within"
        in done.sentences
    )
    assert "! host5: GPU 0 could not be checked: NVML: GPU is lost" in done.sentences
    assert "host6: GPU 0" not in done.sentences  # the process that asked before needs no more descriptors
    assert "→ look again: tflaunch gpus" in done.sentences
    assert "nothing is left running" not in done.sentences
    # The lease lasted for as long as the check, and no longer; a sick driver does not keep it.
    gpus.launcher.wait_until_nothing_is_left()


def test_a_gpu_that_gets_free_in_time_is_no_news(gpus: Gpus) -> None:
    gpus.add()
    with started(gpus, 1) as running:
        gpus.fleets[0].change(*used(1, f"proc gpu=0 pid={task_pid(gpus)} mem=4000"))
        gpus.let_end("run")
        running.wait_for("finished")
        until(lambda: not os.path.exists(f"/proc/{task_pid(gpus)}"), "the task's end")  # noqa: PTH110
        # Held until its memory is free; another run would ask for longer than the agent waits, on a busy machine.
        with (gpus.leases / uuid(1)).open() as lease, pytest.raises(BlockingIOError):
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gpus.fleets[0].change(f"gpu uuid={uuid(1)} mem=16384")
        done = running.done().ran()
    assert "GPU 0" not in done.sentences
    assert "nothing is left running" in done.sentences


def test_on_a_shared_gpu_only_the_run_itself_is_told(gpus: Gpus, stranger: int) -> None:
    gpus.add()
    theirs = f"proc gpu=0 pid={stranger} mem=9000"
    gpus.fleets[0].change(*used(1, theirs, mebibytes=9000))
    with started(gpus, 1, "--share-gpus", "--json") as running:
        later = f"proc gpu=0 pid={os.getpid()} mem=1000"
        gpus.fleets[0].change(*used(1, theirs, later, mebibytes=13000))
        gpus.let_end("run")
        done = running.done().ran()
    assert done.events[-1]["gpus"] == {}
    with started(gpus, 1, "--share-gpus", "--json", name="again") as running:
        mine = f"proc gpu=0 pid={task_pid(gpus)} mem=1000"
        gpus.fleets[0].change(*used(1, theirs, mine, mebibytes=10000))
        gpus.let_end("again")
        done = running.done().ran(76)
    ((told,),) = done.events[-1]["gpus"].values()
    assert told["own"]
    assert str(stranger) not in told["text"]


def test_stop_tells_it_too(gpus: Gpus) -> None:
    gpus.add()
    with started(gpus, 1) as running:
        run = running.run_id
        gpus.fleets[0].change(*used(1, f"proc gpu=0 pid={task_pid(gpus)} mem=4000"))
        running.signal(signal.SIGKILL)
        stopped = gpus.launcher.run("stop", run).ran(76)
    assert f"{run} has left something behind" in stopped.sentences
    assert f"✗ host1: GPU 0 is still in use by this run's pid {task_pid(gpus)}" in stopped.sentences
