"""`tflaunch gpus`: shows the GPUs of all hosts, and who uses them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from tflaunch.api.connecting import reaching
from tflaunch.api.requests.which_hosts import default_source, kind_of_file, load_hosts
from tflaunch.cli.arguments import Hosts
from tflaunch.cli.command import Verb
from tflaunch.cli.reporting import Patient, Show, reporting
from tflaunch.cli.verb_connections import way_to_ask
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.options.declared import option
from tflaunch.inputs.options.groups import OUTPUT
from tflaunch.inputs.options.of_others import AnswerOptions, ListOptions, QuickOptions
from tflaunch.inputs.options.values import TIME_WORD, TimeParser
from tflaunch.protocol.errors import ConnectErrors, UsageError

if TYPE_CHECKING:
    from tflaunch.console.gpus_output import Form
    from tflaunch.hosts import Hostfile
    from tflaunch.survey.gpu_overview import WantedGpus
    from tflaunch.survey.survey import Survey

EVERY = "2s"  # the interval of --watch without a TIME


class GpusCommand(Verb):
    """The class of the command `gpus`."""

    earlier: ClassVar = {"--model": "--gpu-model", "--host": "--hosts"}


@dataclass(repr=False, eq=False)
class AgainOptions:
    """Whether to go on asking, and how often."""

    watch: float | None = option(
        None,
        "--watch",
        "-w",
        parser=TimeParser(0.1),
        metavar="[TIME]",
        help="Go on asking: graphs of use and memory since the start (no history is kept), keys (? lists them).",
        alone=(TIME_WORD, EVERY),
    )
    interval: float | None = option(
        None,
        parser=TimeParser(0.1),
        metavar="TIME",
        help=f"With --watch: ask every TIME instead of every {EVERY}.",
    )


@dataclass(repr=False, eq=False)
class FormOptions:
    """The form of the output."""

    panel = OUTPUT

    all_users: bool = option(
        False, help="Who holds which GPUs since when: each run and each other process, and sums by user."
    )
    topology: bool = option(
        False, help="How the GPUs are connected (NVLink, PCIe), and the networks beside them."
    )
    json: bool = option(
        False, help="Print everything as one JSON document; with --watch: a line for each refresh."
    )
    csv: bool = option(False, help="Print one line per GPU.")
    oneline: bool = option(False, help="Only the free ones, for scripts: gpu01:0,2 gpu02:1")


def gpus(
    hosts: Hosts = None,
    *,
    which: ListOptions,
    again: AgainOptions,
    form: FormOptions,
    answer: AnswerOptions,
    connection: QuickOptions,
) -> None:
    """Show the GPUs of all hosts: their state, who uses them since when, which are free.

    Nothing is installed on the hosts.  GPUs in MIG mode are shown with their instances (3.1: instance 1 of GPU 3).
    """
    from tflaunch.console.gpus_output import GpusOutput
    from tflaunch.hosts import match
    from tflaunch.inputs.amounts import size
    from tflaunch.survey.gpu_overview import WantedGpus
    from tflaunch.survey.known_models import remember_models
    from tflaunch.survey.survey import Survey

    with reporting("stopped before all hosts had answered", json=form.json) as show:
        every_s = _every_s(again.watch, again.interval)
        chosen_form = _form(form, watching=again.watch is not None)
        # A script takes what the line names, so that it names no GPU that is in use.
        free = which.free or form.oneline
        wanted = WantedGpus(
            free, which.gpu_model, size(which.min_free, option="--min-free") if which.min_free else 0
        )
        hostfile = _chosen(hosts, which.only_hosts, connection.connection)
        # Leave some time for the answer, so that a dead host fails with the error of its connection.
        connection.connect_timeout = 0.8 * answer.timeout
        waits = Patient(show.reporter, form.json)
        with reaching(hostfile, connection, show.reporter, watcher=waits, ask=way_to_ask()) as there:
            waits.settle()
            chosen = there.hostfile.hosts
            if there.slots is not None and which.only_hosts:
                chosen = tuple(match(which.only_hosts, there.hostfile))
            survey = Survey(there.connector, chosen, answer.timeout, topology=form.topology or form.json)
            if form.all_users:
                _show_users(survey, wanted, show, json=form.json)
                return
            output = GpusOutput(survey, wanted, which.sort.value, chosen_form)
            try:
                with survey.interrupts():
                    if every_s is not None:
                        output.again_and_again(every_s)
                    elif unreachable := output.once():
                        if form.csv or form.oneline:
                            show.reporter.failures(ConnectErrors(unreachable, len(chosen)))
                        show.exit_code = ConnectErrors.exit_code
            except BrokenPipeError:  # `| head` has what it wanted
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            finally:
                survey.close()
                answered = (each.facts for each in survey.answers())
                remember_models(gpu.name for facts in answered if facts is not None for gpu in facts.gpus)


def _every_s(watch: float | None, interval: float | None) -> float | None:
    if interval is None:
        return watch
    if watch is None:
        raise UsageError("--interval is the time between two looks of --watch", "add --watch")
    if watch not in (seconds(EVERY), interval):
        raise UsageError(
            "--watch and --interval name two times", "name the time once: --watch --interval TIME"
        )
    return interval


def _show_users(survey: Survey, wanted: WantedGpus, show: Show, *, json: bool) -> None:
    """Ask all hosts once, and print who holds which GPUs; raises Stopped."""
    from tflaunch.console.gpu_users_page import show_users
    from tflaunch.survey.gpu_overview import look

    try:
        with survey.interrupts():
            for _ in survey.once():
                pass
    finally:
        survey.close()
    overview = look(survey.answers(), wanted)
    show_users(overview, json=json)
    if overview.unreachable:
        if not json:
            show.reporter.failures(ConnectErrors(overview.unreachable, len(survey.answers())))
        show.exit_code = ConnectErrors.exit_code


def _form(options: FormOptions, *, watching: bool) -> Form:
    forms = {
        "json": options.json,
        "csv": options.csv,
        "oneline": options.oneline,
        "topology": options.topology,
    }
    asked = [name for name, given in forms.items() if given]
    if options.all_users and (asked not in ([], ["json"]) or watching):
        other = "watch" if watching else next(name for name in asked if name != "json")
        raise UsageError(f"--all-users and --{other} are two forms of one thing", f"leave --{other} out")
    if len(asked) > 1:
        raise UsageError(
            f"--{asked[0]} and --{asked[1]} are two forms of one thing", f"leave --{asked[1]} out"
        )
    if watching and asked and asked != ["json"]:
        raise UsageError(f"--watch shows the table, or --json, not --{asked[0]}", f"leave --{asked[0]} out")
    return cast("Form", asked[0] if asked else "")


def _chosen(hosts: str | None, pattern: str, connection: str) -> Hostfile:
    """Return the hosts of HOSTS that match --hosts; without HOSTS, --hosts may name them as in other commands."""
    from tflaunch.hosts import Hostfile, match

    if hosts is None and pattern and (default_source() is None or kind_of_file(pattern) == "hosts"):
        return load_hosts(pattern, connection)
    hostfile = load_hosts(hosts, connection)
    if not pattern or hostfile.wanted is not None:  # slots have their names once they are given
        return hostfile
    return Hostfile(hostfile.source, tuple(match(pattern, hostfile)))
