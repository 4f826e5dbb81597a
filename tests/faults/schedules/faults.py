"""The faults of the schedules."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.bed.disks import turn_read_only
from tests.support.launcher import Process

if TYPE_CHECKING:
    from tests.faults.schedules.play import Play
    from tests.support.bed import BedHost

Undo = Callable[[], None] | None
Act = Callable[["Play", "BedHost"], Undo]
LOST, TASK_KILLED = 76, 137
DISK = (1, 120)  # how a Python ends that cannot print: by an exception, or at its exit
ALL = ("run", "openssh", "detached", "sweep", "up")
WITH_LAUNCHER = ("run", "openssh", "sweep")


class NotThere(Exception):
    """What it is to befall does not exist (yet)."""


@dataclass(frozen=True)
class Fault:
    """Something that befalls a run; `act` returns how it is made good again."""

    act: Act
    codes: tuple[int, ...] = ()  # with which the run may end by it, if nobody makes it good in time
    kinds: tuple[str, ...] = ALL
    often: float = 1.0
    lasts: str = "once"  # nobody can make it good; "while": it is always made good; "either"
    on_host: bool = True
    needs_run: bool = False  # what it befalls is there only once tasks run
    mild: bool = False  # even while the run starts, it goes on
    agent_gone: bool = False  # nobody is left who could remove socket and reserve, or send the last lines
    host_gone: bool = False  # nothing of the run is left on it
    out_of_reach: bool = False  # if nobody makes it good, nobody can know what is left on that host
    disk: str = ""  # which file system the host needs

    def undone(self, draw: float) -> bool:
        """Whether it is made good again, in this schedule."""
        return self.lasts == "while" or (self.lasts == "either" and draw < 0.5)


# -- the network


def cut(play: Play, host: BedHost) -> Undo:
    play.bed.cut(host)
    return lambda: play.bed.heal(host)


def cut_to(play: Play, host: BedHost) -> Undo:
    play.bed.cut_one_way(play.bed.launcher, host)
    return lambda: play.bed.heal(host)


def cut_from(play: Play, host: BedHost) -> Undo:
    play.bed.cut_one_way(host, play.bed.launcher)
    return lambda: play.bed.heal(host)


def cut_launcher(play: Play, host: BedHost) -> Undo:
    play.bed.cut(play.bed.launcher)
    return lambda: play.bed.heal(play.bed.launcher)


def refused(play: Play, host: BedHost) -> Undo:
    host.reset_connections()
    play.bed.block(play.bed.launcher, host, 22, refuse=True)
    return lambda: play.bed.heal(host)


def reset(play: Play, host: BedHost) -> Undo:
    host.reset_connections()
    return None


def sessions_killed(play: Play, host: BedHost) -> Undo:
    host.kill_sessions()
    return None


def sshd_killed(play: Play, host: BedHost) -> Undo:
    host.kill_sshd(sessions=True)
    return lambda: play.start_sshd(host)


def delayed(play: Play, host: BedHost) -> Undo:
    play.bed.delay(host, 80, loss_percent=0.5)
    return lambda: play.bed.delay(host, 0)


def names_forgotten(play: Play, host: BedHost) -> Undo:
    for machine in (play.bed.launcher, *play.hosts):
        machine.forget_names()
    return play.bed.name_all


# -- the host


def frozen(play: Play, host: BedHost) -> Undo:
    host.freeze()
    return host.thaw


def rebooted(play: Play, host: BedHost) -> Undo:
    play.bed.reboot(host)
    return None


def powered_off(play: Play, host: BedHost) -> Undo:
    play.bed.power_off(host)
    return None


def disk_full(play: Play, host: BedHost) -> Undo:
    host.fill("/var/tmp")
    return lambda: play.empty(host)


def disk_read_only(play: Play, host: BedHost) -> Undo:
    turn_read_only(host, "/var/tmp")
    return None


# -- processes


def killed(*found: Process) -> Undo:
    for each in found:
        each.kill()
    return None


def stopped(process: Process) -> Undo:
    process.kill(signal.SIGSTOP)
    return lambda: process.kill(signal.SIGCONT)


FAULTS = {
    "cut": Fault(cut, (LOST,), lasts="either", often=2, out_of_reach=True),
    "cut-to": Fault(cut_to, (LOST,), lasts="either", out_of_reach=True),
    "cut-from": Fault(cut_from, (LOST,), lasts="either", out_of_reach=True),
    "launcher-cut": Fault(cut_launcher, lasts="while", on_host=False),
    "refused": Fault(refused, lasts="while", mild=True),
    "reset": Fault(reset, mild=True, often=2),
    "sessions-killed": Fault(sessions_killed, mild=True),
    "sshd-killed": Fault(sshd_killed, (LOST,), lasts="while", mild=True),
    "delayed": Fault(delayed, lasts="either", mild=True),
    "names-forgotten": Fault(names_forgotten, lasts="while", on_host=False, often=0.5),
    "frozen": Fault(frozen, lasts="while"),
    "rebooted": Fault(rebooted, (LOST,), host_gone=True),
    "powered-off": Fault(powered_off, (LOST,), host_gone=True, out_of_reach=True),
    "disk-full": Fault(disk_full, DISK, lasts="either", disk="small", often=1.5),
    "disk-read-only": Fault(disk_read_only, DISK, disk="own", often=1.5),
    "task-killed": Fault(lambda play, host: killed(play.task(host)), (TASK_KILLED,), needs_run=True),
    "task-hung": Fault(lambda play, host: stopped(play.task(host)), lasts="either", needs_run=True),
    "agent-killed": Fault(lambda play, host: killed(play.agent(host)), (LOST,), agent_gone=True),
    "guard-killed": Fault(lambda play, host: killed(play.guard(host)), (LOST,)),
    "agent-and-guard-killed": Fault(
        lambda play, host: killed(play.agent(host), play.guard(host)), (LOST,), agent_gone=True, often=1.5
    ),
    "agent-hung": Fault(
        lambda play, host: stopped(play.agent(host)), (LOST,), lasts="either", often=2.5, agent_gone=True
    ),
    "guard-hung": Fault(lambda play, host: stopped(play.guard(host)), lasts="while", often=0.5),
    "coordinator-killed": Fault(
        lambda play, _: killed(play.coordinator()), kinds=("detached",), on_host=False, needs_run=True
    ),
    "coordinator-hung": Fault(
        lambda play, _: stopped(play.coordinator()),
        (LOST,),
        kinds=("detached",),
        lasts="either",
        on_host=False,
        needs_run=True,
    ),
    "launcher-stopped": Fault(lambda play, _: play.stop_command(), lasts="while", on_host=False),
    "launcher-killed": Fault(lambda play, _: play.kill_command(), on_host=False, often=1.5),
    "interrupt": Fault(lambda play, _: play.interrupt(), (130,), on_host=False),
    "stop": Fault(lambda play, _: play.call("stop"), (143,), on_host=False, needs_run=True),
    "detach": Fault(
        lambda play, _: play.call("detach"),
        kinds=("run", "openssh"),
        on_host=False,
        needs_run=True,
        often=3,
    ),
    "attach": Fault(lambda play, _: play.call("attach"), on_host=False, needs_run=True),
    "ps": Fault(lambda play, _: play.call("ps"), on_host=False, needs_run=True, often=0.5),
}
