"""The exit codes, as data: what they mean, and which of them each verb has.

`tflaunch --help`, the help of each verb and the reference in the documentation show these tables; the numbers are those
of tflaunch.protocol.errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tflaunch.protocol import errors


class ExitCode(NamedTuple):
    """An exit code, and what it says; `code` is a number, or how it is made of another one."""

    code: int | str
    meaning: str


FAILED = "N"  # the code of a task
SIGNALLED = "128+N"

# What a script can rely on, whichever verb it calls.
EXIT_CODES: tuple[ExitCode, ...] = (
    ExitCode(0, "success"),
    ExitCode(1, "a defect of tflaunch, or its output cannot be written; --stop-on-nan: the loss stays NaN"),
    ExitCode(
        errors.EXIT_USAGE,
        "the command line, the hostfile or the job file is wrong, or you did not agree; nothing was started",
    ),
    ExitCode(FAILED, "a task failed: the exit code of the one that failed first"),
    ExitCode(SIGNALLED, "the same, where signal N ended that task"),
    ExitCode(errors.EXIT_PLAN, "the job does not fit the hosts"),
    ExitCode(
        errors.EXIT_NO_METRIC, "no trial of a sweep printed the metric, or no task that is measured its steps"
    ),
    ExitCode(errors.EXIT_CONNECT, "a host could not be reached, or gave no answer"),
    ExitCode(errors.EXIT_LAUNCH, "a host could not start its tasks; nothing is left running"),
    ExitCode(
        errors.EXIT_RECORD, "a file on this machine, such as the record of the run, could not be written"
    ),
    ExitCode(errors.EXIT_IO, "not all files were fetched, or removed"),
    ExitCode(
        errors.EXIT_RECLAIMED,
        "the engine took the slots back (preempted, out of time, or cancelled); start it again",
    ),
    ExitCode(errors.EXIT_UNCLEAN, "a host was lost, or something may still be alive on it"),
    ExitCode(errors.EXIT_TIMEOUT, "a time limit was reached"),
    ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C"),
    ExitCode(errors.EXIT_STOPPED, "SIGTERM, or tflaunch stop elsewhere"),
)

_WRONG = ExitCode(
    errors.EXIT_USAGE, "the command line or the hostfile is wrong, or you did not agree; nothing was started"
)
_WRONG_QUESTION = ExitCode(
    errors.EXIT_USAGE, "the command line or the hostfile is wrong; nothing was contacted"
)
_WHICH = ExitCode(errors.EXIT_USAGE, "the command line is wrong, or it is unclear which run is meant")
_FIRST = ExitCode(FAILED, "the exit code of the task that failed first")
_SIGNAL = ExitCode(SIGNALLED, "signal N ended the task that failed first")
_NO_HOST = ExitCode(errors.EXIT_CONNECT, "a host could not be reached")
_OTHERS_SHOWN = ExitCode(
    errors.EXIT_CONNECT, "a host could not be asked; the answers of the others are shown"
)
_NOT_STARTED = ExitCode(errors.EXIT_LAUNCH, "a host could not start its tasks; nothing is left running")
_LOST = ExitCode(errors.EXIT_UNCLEAN, "a host was lost, or something may still be alive on it")
_RECLAIMED = ExitCode(errors.EXIT_RECLAIMED, "the engine took the slots back; start it again")
_CTRL_C = ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C; the tasks are stopped")
_STOPPED = ExitCode(errors.EXIT_STOPPED, "SIGTERM, or tflaunch stop elsewhere; the tasks are stopped")
_ASKING_STOPPED = ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C")
_PRINTED = ExitCode(0, "printed")

OF_VERB: Mapping[str, tuple[ExitCode, ...]] = {
    "run": (
        ExitCode(0, "the tasks that decide have succeeded (--done); with --detach: the run has started"),
        ExitCode(1, "--stop-on-nan: the loss stays NaN"),
        ExitCode(
            errors.EXIT_USAGE,
            "the command line, hostfile or job file is wrong, or you did not agree; nothing was started",
        ),
        _FIRST,
        _SIGNAL,
        ExitCode(errors.EXIT_PLAN, "the job does not fit the hosts; --require-gpu: a task does not use its GPUs"),
        _NO_HOST,
        _NOT_STARTED,
        ExitCode(errors.EXIT_RECORD, "the record of the run could not be written"),
        ExitCode(errors.EXIT_IO, "not all files of --fetch were fetched"),
        _RECLAIMED,
        _LOST,
        ExitCode(errors.EXIT_TIMEOUT, "--timeout, --startup-timeout, --stall-timeout or --stop-idle was reached"),
        _CTRL_C,
        _STOPPED,
    ),
    "rerun": (
        ExitCode(errors.EXIT_USAGE, "no such run is on record, or a variable of its --env has no value here"),
        ExitCode("N", "that of tflaunch run"),
    ),
    "up": (
        ExitCode(0, "the servers run; for all other codes, none is left"),
        _WRONG,
        ExitCode(FAILED, "the exit code of the server that failed first"),
        _SIGNAL,
        ExitCode(errors.EXIT_PLAN, "the servers do not fit the hosts"),
        _NO_HOST,
        _NOT_STARTED,
        ExitCode(errors.EXIT_RECORD, "the record of the run, or the file of --spec, could not be written"),
        _RECLAIMED,
        _LOST,
        ExitCode(errors.EXIT_TIMEOUT, "not all servers listened within --startup-timeout"),
        _CTRL_C,
        _STOPPED,
    ),
    "sweep": (
        ExitCode(0, "all trials have succeeded"),
        _WRONG,
        ExitCode(FAILED, "the exit code of the trial that failed first"),
        ExitCode(SIGNALLED, "signal N ended the trial that failed first"),
        ExitCode(errors.EXIT_PLAN, "no host can take a trial"),
        ExitCode(errors.EXIT_NO_METRIC, "no trial printed the metric"),
        _NO_HOST,
        ExitCode(errors.EXIT_LAUNCH, "no trial can start"),
        ExitCode(errors.EXIT_RECORD, "the record of the sweep could not be written, or Optuna's storage has failed"),
        ExitCode(errors.EXIT_IO, "not all files of --fetch were fetched"),
        ExitCode(errors.EXIT_RECLAIMED, "the engine took all slots back; --resume NAME goes on"),
        ExitCode(errors.EXIT_UNCLEAN, "all hosts were lost, or something may still be alive on one"),
        ExitCode(errors.EXIT_TIMEOUT, "a trial took longer than --timeout"),
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C; the trials are stopped, and --resume NAME goes on"),
        ExitCode(errors.EXIT_STOPPED, "SIGTERM, or tflaunch stop elsewhere; the trials are stopped"),
    ),
    "tune": (
        ExitCode(0, "the fastest layout is known"),
        _WRONG,
        ExitCode(FAILED, "the exit code of the first layout's run, where no layout could be measured"),
        ExitCode(errors.EXIT_PLAN, "no layout fits the hosts"),
        ExitCode(errors.EXIT_NO_METRIC, "the tasks print no steps"),
        _NO_HOST,
        _NOT_STARTED,
        ExitCode(errors.EXIT_RECORD, "the record of the search could not be written"),
        ExitCode(errors.EXIT_TIMEOUT, "the first layouts named no step within --timeout"),
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C; the tasks are stopped, and --resume NAME goes on"),
        _STOPPED,
    ),
    "attach": (
        ExitCode(0, "the run has succeeded; if it fails, its own exit code, as of tflaunch run"),
        _WHICH,
        _NO_HOST,
        ExitCode(errors.EXIT_UNCLEAN, "no record says how the run ended"),
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C; the run goes on"),
    ),
    "logs": (
        _PRINTED,
        ExitCode(errors.EXIT_USAGE, "it is unclear which run is meant, or it has no such task"),
        ExitCode(errors.EXIT_CONNECT, "a host could not be reached; the logs on the others are printed"),
        _ASKING_STOPPED,
    ),
    "fetch": (
        ExitCode(0, "all files are here"),
        _WHICH,
        ExitCode(errors.EXIT_CONNECT, "a host could not be reached; the files of the others are here"),
        ExitCode(errors.EXIT_IO, "some files were not copied, or nothing matches; the other files are here"),
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C; the same command continues"),
    ),
    "tensorboard": (
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C, the usual end"),
        ExitCode(errors.EXIT_USAGE, "it is unclear which run is meant, or the port is taken"),
        _NO_HOST,
        ExitCode(errors.EXIT_LAUNCH, "TensorBoard does not start"),
    ),
    "detach": (
        ExitCode(0, "the run goes on without its launcher"),
        _WHICH,
        ExitCode(errors.EXIT_CONNECT, "it cannot be handed over now; its launcher goes on with it"),
        _ASKING_STOPPED,
    ),
    "config": (_PRINTED, ExitCode(errors.EXIT_USAGE, "a configuration file cannot be used")),
    "stop": (
        ExitCode(0, "nothing of the run is alive"),
        _WHICH,
        ExitCode(errors.EXIT_CONNECT, "a host could not be asked; the run is stopped on the others"),
        ExitCode(errors.EXIT_UNCLEAN, "a task is still alive"),
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C; the hosts go on ending the run"),
    ),
    "init": (
        ExitCode(0, "the hostfile is written"),
        ExitCode(errors.EXIT_USAGE, "the command line is wrong, or the file is there already"),
        ExitCode(errors.EXIT_CONNECT, "a host could not be reached; the others are written, if there are any"),
        ExitCode(errors.EXIT_RECORD, "the file could not be written"),
        _ASKING_STOPPED,
    ),
    "gpus": (
        ExitCode(0, "shown"),
        _WRONG_QUESTION,
        _OTHERS_SHOWN,
        _ASKING_STOPPED,
    ),
    "check": (
        ExitCode(0, "a run can start, though there may be warnings"),
        _WRONG_QUESTION,
        ExitCode(errors.EXIT_CONNECT, "a host could not be asked"),
        ExitCode(errors.EXIT_LAUNCH, "a run would fail; with --strict: or there are warnings"),
        _ASKING_STOPPED,
    ),
    "ps": (
        ExitCode(0, "shown, even if no run is alive"),
        _WRONG_QUESTION,
        _OTHERS_SHOWN,
        _ASKING_STOPPED,
    ),
    "status": (
        ExitCode(0, "shown, however the run goes"),
        _WHICH,
        _OTHERS_SHOWN,
        _ASKING_STOPPED,
    ),
    "top": (
        ExitCode(0, "q; the run goes on"),
        ExitCode(errors.EXIT_USAGE, "it is unclear which run is meant, it is over, or there is no terminal"),
        ExitCode(errors.EXIT_CONNECT, "a host could not be reached; the others were watched"),
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C while the hosts were asked; the run goes on"),
    ),
    "report": (
        ExitCode(0, "shown, or written"),
        ExitCode(errors.EXIT_USAGE, "it is unclear which run is meant, or the file cannot be written"),
        ExitCode(errors.EXIT_RECORD, "the record of the run cannot be read"),
    ),
    "stacks": (
        ExitCode(0, "shown"),
        ExitCode(errors.EXIT_USAGE, "it is unclear which run is meant, or it has no such task"),
        _OTHERS_SHOWN,
        _ASKING_STOPPED,
    ),
    "profile": (
        ExitCode(0, "the traces are here"),
        ExitCode(errors.EXIT_USAGE, "it is unclear which run is meant, or it has no such task that runs"),
        ExitCode(errors.EXIT_CONNECT, "no TensorFlow server answers for a task; the traces of others are here"),
        ExitCode(errors.EXIT_RECORD, "a trace could not be written"),
        ExitCode(errors.EXIT_IO, "not all traces that TensorFlow wrote on the hosts could be fetched"),
        ExitCode(errors.EXIT_INTERRUPTED, "Ctrl-C; the run goes on"),
    ),
    "clean": (
        ExitCode(0, "removed, or there was nothing to remove"),
        _WHICH,
        ExitCode(errors.EXIT_CONNECT, "a host could not be asked; the rest is removed"),
        ExitCode(errors.EXIT_IO, "something could not be removed; the rest is"),
        _ASKING_STOPPED,
    ),
    "schema": (_PRINTED, ExitCode(errors.EXIT_USAGE, "there is no such schema")),
    "help": (_PRINTED, ExitCode(errors.EXIT_USAGE, "there is no such command")),
}  # fmt: skip


def rows(codes: Iterable[ExitCode]) -> list[tuple[str, str]]:
    """Return the table's rows for a page."""
    return [(str(code), meaning) for code, meaning in codes]
