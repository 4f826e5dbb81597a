"""`tflaunch clean`: remove what old runs have left, on the hosts and on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflaunch.cli.options import (
    OUTPUT,
    AcceptNew,
    ConnectTimeout,
    Patient,
    SshConfig,
    connector,
    load_hosts,
    reporting,
)
from tflaunch.cli.values import time_of
from tflaunch.cli.where import default_or_none, hosts_of_run, merged, nowhere, recorded_hosts
from tflaunch.inputs.times import seconds
from tflaunch.protocol.errors import CleanError, ConnectErrors, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.hosts import Hostfile
    from tflaunch.protocol.errors import ConnectError
    from tflaunch.runs.clean import Criteria, Place, Selection
    from tflaunch.runs.visits import Visits
    from tflaunch.sessions.watcher import Watcher

OLDER = "14d"
MEASURE_S = 300.0  # a million small files on a disk that turns
CLEAN_S = 3600.0

WHICH = "Which runs"


def _age(text: str) -> float:
    """A time with its unit: who removes what is older than 7 has hardly seconds in mind."""
    if text.strip()[-1:].isdigit():
        raise typer.BadParameter(
            f"{text!r} of what? {text.strip()}d (days), {text.strip()}h or {text.strip()}s"
        )
    return time_of()(text)


def clean(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN...]", help="These, by id or how it begins.", show_default=False),
    ] = None,
    *,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts", "-H", metavar="HOSTS", help="Where [the default hostfile, or this machine's records]"
        ),
    ] = None,
    older: Annotated[
        float | None,
        typer.Option(
            parser=_age,
            metavar="TIME",
            help=f"What nobody has written to for so long [{OLDER} if nothing else is said]",
            rich_help_panel=WHICH,
        ),
    ] = None,
    keep_last: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Never the newest N; alone: all others.", rich_help_panel=WHICH
        ),
    ] = 0,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="The oldest, until each host keeps no more: 10GiB", rich_help_panel=WHICH
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only tell.", rich_help_panel=WHICH)
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", rich_help_panel=WHICH)] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.", rich_help_panel=OUTPUT)] = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """Remove old runs: their directories on the hosts, with logs and working directory, and their records here.

    Never one that is alive, or may be on a host that cannot be asked.  Shipped code goes with the last run of it.
    On a terminal you are asked first.

    Exit code: 0; 2 which run?; 69 hosts could not be asked, 74 something could not be removed: the rest is done.
    """
    from tflaunch.console.clean_page import cleaned_lines, selection_lines
    from tflaunch.console.failure_page import unreachable_data
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.runs.clean import document, places
    from tflaunch.runs.clean_records import recorded_place
    from tflaunch.runs.visits import Visits

    with reporting("stopped; what a host was told to remove it goes on removing", json=json) as show:
        criteria = _criteria(runs or [], older, keep_last, max_size)
        hostfile, known_config = _where(criteria.runs, hosts)
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config or known_config)
        patient = Patient(show.reporter, json)
        visits = Visits(to_hosts, patient)
        try:
            with visits.interrupts():
                failures = visits.open(hostfile.hosts, connect_timeout)
                usages, silent = visits.usage(MEASURE_S)
            patient.settle()
            failures |= silent
            in_order = {host.name: usages[host.name] for host in hostfile.hosts if host.name in usages}
            known = [*places(in_order), recorded_place()]
            criteria, chosen = _chosen(known, criteria, failures)
            screen = Screen()
            with reader_may_leave():
                if not json:
                    screen.show(selection_lines(known, chosen, screen))
                if dry_run or yes or json or _agreed(chosen, visits, show.reporter):
                    with visits.interrupts():
                        cleaned, more = _carry_out(visits, known, chosen, criteria, dry_run)
                    patient.settle()
                    failures |= more
                    told = document(known, chosen, cleaned, dry_run)
                    if json:
                        told |= {"time": time.time(), "unreachable": unreachable_data(failures)}
                        screen.write_json(told)
                    else:
                        screen.show(cleaned_lines(told, screen))
                    if any(place["failed"] for place in told["places"]):
                        show.exit_code = CleanError.exit_code
                else:
                    show.reporter.note("nothing was removed")
        finally:
            visits.close()
            to_hosts.close()
        if failures:
            if not json:
                show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code


def _criteria(runs: list[str], older_s: float | None, keep_last: int, max_size: str | None) -> Criteria:
    from tflaunch.inputs.sizes import size
    from tflaunch.runs.clean import Criteria
    from tflaunch.runs.run_ids import check_run_id

    if runs and (older_s is not None or keep_last or max_size):
        raise UsageError("RUN names what is to go: no --older, --keep-last or --max-size beside it")
    if not (runs or older_s is not None or keep_last or max_size):
        older_s = seconds(OLDER)
    return Criteria(
        older_s=older_s,
        keep_last=keep_last,
        max_bytes=size(max_size) if max_size else None,
        runs=tuple(map(check_run_id, runs)),
    )


def _where(runs: tuple[str, ...], source: str | None) -> tuple[Hostfile, Path | None]:
    if source is not None:
        return load_hosts(source), None
    if runs:
        found = [hosts_of_run(run, None) for run in runs]
        configs = (config for _, _, config in found if config)
        return merged([hostfile for _, hostfile, _ in found]), next(configs, None)
    if (hostfile := default_or_none()) is not None:
        return hostfile, None
    recorded, config = recorded_hosts(lively=False)
    if recorded is None:
        raise nowhere("clean")
    return recorded, config


def _chosen(
    known: list[Place], criteria: Criteria, failures: dict[str, ConnectError]
) -> tuple[Criteria, Selection]:
    """The criteria with the whole names of the runs, and what they choose; a named run that must stay is an error."""
    import dataclasses

    from tflaunch.runs.clean import full_names, select

    try:
        criteria = dataclasses.replace(criteria, runs=full_names(criteria.runs, known))
    except UsageError:
        if failures:
            raise ConnectErrors(failures, len(failures)) from None
        raise
    chosen = select(known, criteria)
    if criteria.runs and chosen.stays:
        run, why = next(iter(chosen.stays.items()))
        raise UsageError(f"{run} stays: {why}", f"tflaunch stop {run}" if "alive" in why else "")
    return criteria, chosen


def _agreed(chosen: Selection, visits: Visits, watcher: Watcher) -> bool:
    """Whether the user wants that; without a terminal nobody is asked. Raises Stopped."""
    from tflaunch.sessions.asking import agreed

    if not chosen.goes:
        return True
    count = len({run for runs in chosen.goes.values() for run in runs})
    with visits.interrupts():
        return (
            agreed(visits.sessions, watcher, f"remove {'it' if count == 1 else f'these {count} runs'}?")
            is not False
        )


def _carry_out(
    visits: Visits, known: list[Place], chosen: Selection, criteria: Criteria, dry_run: bool
) -> tuple[dict[int, Any], dict[str, ConnectError]]:
    """What each place says after it, by number, and the hosts that did not."""
    from tflaunch.runs.clean_records import remove_records

    wanted = {
        place.names[0]: chosen.goes.get(number, ()) for number, place in enumerate(known) if place.names
    }
    said, failures = visits.clean(wanted, criteria.code_older_s, dry_run, CLEAN_S)
    cleaned: dict[int, Any] = {}
    for number, place in enumerate(known):
        if not place.names:
            cleaned[number] = remove_records(chosen.goes.get(number, ()), dry_run)
        elif place.names[0] in said:
            cleaned[number] = said[place.names[0]].fields
    return cleaned, failures
