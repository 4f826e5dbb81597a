"""Find the hosts a command is about: named ones, those of the default hostfile, those of this machine's records."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.inputs.engine_words import names_hosts
from tflaunch.protocol.errors import ConnectError, RecordError, UsageError
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Host, Hostfile


def default_source() -> str | None:
    """Return the default hostfile, or None where there is none; raises UsageError, ConfigError."""
    from tflaunch.api.requests import configured

    return configured.default_source(Path.cwd())[0]


def load_hosts(source: str | None, connection: str = "", reporter: Reporter | None = None) -> Hostfile:
    """Load the hostfile that the user named, or else the default one; `reporter` then says which it is.

    `connection` is the value of --connection.  Raises HostfileError, UsageError.
    """
    from tflaunch import hosts
    from tflaunch.api.requests import configured

    if source == "":  # an unset shell variable; the user did not mean the default hostfile
        raise UsageError("HOSTS is empty", "name hosts, or leave that word out for the default hostfile")
    found, setting = (source, None) if source else configured.default_source(Path.cwd())
    if found is None:
        raise UsageError(
            "no hostfile: $TFLAUNCH_HOSTS, ./hosts.yaml and ~/.config/tflaunch/hosts.yaml do not exist",
            "make one: tflaunch init; or name one: a file, host1,host2, slurm: or pbs:",
        )
    hostfile = configured.with_defaults(hosts.load(found, connection=connection))
    if hostfile.wanted is not None:
        from tflaunch.engines.taken_slots import checked

        hostfile = checked(hostfile)
    if reporter is not None and not source:
        count = len(hostfile.hosts)
        named = "$TFLAUNCH_HOSTS" if os.environ.get("TFLAUNCH_HOSTS") else "none was named"
        named = setting.place if setting is not None else named
        reporter.note(f"hosts: {found} ({named}): {counted(count, 'host')}")
    if reporter is not None:
        for note in hostfile.notes:
            reporter.note(note)
    return hostfile


def check_detached(hostfile: Hostfile, detached: bool, instead: str) -> None:
    """Raise UsageError for a run that is to go on without its launcher, in slots that do not; `instead` is advice."""
    if not detached or hostfile.wanted is None:
        return
    from tflaunch.engines.taken_slots import why_it_stays

    if why := why_it_stays(hostfile):
        raise UsageError(f"{hostfile.source}: a run there cannot go on without this command: {why}", instead)


def load_there(source: str | None, connection: str = "") -> Hostfile:
    """Load the hostfile as `load_hosts` does; slots are those of this user that the engine knows: none is taken.

    Raises ConnectError, too.
    """
    hostfile = load_hosts(source, connection)
    if hostfile.wanted is None:
        return hostfile
    from tflaunch.engines.taken_slots import there

    return merge([there(hostfile)])


def kind_of_file(word: str) -> str:
    """Return `hosts`, `job` or `program` for a file of that kind here, or the hosts of a batch job; "" for all else."""
    from tflaunch.inputs.kinds import kind_of

    return kind_of(word) if names_hosts(word) or Path(word).expanduser().is_file() else ""


def refuse_file(run: str) -> None:
    """Raise UsageError if what should name a run is a hostfile, a job file or a program."""
    kind = kind_of_file(run)
    if kind == "hosts":
        raise UsageError(
            f"{run} is a hostfile, not a run", f"--hosts {run} says where to look; RUN is an id or a name"
        )
    if kind:
        what = "a job file" if kind == "job" else "a program"
        raise UsageError(
            f"{run} is {what}, not a run", f"tflaunch ps lists the runs; tflaunch run {run} starts one"
        )


def hosts_of_run(run: str, source: str | None) -> tuple[str, Hostfile, Path | None]:
    """Return (full run id if this machine knows it, the hosts to look on, the ssh_config to reach them).

    Raises UsageError for a run that is unknown here and is a file.
    """
    from tflaunch.runs.record import Record, hostfile_from

    if source is not None:
        return run, load_there(source), None
    try:
        record = Record.open(run)
    except UsageError:
        refuse_file(run)
        if default_source() is None:
            raise
        return run, load_there(None), None
    if record.slots is not None and not record.running() and record.outcome() is not None:
        return record.run_id, dataclasses.replace(hostfile_from(record), hosts=()), None  # its slots are over
    return record.run_id, hostfile_from(record), record.ssh_config


def run_and_words(run: str | None, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return (the run, the words behind it) where the first word may be left out: `logs worker/0`, `fetch '*.csv'`."""
    from tflaunch.runs.run_ids import is_run_id

    if run is not None and not is_run_id(run):
        return None, [run, *words]
    return run, list(words)


def hosts_of_newest(source: str | None, verb: str) -> tuple[Hostfile, Path | None]:
    """Return (the hosts on which the only run alive, or the newest, may be; the ssh_config); raises UsageError."""
    from tflaunch.runs.record import Record, hostfile_from
    from tflaunch.runs.record_list import list_runs

    newest: Hostfile | None = None
    config: Path | None = None
    if source is None and (runs := [each for each in list_runs() if each.status != "corrupt"]):
        with contextlib.suppress(RecordError, UsageError):  # removed meanwhile, or another version wrote it
            record = Record.open(runs[0].run_id)
            newest, config = hostfile_from(record), record.ssh_config
    if newest is None:
        return hosts_of_all(source, verb, everything=False)
    recorded, other_config = recorded_hosts(lively=True)
    known = [each for each in (default_hostfile(), recorded, newest) if each is not None]
    return merge(known), config or other_config


def hosts_to_stop_on(
    run: str | None, source: str | None, *, of_others: bool
) -> tuple[str | None, Hostfile, Path | None]:
    """Return (full run id if this machine knows it, the hosts to look on, the ssh_config to reach them).

    This machine's records say nothing `of_others`: of the runs of another user.
    """
    if run is not None and not of_others:
        return hosts_of_run(run, source)
    recorded, config = recorded_hosts(lively=True) if source is None and not of_others else (None, None)
    if recorded is not None:
        return None, recorded, config
    hostfile = load_there(source) if source is not None else default_hostfile()
    if hostfile is None:
        raise no_hosts_known("stop")
    return run, hostfile, None


def hosts_of_all(source: str | None, verb: str, *, everything: bool) -> tuple[Hostfile, Path | None]:
    """Return (hosts of the default hostfile and of the records here, the ssh_config); raises UsageError for none.

    Records of ended runs count only with `everything` and without a default hostfile.
    """
    if source is not None:
        return load_there(source), None
    default = default_hostfile()
    recorded, config = recorded_hosts(lively=not everything or default is not None)
    known = [hostfile for hostfile in (default, recorded) if hostfile is not None]
    if not known:
        raise no_hosts_known(verb)
    return merge(known), config


def recorded_hosts(*, lively: bool) -> tuple[Hostfile | None, Path | None]:
    """Return (hosts of the runs on record here, the ssh_config); `lively`: only of runs that may be alive."""
    from tflaunch.runs.record import Record, hostfile_from
    from tflaunch.runs.record_list import MAY_BE_ALIVE, list_runs

    hostfiles, configs = [], []
    for info in list_runs():
        if info.status in MAY_BE_ALIVE or (info.status == "ended" and not lively):
            try:
                record = Record.open(info.run_id)
                hostfile = hostfile_from(record)
                if info.on_slots and info.status == "ended":  # its slots are over
                    hostfile = dataclasses.replace(hostfile, hosts=())
                hostfiles.append(hostfile)
                configs.append(record.ssh_config)
            except (RecordError, UsageError):
                continue  # the record was removed meanwhile, or another version wrote it
    return (merge(hostfiles) if hostfiles else None), next(filter(None, configs), None)


def default_hostfile() -> Hostfile | None:
    """Return the hosts of the default hostfile, or None where there is none; raises HostfileError.

    None, too, where it names slots and their engine cannot be asked: the records of this machine lead to its runs.
    """
    try:
        return load_there(None) if default_source() is not None else None
    except ConnectError:
        return None


def merge(hostfiles: Collection[Hostfile]) -> Hostfile:
    """Return all hosts of these hostfiles, each once, as the first hostfile describes it.

    A slot of an engine is no other host of that name: it is called NAME@JOB, then.
    """
    from tflaunch.hosts import Hostfile, slot_identity

    hosts: dict[str, Host] = {}
    known: list[object] = []
    for host in (host for hostfile in hostfiles for host in hostfile.hosts):
        if host.slot:
            identity = slot_identity(host)
            if identity in known:
                continue
            known.append(identity)
            slot = _renamed(host, hosts)
            hosts[slot.name] = slot
        else:
            hosts.setdefault(host.name, host)
    sources = dict.fromkeys(each.source for each in hostfiles)
    return Hostfile(", ".join(sources), tuple(hosts.values()))


def _renamed(slot: Host, others: Collection[str]) -> Host:
    """Return this slot, by another name if one of the others has its own."""
    job = slot.slot.get("job") or "another"
    names = itertools.chain(
        [slot.name, f"{slot.name}@{job}"], (f"{slot.name}@{job}.{n}" for n in itertools.count(2))
    )
    return dataclasses.replace(slot, name=next(name for name in names if name not in others))


def no_hosts_known(verb: str) -> UsageError:
    """Return the error for a command that knows no hosts to look on."""
    return UsageError("no run is recorded here", f"say where to look: tflaunch {verb} --hosts hosts.yaml")
