"""`tflaunch sweep`: makes a request from the command line, for tflaunch.sweeps.whole_sweep to carry out."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

import typer

from tflaunch.api.carrying_out import carry_out_sweep
from tflaunch.api.connecting import SlotsFor, reaching
from tflaunch.api.requests.sweep import request_of
from tflaunch.cli.background import behind_the_terminal
from tflaunch.cli.reporting import calling_on_end, reporting
from tflaunch.cli.resumed_command import ResumedCommand, command_on_record
from tflaunch.cli.run_command import run_command
from tflaunch.cli.trainer_words import Line, shell_command
from tflaunch.cli.verb_connections import way_to_ask
from tflaunch.inputs.options.declared import Group, Part
from tflaunch.inputs.options.groups import ConnectionOptions
from tflaunch.inputs.options.job_groups import GpuOptions, ProgramOptions, TaskOptions
from tflaunch.inputs.options.of_sweep import SweepOptions
from tflaunch.protocol.errors import UsageError

_SILENT = "A sweep does not show what its trials print; tflaunch logs NAME trial/7 does, also while they run"
_UNWATCHED = "Trials are not watched for hangs: they wait for no other task; --timeout TIME limits each"
_ONE_PROCESS = "A trial is one process; tflaunch run starts clusters"
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?,?", re.IGNORECASE)


class SweepCommand(ResumedCommand):
    """The class of the command `sweep`."""

    instead: ClassVar = {
        **dict.fromkeys(("--restarts", "--restart", "--restart-on", "--restart-window"), "Use --retries N"),
        **dict.fromkeys(
            ("--startup-timeout", "--stall-timeout"), "Use --timeout TIME, which limits each trial"
        ),
        **dict.fromkeys(("--quiet", "-q", "--only", "--show-host"), _SILENT),
        **dict.fromkeys(("--workers", "--ps", "--chief", "--evaluator", "--job"), _ONE_PROCESS),
        **dict.fromkeys(("--threshold", "--no-stacks", "--require-gpu", "--stop-on-nan"), _UNWATCHED),
        "--gpus-per-worker": "Use --gpus-per-trial N",
        "--spares": "The trials of a host that is lost run on the others",
    }

    def check_words(self, verb: str, args: list[str]) -> None:
        """Raise UsageError for a parameter without its own --grid or --random."""
        _refuse_parameters_alone(verb, Line.read(self.params, self.optional_values, args))


def _refuse_parameters_alone(verb: str, line: Line) -> None:
    """Raise UsageError for values that stand apart, with the corrected command.

    `--random lr=0.1..1 layers=1..6`, `--grid lr=0.1 0.2`, `--grid lr 0.1,0.2`.
    """
    option = ""
    lone = ""  # the parameter, if it stood before without `=`
    values_of = ""  # the parameter, if the word before was a value of --grid
    alone: list[str] = []
    apart: list[str] = []
    unjoined: list[str] = []
    words: list[str] = []
    for texts, kind in line.words:
        name = texts[0].partition("=")[0]
        if lone and kind == "plain" and _NUMBER.fullmatch(re.split(r",|\.\.", texts[0])[0]):
            unjoined.append(f"{lone} {texts[0]}")
            words[-1] = f"{lone}={texts[0]}"
            lone = ""
            continue
        lone = texts[1] if name in ("--grid", "--random") and len(texts) == 2 and "=" not in texts[1] else ""
        if values_of and kind == "plain" and _NUMBER.fullmatch(texts[0]):
            apart += texts
            words[-1] = f"{words[-1].rstrip(',')},{texts[0]}"
            continue
        values_of = texts[-1].removeprefix("--grid=").partition("=")[0] if name == "--grid" else ""
        if name in ("--grid", "--random"):
            option = name
        elif option and kind == "plain" and re.fullmatch(r"[A-Za-z_][\w.-]*=.*", texts[0], re.DOTALL):
            alone += texts
            words.append(option)
            values_of = name if option == "--grid" else ""
        words += texts
    if unjoined:
        raise UsageError(
            f"{', '.join(unjoined)}: the name and its values stand in one word, with = between them",
            shell_command(verb, words, line.after),
        )
    if alone:
        raise UsageError(
            f"{' '.join(alone)}: no {option} before it; each parameter needs its own",
            shell_command(verb, words, line.after),
        )
    if apart:
        raise UsageError(
            f"{' '.join(apart)}: the values of --grid stand in one word, with commas between them",
            shell_command(verb, words, line.after),
        )


def sweep(ctx: typer.Context, options: SweepOptions) -> None:
    """Run TRAINER.py once for each set of values, as many at a time as HOSTS have GPUs for, and compare the results.

    Each trial is a process of its own; it gets its values as --NAME=VALUE and in TFLAUNCH_PARAMS (JSON), its number
    in TFLAUNCH_TRIAL.  Each result is recorded as soon as its trial ends.
    """
    from tflaunch.console.sweep_screen import open_reporter
    from tflaunch.sweeps.whole_sweep import dry

    leave = None
    if options.end.detach and not options.start.dry_run:
        if options.results.tensorboard is not None:
            raise UsageError(
                f"--detach --tensorboard {options.results.tensorboard}: nobody would see its address",
                "leave --tensorboard out; later: tflaunch tensorboard NAME",
            )
        leave = behind_the_terminal()
    reporter = open_reporter(json=options.output.json, one_document=options.start.dry_run)
    shown = reporting("stopped; no trial was started, nothing is left", reporter)
    with calling_on_end(options.end.on_end) as on_end, shown as show:
        request = request_of(
            options, reporter, command=command_on_record(ctx), of_one_trial=_command_of_one_trial(ctx)
        )
        if not options.start.dry_run:
            reporter = show.reporter = on_end.begin(request.run.run_id, request.run.command, reporter)
        connection, ask = options.connection, way_to_ask()
        if options.start.dry_run:
            run = request.run
            with reaching(run.hostfile, connection, reporter, SlotsFor(run.run_id), ask=ask) as there:
                run = dataclasses.replace(run, hostfile=there.hostfile)
                show.exit_code = dry(dataclasses.replace(request, run=run), there.connector, reporter)
        else:
            show.exit_code = carry_out_sweep(request, connection, reporter, ask=ask, leave=leave)


def _command_of_one_trial(ctx: typer.Context) -> tuple[str, ...]:
    """Return the command that runs one trial as this command does, up to the trial's arguments.

    It names variables of --env without their values, which may be secrets.
    """
    words = ["--ps", "0", "--workers", "1", "--no-flags"]
    return run_command(ctx, _of_one_trial(), words, renamed={"--gpus-per-trial": "--gpus-per-worker"})


def _of_one_trial() -> set[str]:
    """Return the options of a sweep that say how one trial runs."""
    groups = (GpuOptions, ProgramOptions, TaskOptions, ConnectionOptions)
    names = {option.name for each in groups for option in Group(each, Part(of="sweep")).options}
    return names - {"wait", "module", "show_files", "connect_timeout"} | {"gpus_per_trial", "require_all"}
