"""A job as the text of its program wants it: with cluster flags or without, with ps or without, by which framework.

Only a program that certainly takes no cluster flags gets none, and only one that certainly has no parameter servers
gets no ps unasked.  Where there is doubt, the job stays as it is, for the classic trainers.  There is doubt about
installed packages, text for another Python, and names that the program makes when it runs.
"""

from __future__ import annotations

from dataclasses import replace

from tflaunch.code.cluster_words import FRAMEWORK_VARIABLES
from tflaunch.code.program import Program
from tflaunch.code.program_reading import Reading, read
from tflaunch.planning.frameworks import OF_THEIR_OWN, started_by
from tflaunch.protocol.job import PS, WORKER, JobSpec, Role


def fitted(job: JobSpec, program: Program, *, anyway: bool = False) -> JobSpec:
    """Return `job` with the flags and ps that the text of its program wants, unless the user said which.

    The result says what was chosen and why.  `anyway`: pass the flags whatever the program takes.
    """
    found = read(program, job)
    if job.framework == "auto" and not (found.tf_config or found.flags or found.otherwise):
        # If not all of the program could be read, a name such as RANK alone may mean anything.
        starts = found.starts - FRAMEWORK_VARIABLES if found.doubt else found.starts
        job = replace(job, framework=started_by(starts))
    if not anyway and job.flags is not None:
        job = _with_flags(job, found)
    if job.role(PS) == Role():  # the user asked for nothing about ps
        job = _with_ps(job, found)
    if found.sets and not (found.flags or found.otherwise):
        hides = f"{found.sets}: that hides the TF_CONFIG that tflaunch gives each task"
        job = replace(job, notes=(*job.notes, hides))
    knows = found.tf_config or found.framework or found.flags or found.otherwise
    if found.learns and not (knows or found.doubt):
        local = f", and {found.local}, for the GPUs of one machine" if found.local else ""
        job = replace(job, alone=f"{found.name} reads neither the cluster flags nor TF_CONFIG{local}")
        if not (local or anyway) and job.framework == "auto" and _asks_for_no_tasks(job):
            job = _as_one_task(job, found)
    return job


def _asks_for_no_tasks(job: JobSpec) -> bool:
    """Whether the user said of no job how many tasks it has."""
    return all(role.count is None for role in job.roles.values())


def _as_one_task(job: JobSpec, found: Reading) -> JobSpec:
    """One process, as the program's text knows no other."""
    roles = {**job.roles, PS: Role(0), WORKER: replace(job.role(WORKER), count=1)}
    why = f"{found.name} reads neither cluster flags nor TF_CONFIG, and uses no strategy"
    choice = f"one task: {why}; --workers N starts N that know nothing of each other"
    return _chosen(replace(job, roles=roles, flags=None), choice)


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
    learns = takes_flags or found.tf_config or found.framework or found.otherwise or found.hidden
    role = replace(role, program=program.argv, takes_flags=takes_flags, opens_port=bool(learns))
    job = replace(job, roles={**job.roles, name: role})
    if names is None and job.flags is not None:
        job = _chosen(job, f"no cluster flags for {name}: {program.file} names none of them")
    return job


def _with_flags(job: JobSpec, found: Reading) -> JobSpec:
    reads = found.tf_config or found.framework or found.local
    if reads is None or found.flags:
        return job
    # Programs of frameworks with their own launchers take no flags, also where their text cannot be read here.
    if found.doubt and job.framework not in OF_THEIR_OWN:
        return _chosen(
            job,
            f"the cluster flags are passed, too, though {reads}, because {found.doubt}; --no-flags leaves them out",
        )
    job = replace(job, flags=None)
    return _chosen(job, f"no cluster flags: {reads}, and names none of them; --flags passes them")


def _with_ps(job: JobSpec, found: Reading) -> JobSpec:
    without = found.mirrored or found.framework
    if without is None:
        return job
    if why := found.ps or (found.hidden if job.framework not in OF_THEIR_OWN else None):
        return _chosen(job, f"ps are planned, though {without}, because {why}; --ps 0 leaves them out")
    job = replace(job, roles={**job.roles, PS: Role(0)})
    return _chosen(job, f"no ps: {without}, and does not mention them; --ps N starts N")


def _chosen(job: JobSpec, choice: str) -> JobSpec:
    return replace(job, choices=(*job.choices, choice))
