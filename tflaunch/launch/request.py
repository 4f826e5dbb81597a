"""What the command line asks of a run, and what the run needs of the connections to its hosts."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tflaunch.hosts import Host, Hostfile
from tflaunch.lifecycle.states import Restarts
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_choice import GpuChoice
from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.job import JobSpec
from tflaunch.sessions.wires import Opener

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.engines.taken_slots import TakenSlots
    from tflaunch.inputs.patterns import Wish
    from tflaunch.planning.gpu_limits import GpuLimit
    from tflaunch.runs.record import Record


class Connections(Opener, Protocol):
    """How to reach the hosts: `tflaunch.remote.Connector`, which says what each method promises."""

    def dial_address(self, host: Host) -> str: ...
    def host_key(self, host: Host) -> str: ...
    def unanswered(self, host: Host) -> ConnectError | None: ...
    def user(self, host: Host) -> str: ...


class OnSlots(NamedTuple):
    """What a run on slots of an engine has before it starts."""

    slots: TakenSlots
    record: Record  # made before the slots were asked for, and discarded by who has made it


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    run_id: str
    job: JobSpec
    hostfile: Hostfile
    gpus: GpuChoice
    bundle: Bundle | None  # None: the code is on the hosts
    command: tuple[str, ...]  # the launcher's command line, for the record
    role_programs: Mapping[str, str] = field(
        default_factory=dict
    )  # job with a program of its own -> its file in `bundle`, "" if no Python reads it
    ssh_config: str | None = None  # for the record: `tflaunch stop` reaches the hosts by it
    lease_s: float = 60.0
    handed_lease_s: float = 600.0  # once the run is handed over to its agents
    connect_s: float = 30.0
    grace_s: float = 10.0
    drain_s: float = 3.0
    detach: bool = False
    restarts: Restarts = field(default_factory=Restarts)
    spares: str = ""  # pattern of hosts that are used only when another one is lost or absent
    dial_check: str = "auto"  # a DialCheckChoice
    limits_s: Mapping[str, float] = field(default_factory=dict)  # see tflaunch.lifecycle.time_limits
    watch: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings of the watchdog (tflaunch.lifecycle.watchdog) that the user has changed
    # The directory that TensorBoard shows while the tasks run; None: no TensorBoard.
    tensorboard: str | None = None
    tensorboard_port: int = 0  # on this machine; 0: any free one
    fetch: Wish | None = None  # the outputs that are fetched at the end
    require_all: bool = False  # fail when a host is absent, even if the job fits without it
    yes: bool = False  # the user agrees to every question in advance
    gpu_limit: GpuLimit | None = None  # of one user, on all hosts of the run together
    # Takes slots of an engine again after so many seconds, for --restarts; None: the hosts are no slots, or not
    # tflaunch's to take.  Raises TflaunchError, Stopped.
    take_again: Callable[[float], Hostfile] | None = None
    wait_s: float | None = None  # how long to wait for GPUs that are in use; None: not at all
    # Called with the directory of the run's record as soon as there is one, and with each plan.
    on_record: Callable[[Path], object] = lambda _: None


def about_run(request: Request, plan: ClusterPlan, spares: Iterable[str] = ()) -> Mapping[str, object]:
    """What each host keeps about the whole run, so that any host can describe it (tflaunch.runs.listing)."""
    user = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # an account without a name
        user = getpass.getuser()
    return {
        "planned": time.time(),
        "launcher": f"{user}@{socket.gethostname()}",
        "command": list(request.command),
        "detached": request.detach,
        "hosts": sorted({task.host for task in plan.tasks}.union(spares)),
        "tasks": {str(task.id): task.host for task in plan.tasks},
        **({"left_out": dict(plan.left_out)} if plan.left_out else {}),
        **({"moved": plan.moved} if plan.moved else {}),
    }
