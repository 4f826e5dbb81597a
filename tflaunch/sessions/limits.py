"""How many hosts this machine can hold connections to."""

from __future__ import annotations

import resource

from tflaunch.protocol import machine
from tflaunch.protocol.errors import UsageError

OTHER_FILES = 40  # descriptors that a command has beside one for each host
NEIGHBOURS = "net.ipv4.neigh.default.gc_thresh3"


def refuse_too_many(hosts: int) -> None:
    """Raise UsageError if this process may not open so many connections; its limit is raised as far as it may be."""
    machine.allow_many_descriptors()  # each host takes one, and many systems allow only 1,024
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1: none
    if 0 <= limit < hosts + OTHER_FILES:
        raise UsageError(
            f"{hosts:,} hosts need {hosts + OTHER_FILES:,} open files at least, and this process may have {limit:,}",
            f"raise the limit: ulimit -Hn {2 * hosts + OTHER_FILES}, as root, or LimitNOFILE= of systemd, or nofile in"
            " /etc/security/limits.conf",
        )


def few_neighbours(hosts: int, said: str) -> str:
    """A warning if the kernel here keeps fewer neighbours than `hosts`; `said`: what it says of NEIGHBOURS."""
    if not said.isdecimal() or int(said) >= hosts:
        return ""
    return (
        f"{hosts:,} hosts, and the kernel here keeps {int(said):,} neighbours ({NEIGHBOURS}): if all are in one "
        f"network, connections fail. `sysctl -w {NEIGHBOURS}={4 * hosts}`, here and on the hosts"
    )


def neighbours() -> str:
    """What this kernel says of NEIGHBOURS; "" if it does not say."""
    return machine.first_line("/proc/sys/" + NEIGHBOURS.replace(".", "/"))
