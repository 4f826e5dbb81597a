"""`tflaunch clean`: removes what old runs have left on the hosts and on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflaunch.api.requests.which_hosts import (
    default_hostfile,
    hosts_of_run,
    load_there,
    merge,
    no_hosts_known,
    recorded_hosts,
)
from tflaunch.cli import completion
from tflaunch.cli.arguments import JsonDocument
from tflaunch.cli.options import parser
from tflaunch.cli.reporting import Patient, Show, reporting
from tflaunch.cli.verb_connections import visiting
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.options.declared import option
from tflaunch.inputs.options.groups import SshOptions
from tflaunch.inputs.options.values import parse_age
from tflaunch.protocol.errors import CleanError, ConnectErrors, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.hosts import Hostfile
    from tflaunch.protocol.errors import ConnectError
    from tflaunch.runs.clean import Criteria, RunsPlace, Selection
    from tflaunch.runs.visits import Visits
    from tflaunch.sessions.watcher import Watcher

OLDER = "14d"
MEASURE_S = 300.0  # enough to count a million small files on a hard disk
CLEAN_S = 3600.0


@dataclass(repr=False, eq=False)
class CleanOptions:
    """Which runs to remove."""

    panel = "Which runs"

    older: float | None = option(
        None,
        parser=parser(parse_age),
        metavar="TIME",
        help=f"Runs without a write for this time [{OLDER}, if no other option chooses]",
    )
    keep_last: int | None = option(
        None, min=0, metavar="N", help="Keep the newest N; without another option: remove all others."
    )
    max_size: str | None = option(
        None, metavar="SIZE", help="The oldest runs, until each host holds no more than this: 10GiB"
    )
    dry_run: bool = option(False, "--dry-run", "-n", help="Show what would be removed, and remove nothing.")
    yes: bool = option(False, "--yes", "-y", help="Do not ask.")


def clean(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="These runs, by id or its first letters.",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None,
    *,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            "-H",
            metavar="HOSTS",
            help="The hosts to clean [those of the default hostfile, or of this machine's records]",
        ),
    ] = None,
    which: CleanOptions,
    json: JsonDocument = False,
    ssh: SshOptions,
) -> None:
    """Remove old runs: their directories on the hosts, with logs and working directories, and their records here.

    A run that is alive stays, and one that may be alive on a host that cannot be asked.  Shipped code goes with the
    last run that used it.  On a terminal, tflaunch asks first.
    """
    from tflaunch.runs.clean import places
    from tflaunch.runs.clean_records import recorded_place

    with reporting("stopped; hosts go on removing what they were asked to remove", json=json) as show:
        criteria = _criteria(runs or [], which)
        hostfile, known_config = _where(criteria.runs, hosts)
        patient = Patient(show.reporter, json)
        with visiting(hostfile.hosts, ssh, patient, known_config=known_config) as visits:
            with visits.interrupts():
                failures = visits.open(hostfile.hosts, ssh.connect_timeout)
                usages, silent = visits.usage(MEASURE_S, tidy=not which.dry_run)
            patient.settle()
            failures |= silent
            in_order = {host.name: usages[host.name] for host in hostfile.hosts if host.name in usages}
            known = [*places(in_order), recorded_place()]
            criteria, chosen = _chosen(known, criteria, failures)
            removal = _Removal(known, criteria, chosen, which.dry_run)
            failures = _remove(removal, visits, patient, show, failures, asks=not which.yes, json=json)
        if failures:
            if not json:
                show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code


def _criteria(runs: list[str], options: CleanOptions) -> Criteria:
    from tflaunch.inputs.amounts import size
    from tflaunch.runs.clean import Criteria
    from tflaunch.runs.run_ids import check_run_id

    older_s, keep_last, max_size = options.older, options.keep_last, options.max_size
    given = older_s is not None or keep_last is not None or max_size is not None
    if runs and given:
        raise UsageError(
            "RUN says what to remove: --older, --keep-last and --max-size cannot stand beside it"
        )
    if not (runs or given):
        older_s = seconds(OLDER)
    return Criteria(
        older_s=older_s,
        keep_last=keep_last,
        max_bytes=None if max_size is None else size(max_size, "an amount of data", "--max-size"),
        runs=tuple(map(check_run_id, runs)),
    )


def _where(runs: tuple[str, ...], source: str | None) -> tuple[Hostfile, Path | None]:
    if source is not None:
        return load_there(source), None
    if runs:
        found = [hosts_of_run(run, None) for run in runs]
        configs = (config for _, _, config in found if config)
        return merge([hostfile for _, hostfile, _ in found]), next(configs, None)
    if (hostfile := default_hostfile()) is not None:
        return hostfile, None
    recorded, config = recorded_hosts(lively=False)
    if recorded is None:
        raise no_hosts_known("clean")
    return recorded, config


def _chosen(
    known: list[RunsPlace], criteria: Criteria, failures: dict[str, ConnectError]
) -> tuple[Criteria, Selection]:
    """Return (the criteria with full run ids, what they select); raises UsageError if a named run must stay."""
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
    """Ask the user whether to remove the runs; without a terminal to ask on, the answer is yes. Raises Stopped."""
    from tflaunch.sessions.asking import agreed

    if not chosen.goes:
        return True
    count = len({run for runs in chosen.goes.values() for run in runs})
    with visits.interrupts():
        return (
            agreed(visits.sessions, watcher, f"remove {'it' if count == 1 else f'these {count} runs'}?")
            is not False
        )


@dataclass(frozen=True)
class _Removal:
    """What to remove, and where."""

    known: list[RunsPlace]
    criteria: Criteria
    chosen: Selection
    dry_run: bool


def _remove(
    removal: _Removal,
    visits: Visits,
    patient: Patient,
    show: Show,
    failures: dict[str, ConnectError],
    *,
    asks: bool,
    json: bool,
) -> dict[str, ConnectError]:
    """Show what is chosen, remove it if the user agrees, and show what was removed; raises Stopped.

    Returns `failures` and the hosts that could not be asked during the removal.
    """
    from tflaunch.console.clean_page import cleaned_lines, selection_lines
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.documents.failed_hosts import unreachable_data
    from tflaunch.runs.clean import document

    known, chosen = removal.known, removal.chosen
    screen = Screen()
    with reader_may_leave():
        if not json:
            screen.show(selection_lines(known, chosen, screen))
        if asks and not (removal.dry_run or json or _agreed(chosen, visits, show.reporter)):
            show.reporter.note("nothing was removed")
            return failures
        with visits.interrupts():
            cleaned, more = _carry_out(visits, removal)
        patient.settle()
        failures = failures | more
        result = document(known, chosen, cleaned, removal.dry_run)
        if json:
            screen.write_json({**result, "time": time.time(), "unreachable": unreachable_data(failures)})
        else:
            screen.show(cleaned_lines(result, screen))
        if any(place["failed"] for place in result["places"]):
            show.exit_code = CleanError.exit_code
    return failures


def _carry_out(visits: Visits, removal: _Removal) -> tuple[dict[int, Any], dict[str, ConnectError]]:
    """Remove the runs; return (what each place has removed, by its number; hosts that did not answer)."""
    from tflaunch.runs.clean_records import remove_records

    known, goes = removal.known, removal.chosen.goes
    wanted = {place.names[0]: goes.get(number, ()) for number, place in enumerate(known) if place.names}
    said, failures = visits.clean(wanted, removal.criteria.code_older_s, removal.dry_run, CLEAN_S)
    cleaned: dict[int, Any] = {}
    for number, place in enumerate(known):
        if not place.names:
            cleaned[number] = remove_records(goes.get(number, ()), removal.dry_run)
        elif place.names[0] in said:
            cleaned[number] = said[place.names[0]].fields
    return cleaned, failures
