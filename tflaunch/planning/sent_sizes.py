"""Whether Linux takes the arguments and variables of the tasks: told before any host is contacted; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tflaunch.hosts import Hostfile
from tflaunch.inputs.variables import ARGUMENT_LIMIT_BYTES
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import PS, WORKER, JobSpec, Role

# A program gets a quarter of its stack for all of these together, and stacks are 8 MiB unless somebody changes that.
ALL_LIMIT_BYTES = 2 * 1024 * 1024
_OF_THE_HOST = 128 * 1024  # left for what the host's shell, the cluster and tflaunch add
_POINTER = 9  # bytes that each text takes besides its own: an address, and the closing NUL
_IN_A_FILE = "write it to a file beside the program, which is shipped with it, and pass the file's name"

Text = tuple[str, str]  # what a message calls it, the text itself


def check(job: JobSpec, hostfile: Hostfile) -> None:
    """Raise UsageError for a text that is too long for Linux, and for too much of them together."""
    for name in dict.fromkeys((PS, WORKER, *job.roles)):
        role = job.role(name)
        if role.count == 0:
            continue
        for env in {tuple(host.env.items()): host.env for host in hostfile.hosts}.values():
            _check(f"the {name} tasks get", [*_arguments(job, role, name), *_variables(job, role, name, env)])


def check_trials(job: JobSpec, hostfile: Hostfile, trials: Sequence[Mapping[str, str]]) -> None:
    """Do what `check` does, for the trials of a sweep: their values come as arguments, and once more as a variable."""
    if not trials:
        return
    check(job, hostfile)
    sizes = [sum(len(name) + len(value) for name, value in params.items()) for params in trials]
    largest = max(range(len(trials)), key=sizes.__getitem__)
    params = trials[largest]
    own = [(f"{name} of trial {largest}", f"--{name}={value}") for name, value in params.items()]
    _check(f"trial {largest} gets", own)
    # Quotes, and what JSON escapes, are not counted: this is not the place to be exact.
    whole = ("TFLAUNCH_PARAMS", "TFLAUNCH_PARAMS=" + " ".join(text for _, text in own))
    env = hostfile.hosts[0].env
    _check(
        f"trial {largest} gets",
        [*own, whole, *_arguments(job, Role(), ""), *_variables(job, Role(), "", env)],
    )


def _arguments(job: JobSpec, role: Role, name: str) -> Iterator[Text]:
    """What the program of that role gets after the cluster flags."""
    if not role.program:
        yield from ((f"argument {n} in the job file", text) for n, text in enumerate(job.file_args, 1))
        yield from ((f"argument {n} after --", text) for n, text in enumerate(job.args, 1))
    yield from ((f"argument {n} of --job-args {name}", text) for n, text in enumerate(role.args, 1))


def _variables(job: JobSpec, role: Role, name: str, of_host: Mapping[str, str]) -> Iterator[Text]:
    """The variables that users set; a later source wins, as in the tasks."""
    found: dict[str, Text] = {}
    for where, env in (("env", of_host), ("--env", job.env), (f"--job-env {name}", role.env)):
        for key, value in env.items():
            option = "--env-file" if where == "--env" and key in job.masked else where
            found[key] = (f"{key} of {option}", f"{key}={value}")
    yield from found.values()


def _check(who: str, texts: Sequence[Text]) -> None:
    sizes = sorted(
        ((len(text.encode("utf-8", "surrogateescape")), what) for what, text in texts), reverse=True
    )
    if sizes and sizes[0][0] > ARGUMENT_LIMIT_BYTES:
        size, what = sizes[0]
        raise UsageError(
            f"{what} is {size:,} bytes long; Linux takes {ARGUMENT_LIMIT_BYTES:,} in one argument or variable",
            _IN_A_FILE,
        )
    total = sum(size + _POINTER for size, _ in sizes)
    if total > ALL_LIMIT_BYTES - _OF_THE_HOST:
        largest = ", ".join(f"{what} ({size:,})" for size, what in sizes[:3])
        raise UsageError(
            f"{who} {total:,} bytes of arguments and variables; Linux takes {ALL_LIMIT_BYTES:,} in all",
            f"the largest are {largest}; {_IN_A_FILE}",
        )
