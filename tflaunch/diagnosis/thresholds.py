"""From when on the rules speak: every number that they compare with, in one table; users set them by --threshold.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Thresholds:
    """The numbers of all rules; a unit ends each name (`_s`: seconds)."""

    look_s: float = 5.0  # how often the agents are asked to look at their tasks
    wait_s: float = 60.0  # a task that waits for a peer so long is told
    stopped_s: float = 10.0  # ... and one that is stopped (state T)
    dial_again_s: float = 60.0  # how often a connection that fails is tried again
    idle_cores: float = 0.03  # a task that uses less of a core does nothing
    nan_looks: float = 3.0  # a loss that is NaN in so many looks, and in none a number, stays so ...
    nan_lines: float = 20.0  # ... or in so many lines
    no_gpu_s: float = 10.0  # after a task has said itself that it sees no GPU: time to see one after all
    no_gpu_alone_s: float = 30.0  # ... before the run may end for it, while NVML shows nothing on its GPUs
    # The same where one of its processes may have said it, or none, and it trains.
    no_gpu_child_s: float = 120.0
    # A task that says nothing and does not train yet may prepare its data so long.
    no_gpu_end_s: float = 300.0
    no_gpu_cores: float = 0.5  # such a task has used so much of a core since its start
    gpu_look_s: float = 25.0  # how often NVML is asked while the run has GPUs
    gpu_wait_s: float = 90.0  # GPUs that spin for so long wait for the one that does not
    # ... or for the task that computes on its CPU: it may write a checkpoint, or evaluate.
    gpu_busy_s: float = 600.0
    gpu_spin_use: float = 90.0  # percent of use, from which on a GPU may spin ...
    gpu_spin_power: float = 0.35  # ... if it takes less than this part of its power limit
    gpu_spin_drop: float = 0.7  # ... and of the most that it took before, where it did more
    gpu_idle_use: float = 5.0  # percent of use, up to which a GPU does nothing
    gpu_quiet_bytes_s: float = 50_000.0  # a task that moves fewer bytes in a second sends heartbeats only
    # A task that listens on another port than its own, while trainers wait so long.
    other_port_s: float = 45.0
    # Between a worker's first and last line "not initialized"; one comes every 30 s.
    uninitialized_s: float = 85.0
    recovery_s: float = 45.0  # ... so that a line "not initialized" which is older says nothing about now
    lost_peer_s: float = 45.0  # who stands still within this time after a peer's end waits for that peer
    lost_retransmits: float = 4  # a packet that was sent so often again, in vain, is lost ...
    lost_looks: float = 2  # ... when so many looks running see no progress
    # Standstill (stillness.py).  Tasks of MultiWorkerMirroredStrategy that wait used 0.02 of a core, and 1400 B/s.
    still_cores: float = 0.05  # a task that uses less of a core ...
    starved_wait: float = 0.5  # ... unless it has less than idle_cores, and so many threads wait for one
    still_flow_bytes_s: float = 3000.0  # ... and moves less on every connection (heartbeats) stands still
    still_io_bytes_s: float = 2000.0  # ... and reads and writes less
    turns_s: float = 0.3  # a main thread that stops waiting more often is in a loop of its program
    blip_cpu_s: float = 0.4  # what a task that stands still may use besides, now and then
    blip_bytes: float = 16384.0
    chatty_s: float = 120.0  # a standstill that is told, of tasks that go on writing log lines
    busy_s: float = 120.0  # ... of tasks that wait for one that computes in the program's own code
    busy_deep_s: float = 600.0  # ... that computes within a library: an evaluation may take long
    lone_s: float = 300.0  # ... of a run with one task, and of tasks that all sleep in the program's own code
    evaluator_s: float = 120.0  # ... of an evaluator, while the chief writes on another host
    checkpoint_bytes: float = 1000.0  # what a checkpoint writes between two looks; heartbeats wrote 400
    # A slow run (slowness.py).
    # The watchdog names what slows a run once it has lasted so long; it is over once it is gone for so long.
    slow_s: float = 60.0
    slow_ratio: float = 0.7  # an asynchronous worker below this part of the others' median speed is slow ...
    slow_ratio_of_two: float = 0.5  # ... where there is one other only
    # Of the looks at calls to a task, without an answer yet: the others wait for it.
    awaited_share: float = 0.5
    # Seconds that threads wait for a processor, for each that they run: so much a slow worker's do, or a ps's.
    crowded_wait: float = 1.0
    cpu_share: float = 0.5  # of the time, in each sixth of it: so long programs wait for a processor
    held_share: float = 0.2  # of the time: so long the quota of its cgroup stops a task that it slows
    ps_cores: float = 0.9  # of the cores that it may use: a ps that is bound by them
    ps_waiting: float = 1.0  # ... or so many of its threads wait for one, on average
    # Times its shortest round trip: data that takes so long waits, and is not just far.
    queued_rtt: float = 3.0
    full_share: float = 0.3  # of the looks: more than 64 KiB wait to be sent, so the network is slow
    lost_share: float = 0.05  # of the packets of a task are sent again
    swap_bytes_s: float = 1e6  # to and from the swap of a host
    memory_share: float = 0.1  # of the time, in each sixth of it: so long programs wait for memory
    disk_share: float = 0.3  # of the looks: so often a thread of a slow task waits for a disk
    sick_disk_ms: float = 20.0  # so long a disk is busy with each read or write ...
    sick_disk_ratio: float = 5.0  # ... which is so many times what is usual
    input_share: float = 0.2  # of the looks at where a worker stands, or 0.4 of ten: it waits for its input
    gpu_idle_mean: float = 50.0  # percent of use: a GPU of a task that trains does less than it could
    nvlink_ratio: float = 0.9  # of the others' speed: an NVLink that is slower is held back
    slower_ratio: float = 0.7  # of the steps in a second before: the run has become slower
    stacks_again_s: float = 600.0  # a task is asked for its stacks no sooner again

    @property
    def fresh_s(self) -> float:
        """A look that is older says nothing about now."""
        return 3 * self.look_s


DEFAULTS: dict[str, float] = {each.name: float(each.default) for each in fields(Thresholds)}  # type: ignore[arg-type]


def thresholds(changed: Mapping[str, float]) -> Thresholds:
    """The defaults, but for those that are named here; raises ValueError for a name that is none."""
    unknown = changed.keys() - DEFAULTS.keys()
    if unknown:
        raise ValueError(f"{min(unknown)!r} is no threshold; there are {', '.join(sorted(DEFAULTS))}")
    return Thresholds(**{**DEFAULTS, **changed})
