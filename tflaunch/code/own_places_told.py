"""What the user must write, or know, for a program that learns its place by words of its own: sentences of the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tflaunch.code.cluster_words import ALSO_CALLED, BY_FLAG, BY_VARIABLE, HOSTS_OF_OTHERS, IF_OF_TEXT
from tflaunch.code.found import plain_name
from tflaunch.code.own_places import Own
from tflaunch.code.program_reading import Reading
from tflaunch.frameworks.table import named
from tflaunch.protocol.job import PS, WORKER, JobSpec

_LOOPBACK = {"localhost", "127.0.0.1", "0.0.0.0", "::1", ""}  # noqa: S104 - names, not what is listened on
_FOR = {"job_name": "{job}", "task_index": "{index}", "chief_hosts": "{chief_host}:{chief_port}"}
_SHOWN = 4


def told(found: Reading, job: JobSpec) -> Iterator[str]:
    """Yield the sentences for that program, as `job` starts it."""
    by_rank = named(job.framework).by_rank
    jobs = [
        name for name in (PS, WORKER, *job.others) if job.role(name).count != 0 and not job.role(name).program
    ]
    yield from _of_arguments(found.own, job, jobs)
    if by_rank:
        yield from _of_flags(found, job)
    yield from _of_variables(found.own, job, jobs)
    yield from (_of_meeting(found, job) if by_rank else _of_addresses(found))


def _given(job: JobSpec) -> list[str]:
    return [*job.args, *job.file_args, *(each for role in job.roles.values() for each in role.args)]


def _to_each(jobs: Iterable[str], text: str) -> str:
    return " ".join(f"--job-args '{name}={text}'" for name in jobs)


def _of_arguments(own: Own, job: JobSpec, jobs: list[str]) -> Iterator[str]:
    """Arguments that the program takes by their place, and of which there are none."""
    if own.keeps and _given(job):
        yield f'{own.keeps}: write "$@" after the program in it, or none of these arguments arrives there'
    if _given(job):
        return
    if own.argv and not own.counts and not job.flags:
        what, text = (
            f"{own.argv.where} takes {own.argv.what}",
            "{index}" if len(jobs) == 1 else "{job} {index}",
        )
    elif own.wanted and not own.commands:
        what = f"{next(iter(own.wanted.values()))} wants the arguments {', '.join(own.wanted)}"
        text = " ".join(map(_stands_for, own.wanted))
    else:
        return
    each = (
        ""
        if jobs == [WORKER] and job.count(WORKER) == 1
        else f", or to each task its own: {_to_each(jobs, text)}"
    )
    yield f"{what}, and there are none: add them after --{each}"


def _stands_for(name: str) -> str:
    """What to write for an argument of that name."""
    plain = plain_name(name)
    for canonical, others in ALSO_CALLED.items():
        if plain in (canonical, canonical.replace("_", ""), *others, *IF_OF_TEXT.get(canonical, ())):
            return _FOR.get(canonical, f"{{{canonical}}}")
    return "{index}" if plain == "index" else BY_FLAG.get(plain, plain.upper())


def _of_flags(found: Reading, job: JobSpec) -> Iterator[str]:
    """Flags for what tflaunch tells by variables that the program does not read."""
    own = found.own
    if {plain_name(each.partition("=")[0]) for each in _given(job)} & {*own.flags, "local_rank"}:
        return
    values = {name: BY_FLAG[name] for name in own.flags}
    reads = {"RANK", "JAX_PROCESS_ID"} & found.starts
    if not reads and "{rank}" in values.values() and len(set(values.values())) > 1:
        text = " ".join(f"--{own.flags[name].what}={value}" for name, value in values.items())
        where = own.flags[next(name for name, value in values.items() if value == "{rank}")]
        yield f"{where.where} takes the rank from a flag, --{where.what}: add {_to_each([WORKER], text)}"
    elif "LOCAL_RANK" not in found.starts and "local_rank" in own.left_open:
        flag = found.defines["local_rank"]
        yield (
            f"{flag.where} wants --{flag.what}, which torch.distributed.launch passes and tflaunch does not: add "
            f"-- --{flag.what}=0, for each task has a GPU of its own"
        )


def _of_variables(own: Own, job: JobSpec, jobs: list[str]) -> Iterator[str]:
    """Variables of other launchers that the program cannot do without."""
    asked = {each.partition("_")[0] for each in own.asks - own.reads.keys() - own.may_read.keys()}
    by_user = {name for env in (job.env, *(role.env for role in job.roles.values())) for name in env}
    missing = [
        name
        for name in own.reads
        if name in BY_VARIABLE.keys() | HOSTS_OF_OTHERS
        and name not in by_user
        and name.partition("_")[0] not in asked  # it looks first which launcher has started it
    ]
    if not missing:
        return
    missing += [name for name in own.may_read if name in BY_VARIABLE and name not in {*missing, *by_user}]
    words = []
    filled = {name: BY_VARIABLE[name] for name in missing if name in BY_VARIABLE}
    if "COORDINATOR_PORT" in filled and "COORDINATOR_ADDRESS" in filled:
        filled["COORDINATOR_ADDRESS"] = "{chief_host}"
    if filled and PS not in jobs:  # a ps has no rank
        words.append("add " + " ".join(f"--env '{name}={value}'" for name, value in filled.items()))
    if len(filled) < len(missing):
        words.append("the hosts of this run are in TF_CONFIG")
    what = f"{own.reads[missing[0]]} reads {', '.join(missing[:_SHOWN])}, which no task gets"
    yield f"{what}: {'; '.join(words)}" if words else what


def _of_meeting(found: Reading, job: JobSpec) -> Iterator[str]:
    """An address for rank 0 that stands in the text of a program of PyTorch's or JAX's."""
    own, ours = (
        found.own,
        "JAX_COORDINATOR_ADDRESS" if job.framework == "jax" else "MASTER_ADDR and MASTER_PORT",
    )
    if own.meets and job.count(WORKER) != 1:
        yield f"{own.meets.where} has all tasks meet at {own.meets.what}; where rank 0 of this run is, says {ours}"
    elif own.master and found.spawns and own.master.what not in _LOOPBACK:
        yield f"{own.master.where} has its processes meet at {own.master.what}: that must be an address of their host"


def _of_addresses(found: Reading) -> Iterator[str]:
    """Addresses of TensorFlow's servers that stand in the text, where the tasks of a run have others."""
    own = found.own
    if own.dials and not own.serves:
        yield (
            f"{own.dials.where} calls a server at {own.dials.what}, which this run does not start: `tflaunch up` "
            "starts servers, and prints their addresses"
        )
    hosts = ("ps_hosts", "worker_hosts")
    names = {each for name in hosts for each in (name, *ALSO_CALLED[name], *IF_OF_TEXT[name])}
    told = found.tf_config and not (found.sets or found.tf_config.what.startswith("sets"))
    takes = told or any(name in names or name.endswith("_hosts") for name in found.defines)
    unread = found.hidden or found.foreign or found.any_flags
    if own.serves and own.address and not (takes or found.own_cluster or unread):
        yield (
            f"{own.address.where} has the address {own.address.what} in its text, and the program takes none of this "
            "run's: its servers are there, not where the plan says; let it take the addresses from TF_CONFIG"
        )
    if len(own.fixed) == 1:
        task = own.fixed[0]
        yield f"{task.where} starts the server of {task.what} in every task; each has its own place in TF_CONFIG"
