"""Runs that go on and are slow: which task or host holds them up, and why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.diagnosis import causes
from tests.diagnosis.causes import Cause
from tests.diagnosis.trainers import MWMS_RUN, PS_RUN, asynchronous, mirrored, synchronous

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.diagnosis.play import Play
    from tests.support.bed.machines import BedHost

TRAINS = "step 40 of worker 1"
THREE_WORKERS = ("--ps=1", "--workers=3")
W1 = r"worker/1 on host2"
SLOWER = r"worker/1[^\n]*x slower than"
HOLDS_UP = r"worker/1[^\n]*holds up the others"
ANY_WORKER = r"worker/\d on host\d (has been [\d.]+x slower|holds up)"
WRONG_WORKER = r"worker/[02] on host\d (has been [\d.]+x slower|holds up)"
WRONG = WRONG_WORKER + r"|ps/0 on host\d holds up"
COMPUTES = """
until = time.process_time() + 0.025
while time.process_time() < until:
    pass
"""
# A part of a file, past the page cache.
OPENS_FILE = """
global file, part
import mmap
with open("data.bin", "wb") as data:
    data.write(os.urandom(1 << 22))
    os.fsync(data.fileno())
file, part = os.open("data.bin", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 17)
"""
READS_FILE = "os.preadv(file, [part], (step % 32) << 17)"
# Pages of a large array, here and there.
READS_MEMORY = """
global many
if step % 50 == 0:
    many = np.zeros(150 << 20, np.uint8)
many[np.random.randint(0, 150 << 8, 4000) << 12] += 1
"""
BURNER = "while True: pass"


def _pin(pid: int, core: int) -> None:
    """All threads of a process run on that core from now on."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def _crowd(play: Play) -> None:
    """Fifteen programs beside worker/1 compute on the core that it has."""
    for task, core in (("worker/1", 1), ("worker/0", 0), ("worker/2", 0), ("ps/0", 0)):
        _pin(play.pid(task), core)
    words = ("taskset", "-c", "1", sys.executable, "-c", BURNER)
    # Each in a session of its own, as the kernel shares a core among sessions first.
    host = play.host("worker/1")
    burners = [subprocess.Popen(host.inside(*words), start_new_session=True) for _ in range(15)]

    def end() -> None:
        for burner in burners:
            burner.kill()
            burner.wait()

    play.at_the_end(end)


def _throttle(play: Play) -> None:
    """As cpulimit does: stopped for three quarters of the time."""
    pid, stop = play.pid("worker/1"), threading.Event()

    def throttle() -> None:
        try:
            while not stop.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.1)
        except ProcessLookupError:
            pass

    thread = threading.Thread(target=throttle)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    play.at_the_end(end)


def _quota(play: Play) -> None:
    play.limit_cpu("ps/0", 0.05)


def _quota_of_worker(play: Play) -> None:
    play.limit_cpu("worker/1", 0.05)


def _shape(host: BedHost, rate: str) -> None:
    words = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
    host.do("tc", "qdisc", "add", "dev", "eth0", *words)


def _narrow_ps(play: Play) -> None:
    _shape(play.host("ps/0"), "20mbit")


def _narrow_worker(play: Play) -> None:
    _shape(play.host("worker/1"), "4mbit")


def _lossy(play: Play) -> None:
    play.bed.delay(play.host("worker/1"), 1, loss_percent=10)


def _slow_disk(play: Play) -> None:
    play.limit_disk("worker/1", 200_000)


def _slow_file(play: Play) -> None:
    for index in range(3):
        play.limit_disk(f"worker/{index}", 200_000)


def _swap(play: Play) -> None:
    play.swap(1 << 29)
    play.limit_memory_of("worker/1", 50 << 20)


def _hot(play: Play) -> None:
    """From the beginning: heat holds the clocks of host2's GPU."""
    hot = "reasons=0x20 util=97 power=310000 limit=700000"
    play.gpus(f'gpu name="NVIDIA H100" uuid=GPU-{{host}} mem=81559 {hot}')


def _slow(name: str, story: str, trainer: str, command: tuple[str, ...], **more: object) -> Cause:
    facts = {"proof": TRAINS, "place": W1, "misleading": WRONG, **more}
    return Cause(name, causes.SLOW, story, trainer, command, **facts)  # type: ignore[arg-type]


def _of_three(name: str, story: str, trainer: str, *, misleading: str = WRONG, **more: object) -> Cause:
    """One of three workers, each on a host of its own, beside a ps; `fault` comes once they train."""
    if "fault" in more:
        more["after"] = TRAINS
    return _slow(name, story, trainer, THREE_WORKERS, hosts=4, misleading=misleading, **more)


def _of_ps(name: str, story: str, *, size: int, fault: Callable[[Play], None], cause: str) -> Cause:
    """The ps of two workers, on the third host, that holds them up."""
    return _slow(
        name,
        story,
        asynchronous(size=size),
        PS_RUN,
        after=TRAINS,
        fault=fault,
        cause=rf"holds up the workers[^\n]*{cause}",
        place=r"ps/0 on host3",
        fix=r"more ps",
        misleading=ANY_WORKER,
    )


SLOW = (
    _of_three(
        "slow-crowded-async",
        "Fifteen programs of another user compute on the core of an asynchronous worker",
        asynchronous(size=20000, read=COMPUTES),
        fault=_crowd,
        cause=SLOWER,
        fix=r"wait[^\n]*for a processor[^\n]*another host",
    ),
    _of_three(
        "slow-quota-async",
        "The quota of a container gives an asynchronous worker 5 % of a core",
        asynchronous(size=20000, read=COMPUTES),
        fault=_quota_of_worker,
        cause=SLOWER,
        fix=r"quota[^\n]*raise its limit",
    ),
    _of_three(
        "slow-input-async",
        "The input of an asynchronous worker takes 0.4 s for each batch",
        asynchronous(size=20000, read="if index == 1:\n    time.sleep(0.4)"),
        proof="step 20 of worker 1",
        cause=SLOWER,
        fix=r"input",
    ),
    _of_three(
        "slow-disk-async",
        "The disk of an asynchronous worker reads 200 kB/s",
        asynchronous(size=20000, open=OPENS_FILE, read=READS_FILE),
        fault=_slow_disk,
        cause=SLOWER,
        fix=r"waits for a disk[^\n]*faster",
    ),
    _slow(
        "slow-file-mirrored",
        "Each worker of an all-reduce reads its input from one slow file",
        mirrored(size=20000, open=OPENS_FILE, read=READS_FILE),
        MWMS_RUN,
        after="step 20 of worker 1",
        fault=_slow_file,
        cause=r"wait for their input[^\n]*in read\(\)",
        place=r"worker/0, worker/1, worker/2|worker/\d, worker/\d and",
        fix=r"waits for a disk[^\n]*prefetch",
        misleading=ANY_WORKER,
    ),
    _of_three(
        "slow-swap",
        "A worker needs more memory than its host has, which swaps",
        asynchronous(size=20000, read=READS_MEMORY),
        fault=_swap,
        cause=r"to and from its swap",
        place=W1,
        fix=r"less memory",
        misleading=WRONG_WORKER,
    ),
    _of_three(
        "slow-link-async",
        "The link of an asynchronous worker is down to 4 Mbit/s",
        asynchronous(size=50000),
        fault=_narrow_worker,
        cause=SLOWER,
        fix=r"network is slow",
    ),
    _of_three(
        "slow-work-sync",
        "A worker of SyncReplicasOptimizer computes 0.4 s longer for each step",
        synchronous(read="if index == 1:\n    time.sleep(0.4)"),
        proof="step 20 of worker 1",
        cause=HOLDS_UP,
    ),
    _slow(
        "slow-work-mirrored",
        "A worker of an all-reduce takes 0.3 s longer for each step",
        mirrored(size=20000, read="if index == 1:\n    time.sleep(0.3)"),
        MWMS_RUN,
        proof="step 20 of worker 1",
        cause=HOLDS_UP,
    ),
    _slow(
        "slow-throttled-mirrored",
        "A worker of an all-reduce is stopped and continued all the time, as cpulimit does it",
        mirrored(size=20000),
        MWMS_RUN,
        after="step 20 of worker 1",
        fault=_throttle,
        cause=HOLDS_UP,
    ),
    _of_ps(
        "slow-ps-quota",
        "The ps has 5 % of a core",
        size=20000,
        fault=_quota,
        cause="processors",
    ),
    _of_ps(
        "slow-ps-network",
        "The ps is behind a link of 20 Mbit/s",
        size=200_000,
        fault=_narrow_ps,
        cause="network",
    ),
    _of_three(
        "slow-lossy",
        "The cable of a worker loses 10 % of all packets",
        asynchronous(size=20000),
        fault=_lossy,
        cause=r"% of the packets[^\n]*lost",
        place=r"worker/1|host2",
        fix="ethtool",
        misleading=WRONG_WORKER,
    ),
    _slow(
        "slow-hot-gpu",
        "Heat holds down the clocks of the GPUs (NVML is simulated)",
        asynchronous(size=20000),
        PS_RUN,
        prepare=_hot,
        cause=r"too hot",
        place=r"worker/\d on host[12]",
        fix="nvidia-smi",
        misleading="",
    ),
)
