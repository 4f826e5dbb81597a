"""Hostfiles, and the GPUs of their hosts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.api.connecting import SILENT, reaching
from tflaunch.api.requests.which_hosts import load_hosts as load
from tflaunch.hosts import Hostfile
from tflaunch.inputs.options.groups import SshOptions

if TYPE_CHECKING:
    from tflaunch.survey.gpu_overview import Overview

Hosts = Hostfile | str | os.PathLike[str] | Iterable[str] | None


def load_hosts(hosts: Hosts = None, *, connection: str = "") -> Hostfile:
    """Read a hostfile: a path, names in a list or between commas (`gpu[01-03]`), `slurm:`, `pbs:`, slots of an
    engine; None: the default.

    connection: `ssh` or `openssh`, for hosts whose hostfile does not say.
    Raises HostfileError, which has all problems with their lines, and UsageError where there is no hostfile.
    """
    if isinstance(hosts, Hostfile):
        return hosts
    if hosts is None or isinstance(hosts, (str, os.PathLike)):
        return load(None if hosts is None else os.fspath(hosts), connection)
    return load(",".join(hosts), connection)


def load_known(hosts: Hosts) -> Hostfile:
    """Read a hostfile as `load_hosts` does; the slots of an engine are those that this user has there."""
    hostfile = load_hosts(hosts)
    if hostfile.wanted is None:
        return hostfile
    from tflaunch.api.requests.which_hosts import merge
    from tflaunch.engines.taken_slots import there

    return merge([there(hostfile)])


def gpus(
    hosts: Hosts = None, *, timeout_s: float = 15.0, ssh_config: str | os.PathLike[str] | None = None
) -> Overview:
    """Ask all hosts for their GPUs, as `tflaunch gpus` does.

    `machines` of the result has the hosts with GPUs, `unreachable` those that could not be asked, with why.
    timeout_s: for one host to connect and to answer.
    """
    from tflaunch.survey.gpu_overview import look
    from tflaunch.survey.survey import Survey

    hostfile = load_hosts(hosts)
    ssh = SshOptions(
        connect_timeout=0.8 * timeout_s, ssh_config=Path(ssh_config) if ssh_config is not None else None
    )
    with reaching(hostfile, ssh, SILENT) as there:
        survey = Survey(there.connector, there.hostfile.hosts, timeout_s)
        with contextlib.closing(survey):
            for _ in survey.once():
                pass
            return look(survey.answers())
