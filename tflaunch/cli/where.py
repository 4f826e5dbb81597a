"""On which hosts to look for runs: those that were named, the default hostfile's, those of this machine's records."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.cli.options import default_hosts, load_hosts
from tflaunch.protocol.errors import RecordError, UsageError

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile


def hosts_of_run(run: str, source: str | None) -> tuple[str, Hostfile, Path | None]:
    """(full run id if it is known here, the hosts to look on, the ssh_config that leads there)."""
    from tflaunch.runs.record import Record, hostfile_from

    if source is not None:
        return run, load_hosts(source), None
    try:
        record = Record.open(run)
    except UsageError:
        if default_hosts() is None:
            raise
        return run, load_hosts(None), None
    return record.run_id, hostfile_from(record), record.ssh_config


def hosts_of_all(source: str | None, verb: str, *, everything: bool) -> tuple[Hostfile, Path | None]:
    """The hosts of all runs: of the default hostfile and of the records here; and the ssh_config."""
    if source is not None:
        return load_hosts(source), None
    default = default_or_none()
    recorded, config = recorded_hosts(lively=not everything or default is not None)
    known = [hostfile for hostfile in (default, recorded) if hostfile is not None]
    if not known:
        raise nowhere(verb)
    return merged(known), config


def recorded_hosts(*, lively: bool) -> tuple[Hostfile | None, Path | None]:
    """The hosts of all runs on record here (`lively`: of those that may be alive), and the ssh_config."""
    from tflaunch.runs.record import Record, hostfile_from
    from tflaunch.runs.record_list import MAY_BE_ALIVE, list_runs

    hostfiles, configs = [], []
    for info in list_runs():
        if info.status in MAY_BE_ALIVE or (info.status == "ended" and not lively):
            try:
                record = Record.open(info.run_id)
                hostfiles.append(hostfile_from(record))
                configs.append(record.ssh_config)
            except (RecordError, UsageError):
                continue  # removed meanwhile, or of another version
    return (merged(hostfiles) if hostfiles else None), next(filter(None, configs), None)


def default_or_none() -> Hostfile | None:
    """The default hostfile's hosts, if there is one; raises HostfileError."""
    return load_hosts(None) if default_hosts() is not None else None


def merged(hostfiles: Collection[Hostfile]) -> Hostfile:
    """All hosts of these, each once, as the first one has it."""
    from tflaunch.hosts import Hostfile

    hosts = {host.name: host for hostfile in reversed([*hostfiles]) for host in reversed(hostfile.hosts)}
    sources = dict.fromkeys(each.source for each in hostfiles)
    return Hostfile(", ".join(sources), tuple(reversed(hosts.values())))


def nowhere(verb: str) -> UsageError:
    """The error when nothing says where to look."""
    return UsageError("no run is recorded here", f"say where to look: tflaunch {verb} --hosts hosts.yaml")
