"""`tflaunch stop`: ends a run from any terminal, whatever is left of it."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.api.requests.which_hosts import hosts_to_stop_on
from tflaunch.cli.arguments import LivingRun
from tflaunch.cli.options import parser
from tflaunch.cli.reporting import Show, reporting
from tflaunch.cli.verb_connections import visiting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import OutputOptions, ReachOptions
from tflaunch.inputs.options.of_others import GraceOptions
from tflaunch.inputs.options.values import parse_user
from tflaunch.protocol.errors import ConnectErrors, StopError, UsageError
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.runs.run_states import RunState
    from tflaunch.runs.visits import Finished, Visits


def stop(
    run: LivingRun = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="End all runs of yours that are alive on the hosts; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask.")] = False,
    end: GraceOptions,
    output: Annotated[OutputOptions, Part("json")],
    user: Annotated[
        str | None,
        typer.Option(
            parser=parser(parse_user),
            metavar="NAME",
            help="End a run of this user, who sees that root did; root's log-in on the hosts alone may.",
        ),
    ] = None,
    reach: ReachOptions,
) -> None:
    """End a run on all its hosts, also when its launcher or its agents are dead.

    Without RUN: ends the only run alive, or asks which one.  To repeat it does no harm.
    """
    from tflaunch.api.known_runs import give_back, refuse_unknown
    from tflaunch.runs.record import note_stopped
    from tflaunch.runs.record_list import list_runs
    from tflaunch.runs.run_ids import check_run_id

    with reporting("stopped; no run was ended", json=output.json) as show:
        if run is not None and everything:
            raise UsageError(f"stop {run} --all: which?", "leave one of them out")
        if run is not None:
            check_run_id(run)
        run, hostfile, known_config = hosts_to_stop_on(run, reach.hosts, of_others=bool(user))
        hosts = hostfile.hosts
        waiting = [] if user else [info for info in list_runs() if info.waits]
        visit = visiting(hosts, reach, show.reporter, known_config=known_config, as_user=user or "")
        with visit as visits, visits.interrupts():
            unreachable = visits.open(hosts, reach.connect_timeout)
            if unreachable and len(unreachable) == len(hosts):
                if run is not None and not user and give_back(run):
                    show.reporter.note(f"the engine was asked to take back the slots of {run}")
                raise ConnectErrors(unreachable, len(hosts))
            listed = visits.runs(records=waiting)
            if everything:
                chosen = _all_of(listed.runs, visits, show, yes=yes)
            else:
                chosen = [_choose(run, listed.runs, visits, show)]
            show.stopped = "stopped waiting; the hosts go on ending the run, check with: tflaunch ps"
            ended: dict[str, Mapping[str, Finished]] = {}
            failures = dict(listed.failures)
            for each in filter(None, chosen):
                if not user and give_back(each, waiting=True):
                    show.reporter.note(f"{each} waited for its slots: it has given up its request for them")
                    note_stopped(each)
                    continue
                known = any(listing.run_id == each for listing in listed.runs)
                phase = "stopping" if known else "asking"
                ended[each], failed = visits.finish(each, end.grace, phase, _by(user))
                failures |= failed
        for each, finished in ended.items():
            if not failures and not any(end.known for end in finished.values()):
                refuse_unknown(each, listed.runs)
            _tell(each, finished, show.reporter, sure=not failures)
            if not user:
                give_back(
                    each, [host for host in hosts if host.name in finished and finished[host.name].known]
                )
        if failures:
            show.reporter.failures(ConnectErrors(failures, len(hosts)))
            show.exit_code = ConnectErrors.exit_code
        if not all(end.clean for finished in ended.values() for end in finished.values()):
            show.exit_code = StopError.exit_code


def _by(user: str | None) -> str:
    """Who ends that user's run, in the words that the user will see."""
    if not user:
        return ""
    name = os.environ.get("SUDO_USER") or str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # an account without a name
        name = os.environ.get("SUDO_USER") or getpass.getuser()
    return f"root ({name}@{socket.gethostname()})"


def _tell(run: str, finished: Mapping[str, Finished], reporter: Reporter, *, sure: bool) -> None:
    """Show how the run ended on each host; `sure`: all hosts were asked."""
    from tflaunch.runs.record import note_stopped
    from tflaunch.runs.run_states import restarted_text

    reporter.stopped(run, finished)
    for host, end in finished.items():
        if end.unsure:
            reporter.warn(f"{host}: {end.doubt}")
        elif end.restarted:
            reporter.note(restarted_text(host, end.restarted))
    if sure and all(end.clean for end in finished.values()):
        note_stopped(run)


def _choose(run: str | None, alive: Sequence[RunState], visits: Visits, show: Show) -> str | None:
    """Return the id of the run to stop; None if the user named none and none is alive. Raises UsageError, Stopped."""
    from tflaunch.api.known_runs import meant

    if run is not None:
        return meant(run, alive)
    if not alive:
        show.reporter.note("no run is alive on these hosts")
        return None
    if len(alive) == 1:
        return alive[0].run_id
    if show.reporter.can_ask and (chosen := _ask_which(alive, visits, show.reporter)):
        return chosen
    raise UsageError(
        f"{len(alive)} runs are alive: {', '.join(each.run_id for each in alive)}",
        "say which: tflaunch stop RUN; or all of them: tflaunch stop --all",
    )


def _all_of(alive: Sequence[RunState], visits: Visits, show: Show, *, yes: bool) -> list[str | None]:
    """Return the ids of all runs that are alive, if the user agrees.  Raises UsageError, Stopped."""
    from tflaunch.sessions.asking import agreed

    if not alive:
        show.reporter.note("no run is alive on these hosts")
    elif not yes:
        if not show.reporter.can_ask:
            names = ", ".join(each.run_id for each in alive)
            raise UsageError(
                f"this ends {counted(len(alive), 'run')}: {names}; tflaunch cannot ask whether it may",
                "agree to it: tflaunch stop --all --yes",
            )
        _list(alive, show.reporter)
        if not agreed(visits.sessions, show.reporter, f"stop all {len(alive)}?"):
            raise UsageError("nothing was stopped", "tflaunch stop RUN ends one of them")
    return [each.run_id for each in alive]


def _list(alive: Sequence[RunState], reporter: Reporter) -> None:
    for number, each in enumerate(alive, 1):
        where = f"{counted(len(each.tasks), 'task')} on {counted(len(each.hosts), 'host')}"
        reporter.note(f"{number:3}  {each.run_id}  {where}")


def _ask_which(alive: Sequence[RunState], visits: Visits, reporter: Reporter) -> str | None:
    from tflaunch.sessions.asking import answer

    _list(alive, reporter)
    by_number = {str(number): each.run_id for number, each in enumerate(alive, 1)}
    question = "stop which?"
    while words := answer(visits.sessions, reporter, question):
        if chosen := by_number.get(words.strip()):
            return chosen
        question = f"stop which, 1 to {len(alive)}?"
    return None
