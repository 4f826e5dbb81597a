"""A job as the text of its program wants it: which flags, by which names, ps or none, a coordinator, which framework.

Only a program that certainly takes no cluster flags gets none, and only one that certainly has no parameter servers
gets no ps unasked.  Where there is doubt, the job stays as it is, for the classic trainers.  There is doubt about
installed packages, text for another Python, and names that the program makes when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tflaunch.code.cluster_words import ALSO_CALLED, FRAMEWORK_VARIABLES, IF_OF_TEXT, RANK_VARIABLES
from tflaunch.code.found import Found
from tflaunch.code.misplaced_words import misplaced
from tflaunch.code.own_places_told import told
from tflaunch.code.program import Program
from tflaunch.code.program_reading import Reading, read
from tflaunch.code.standard_modules import hidden_by
from tflaunch.frameworks import horovod, tensorflow
from tflaunch.frameworks.table import AUTO, named, started_by
from tflaunch.inputs.placeholders import names_in
from tflaunch.protocol.job import CHIEF, EVALUATOR, FLAGS, MASTER, PS, TASK_FLAG, WORKER, JobSpec, Role
from tflaunch.text.numbers import agreeing


def fitted(
    job: JobSpec, program: Program, *, anyway: bool = False, done_said: bool = False, counted: bool = False
) -> JobSpec:
    """Return `job` with the flags, ps and chief that the text of its program wants, unless the user said which.

    The result says what was chosen and why.  `anyway`: pass the flags whatever the program takes.  `done_said`: the
    user said whose success ends the run.  `counted`: hosts have slots, so that the number of tasks is known.
    """
    found, unsaid = read(program, job), job.framework == AUTO
    if unsaid and not (found.tf_config or found.flags):
        # If not all of the program could be read, a name such as RANK alone may mean anything.
        starts = found.starts - FRAMEWORK_VARIABLES if found.doubt else found.starts
        framework = started_by(starts)
        # Without a rendezvous each task would train alone, whatever else the program reads.
        if not found.otherwise or named(framework).rendezvous:
            job = replace(job, framework=framework)
    alone = _alone(found)
    whole = found.spawns or (found.local and not found.local.what.endswith("OneDeviceStrategy"))
    job = replace(job, alone=alone, whole_host=bool(alone and whole))
    if alone and unsaid and not (anyway or counted) and _asks_for_no_tasks(job):
        job = _as_one_task(job, found)
    else:
        job = _as_several(job, found, anyway, done_said)
    return replace(job, notes=(*job.notes, *_blind(job, found, program), *told(found, job)))


def _as_several(job: JobSpec, found: Reading, anyway: bool, done_said: bool) -> JobSpec:
    """Tasks that work together, each told who it is by the words that the program takes."""
    if not anyway and job.flags is not None:
        job = _with_flags(job, found)
    if job.flags is not None:
        job = _with_names(job, found)
    if job.role(PS) == Role():  # the user asked for nothing about ps
        job = _with_ps(job, found)
    job = _with_coordinator(job, found, done_said)
    if found.mirrored and found.by_nccl:
        job = replace(job, collectives="nccl", collectives_at=str(found.by_nccl))
    elif found.mirrored and not (found.by_rings or found.doubt):
        job = replace(job, collectives="auto", collectives_at=str(found.mirrored))
    if found.distributed and found.compiles and found.fits and not (found.keras_chosen or found.estimator):
        strategy = found.distributed.what.rpartition(" ")[2]
        job = replace(job, keras_fit=f"fit under {strategy} ({found.fits.where}); {tensorflow.KERAS_ADVICE}")
    elif found.keras_2 and not found.keras_chosen:
        lacks = f"Variable.ref, which {found.keras_2.what} calls ({found.keras_2.where})"
        job = replace(job, keras_fit=f"{lacks}; {horovod.KERAS_ADVICE}")
    return job


def _blind(job: JobSpec, found: Reading, program: Program) -> Iterator[str]:
    """What the program says itself where tflaunch tells each task something of its own; words that it knows not."""
    if said := misplaced(job.args, program, found):
        yield said
    unseen = (
        "so the program does not see the {} that tflaunch gives each task; to use that one, take the line out"
    )
    if found.sets and not found.flags:
        yield f"{found.sets}, {unseen.format('TF_CONFIG')}"
    if found.fixes and job.role(WORKER).count != 1:
        does, name, *_ = found.fixes.what.split()
        if does == "sets":
            yield f"{found.fixes}, {unseen.format(name)}"
        else:
            yield f"{found.fixes} in every task; each has its own in {RANK_VARIABLES[name.partition('=')[0]]}"
    if found.learns and (files := hidden_by(program)):
        count, names = len(files), ", ".join(files[:4])
        has = agreeing(count, "has the name of a module", "have names of modules")
        hides, it = agreeing(count, "hides it", "hide them"), agreeing(count, "it", "them")
        yield f"{names} {has} of Python's own, and {hides} from all that the program imports: rename {it}"


def _alone(found: Reading) -> str:
    """Why tasks of this program do not work together; "": they do, or that is not known."""
    learns = (
        found.resolves or found.flags or found.framework or found.estimator or found.defines or found.asks
    )
    if found.own_cluster and found.coordinates and not (learns or found.doubt):
        return f"{found.own_cluster}, with all servers in one process"
    if found.spawns and found.meets_here:
        return f"{found.spawns}, and {found.meets_here}"
    knows = found.tf_config or found.framework or found.flags or found.otherwise
    if not found.learns or knows or found.doubt:
        return ""
    local = f", and {found.local}, for the GPUs of one machine" if found.local else ""
    return f"{found.name} reads neither the cluster flags nor TF_CONFIG{local}"


def _asks_for_no_tasks(job: JobSpec) -> bool:
    """Whether the user said of no job how many tasks it has, nor tells the program which of them it is."""
    roles = job.roles.values()
    texts = [*job.file_args, *(text for role in roles for text in role.args)]
    for env, literal in ((job.env, job.literal), *((role.env, role.literal) for role in roles)):
        texts += (text for name, text in env.items() if name not in literal)
    told = {name for text in texts for name in names_in(text)} - {"run"}
    return not told and all(role.count is None for role in roles)


def _as_one_task(job: JobSpec, found: Reading) -> JobSpec:
    """One process, as the program's text knows no other."""
    why = job.alone
    if found.local:
        why = f"{found.local}, for the GPUs of one machine"
    elif not (found.own_cluster or found.spawns):
        why = f"{found.name} reads neither cluster flags nor TF_CONFIG, and uses no strategy"
    whole = job.whole_host and job.role(WORKER).gpus is None
    what = "one task, with all free GPUs of its host" if whole else "one task"
    roles = {**job.roles, PS: Role(0), WORKER: replace(job.role(WORKER), count=1)}
    return _chosen(
        replace(job, roles=roles, flags=None),
        f"{what}: {why}; --workers N starts N that know nothing of each other",
    )


def with_program(job: JobSpec, name: str, program: Program | tuple[str, ...]) -> JobSpec:
    """Return `job` whose tasks of that name run a program of their own: as found here, or as argv on the hosts.

    It gets the cluster flags only if its text names one: it has arguments of its own (`--port={port}`).
    """
    role = job.role(name)
    if isinstance(program, tuple) and not isinstance(program, Program):
        return replace(job, roles={**job.roles, name: replace(role, program=program)})
    found = read(program, job)
    names = found.flags
    takes_flags = job.flags is not None and names is not None
    unread = found.hidden or found.foreign
    learns = takes_flags or found.tf_config or found.framework or found.otherwise or unread
    role = replace(role, program=program.argv, takes_flags=takes_flags, opens_port=bool(learns))
    job = replace(job, roles={**job.roles, name: role})
    if names is None and job.flags is not None:
        job = _chosen(job, f"{name} tasks get no cluster flags: none is in the text of {program.file}")
    return job


def _with_flags(job: JobSpec, found: Reading) -> JobSpec:
    reads = found.tf_config or found.framework or found.local
    if found.own.keeps:
        why = f'{found.own.keeps} (no "$@" is in it)'
        return _chosen(
            replace(job, flags=None), f"the program gets no cluster flags: {why}; to pass them, add --flags"
        )
    if found.own.argv and not (found.own.counts or found.flags or found.argv):
        by_place = f"{found.own.argv.where} takes {found.own.argv.what}, its arguments by their place"
        return _chosen(
            replace(job, flags=None),
            f"the program gets no cluster flags: {by_place}; to pass them, add --flags",
        )
    if reads is None or found.flags:
        return job
    # Programs of frameworks with their own launchers take no flags, also where their text cannot be read here.
    doubt = found.flags_doubt
    if doubt and not named(job.framework).by_rank:
        return _chosen(
            job,
            f"the program gets the cluster flags and TF_CONFIG: {reads}, but {doubt}; if it takes no flags, "
            "add --no-flags",
        )
    job = replace(job, flags=None)
    return _chosen(
        job,
        f"the program gets no cluster flags: {reads}, and none is in its text; to pass them, add --flags",
    )


def _with_ps(job: JobSpec, found: Reading) -> JobSpec:
    without = found.mirrored or found.framework
    if without is None:
        return job
    # MultiWorkerMirroredStrategy refuses a cluster with a ps, whatever packages the program imports.
    unread = found.hidden or (None if found.mirrored else found.foreign)
    if why := found.ps or (unread if not named(job.framework).by_rank else None):
        return _chosen(job, f"ps are started: {why}, though {without}; if it needs none, add --ps 0")
    job = replace(job, roles={**job.roles, PS: Role(0)})
    return _chosen(job, f"no ps is started: {without}, which needs none; to start one, add --ps 1")


def _with_names(job: JobSpec, found: Reading) -> JobSpec:
    """The flags by the names under which the program defines them: `--task_id`, `--task-index`."""
    names = dict(job.flags or {})
    spelt = {name: found.defines[name] for name in FLAGS if name in found.defines}
    for name, others in ALSO_CALLED.items():
        text = [each for each in IF_OF_TEXT.get(name, ()) if each in found.of_text]
        other = next((each for each in (*others, *text) if each in found.defines), None)
        if name not in spelt and other is not None:
            spelt[name] = found.defines[other]
    # Each of these names alone may mean anything else.
    if not ({"ps_hosts", "worker_hosts"} & spelt.keys() and {"job_name", "task_index"} & spelt.keys()):
        job = _with_counts(job, found, spelt)
        own = {"ps", "workers", "worker"} & found.defines.keys()
        whole = {"job_name", "task_index"} <= spelt.keys() and (found.otherwise or found.tf_config)
        return _with_place_alone(job, spelt) if whole and not (own or found.flags_doubt) else job
    told = []
    for name, defined in spelt.items():
        by_user = names.get(name, "") != name or (TASK_FLAG in names and name in ("job_name", "task_index"))
        if not by_user and defined.what != name:
            names[name] = defined.what
            told.append(f"--{defined.what} in place of --{name} ({defined.where})")
    if not told:
        return job
    job = replace(job, flags=names)
    return _chosen(
        job,
        f"flags have the names that the program defines: {', '.join(told)}; to change one, add --flag NAME=OTHER",
    )


def _with_place_alone(job: JobSpec, spelt: Mapping[str, Found]) -> JobSpec:
    """Only the flags that say which task it is: the program defines none for addresses, and would refuse those."""
    names = dict(job.flags or {})
    if any(names.get(name, name) != name for name in FLAGS) or TASK_FLAG in names:
        return job  # the user said which
    place = {name: spelt[name].what for name in ("job_name", "task_index")}
    flags = {**dict.fromkeys(FLAGS, ""), **place}
    given = " and ".join(f"--{name}" for name in place.values())
    return _chosen(
        replace(job, flags=flags),
        f"the program gets {given} alone: it defines no flag for addresses ({spelt['task_index'].where}); to pass all, "
        "add --flags",
    )


def _with_counts(job: JobSpec, found: Reading, spelt: Mapping[str, Found]) -> JobSpec:
    """Say what to write for a program that wants the numbers of ps and workers, and which task it is."""
    counts = [
        next((found.defines[each] for each in IF_OF_TEXT[name] if each in found.defines), None)
        for name in ("ps_hosts", "worker_hosts")
    ]
    if None in counts or not {"job_name", "task_index"} <= spelt.keys():
        return job
    ps, workers = (each for each in counts if each is not None)
    who = f"--{spelt['job_name'].what}={{job}} --{spelt['task_index'].what}={{index}}"
    words = f"--no-flags --job-args 'ps={who}' --job-args 'worker={who}' -- --{ps.what}=N --{workers.what}=N"
    return _chosen(
        job,
        f"{ps.where} defines --{ps.what} and --{workers.what} as numbers, and the flags of tflaunch are lists of "
        f"addresses; for this program, add {words}",
    )


def _with_coordinator(job: JobSpec, found: Reading, done_said: bool) -> JobSpec:
    """A chief where the program needs one, and the end of the run with it where it gives the others their work."""
    has_one = job.role(CHIEF).count is not None or job.others.keys() - {EVALUATOR}
    if found.wants_chief and not (found.distributed or found.flags or found.sets or has_one):
        job = replace(job, roles={**job.roles, CHIEF: replace(job.role(CHIEF), count=1)})
        why = f"{found.wants_chief}, which refuses a cluster without one"
        return _chosen(
            job, f"a chief is started, which trains as a worker does: {why}; to start none, add --job chief=0"
        )
    if not (found.coordinates and found.resolves) or found.flags or found.estimator or found.sets:
        return job
    ps = job.role(PS).count
    if ps == 0 or (found.mirrored and ps is None):
        return job
    why = f"{found.coordinates}, and one task, the chief, must give the others their work"
    if not has_one:
        # It computes nothing itself: all GPUs are the workers'.
        job = replace(job, roles={**job.roles, CHIEF: replace(job.role(CHIEF), count=1, gpus=0)})
        job = _chosen(job, f"a chief is started, without GPUs: {why}; to start none, add --job chief=0")
    if not done_said and job.done == "workers" and {CHIEF, MASTER} & job.others.keys():
        job = _chosen(
            replace(job, done="chief"),
            "the run ends when the chief is done; to wait for the workers, too, add --done workers",
        )
    return job


def _chosen(job: JobSpec, choice: str) -> JobSpec:
    return replace(job, choices=(*job.choices, choice))
