"""The job file: all options of a run in YAML; inputs/job_model.py says which keys it has.

Its keys are the options of `tflaunch run`, which takes from it whatever the command line does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.inputs.documents import read_file
from tflaunch.protocol.errors import JobFileError, Problem
from tflaunch.protocol.job import CHIEF, MASTER, PS, WORKER, Role

if TYPE_CHECKING:  # YAML and the models are heavy, and most runs have no job file
    from tflaunch.inputs.job_model import JobDocument, RoleSettings
    from tflaunch.inputs.yaml_document import Form, Tree


@dataclass(frozen=True)
class JobFile:
    """The keys that a job file has, and their values."""

    directory: Path  # what its paths are relative to
    program: str | None
    module: str | None
    args: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    options: Mapping[str, Any] = field(
        default_factory=dict
    )  # of `tflaunch run`, as the command line has them
    lists: Mapping[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # likewise; the command line adds to them


def load(source: str) -> JobFile:
    """The job file at that path; raises JobFileError with every problem that was found."""
    from tflaunch.inputs.yaml_document import Tree, shown, validate

    path = Path(source).expanduser()
    try:
        text = read_file(path, source, JobFileError)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "Name the job file, or the program: tflaunch run hosts.yaml trainer.py"
        raise JobFileError([Problem(source, 0, 0, f"cannot be read: {reason}")], hint) from None
    tree = Tree(source)
    root, data = tree.read(text)
    if root is None:
        empty = Problem(source, 0, 0, "the file is empty; it names at least `program:`")
        raise JobFileError(tree.problems or [empty])
    if not isinstance(data, dict):
        tree.report(root, f"{shown(root)} is not a job file: want a mapping with `program:` or `module:`")
        raise JobFileError(tree.problems)
    form = _form()
    if data and not data.keys() & {*form.keys[""], *form.elsewhere}:
        tree.report(
            root, "this is no job file: it has none of a job's keys, `program:` or `module:` above all"
        )
        hint = "Name the job file, or the program: tflaunch run hosts.yaml trainer.py"
        raise JobFileError(tree.problems[-1:], f"{hint}; what is for the program itself comes after --")
    document = validate(data, tree, form)
    if document is not None:
        _check(document, data, tree)
    if tree.problems:
        raise JobFileError(sorted(tree.problems, key=lambda problem: (problem.line, problem.column)))
    assert document is not None  # noqa: S101 - else there were problems
    return _job_file(document, path.absolute().parent)


def _form() -> Form[JobDocument]:
    from tflaunch.inputs.job_model import RoleSettings, model
    from tflaunch.inputs.yaml_document import Form

    return Form(
        model(),
        keys={
            "": model().model_fields,
            "roles": RoleSettings.model_fields,
            "jobs": RoleSettings.model_fields,
        },
        elsewhere={
            **dict.fromkeys(
                ("hosts", "defaults"), "that is a hostfile's, which comes first: hosts.yaml job.yaml"
            ),
            **dict.fromkeys(
                ("ps", "worker", "workers", "chief", "master", "evaluator"), "put it under `roles:`"
            ),
            "script": "it is called `program`",
        },
    )


def _check(document: JobDocument, data: Mapping[str, Any], tree: Tree) -> None:
    """The problems that concern several keys together."""
    if "program" in data and "module" in data:
        tree.report(tree.keys["module",], "there is a `program:` already; leave one of them out")
    elif "program" not in data and "module" not in data and not tree.problems:
        tree.report(tree.values[()], "the file has neither `program:` nor `module:`")
    for kind, jobs in (("roles", document.roles), ("jobs", document.jobs)):
        for job, role in jobs.items():
            if role.program and role.module:
                tree.report(
                    tree.keys[kind, job, "module"], "there is a `program:` already; leave one of them out"
                )
    for job in (CHIEF, MASTER):
        if job in document.roles and (document.roles[job].count or 0) > 1:
            node = tree.values.get(("roles", job, "count"), tree.values["roles", job])
            tree.report(node, f"{job}: a cluster has one {job}, not {document.roles[job].count}")


def _job_file(document: JobDocument, directory: Path) -> JobFile:
    from tflaunch.inputs.options.in_files import of_job_file, values_of

    said = {name: getattr(document, name) for name in document.model_fields_set}
    options, lists, _ = values_of(of_job_file(), said, directory)
    if by_job := tuple(_restart_by_job(document)):
        lists = {**lists, "restart": (*lists.get("restart", ()), *by_job)}
    module = options.pop("module", None)
    return JobFile(
        directory,
        document.program,
        module,
        document.args or (),
        {job: _role(job, settings) for job, settings in (document.roles | document.jobs).items()},
        options,
        lists,
    )


def _restart_by_job(document: JobDocument) -> list[str]:
    return [f"{job}={role.restart}" for job, role in (document.roles | document.jobs).items() if role.restart]


def _role(job: str, said: RoleSettings) -> Role:
    count = 1 if said.count is None and job not in (PS, WORKER) else said.count
    own = ("-m", said.module) if said.module else (said.program,) if said.program else ()
    args = said.args or ()
    return Role(count, said.hosts, said.gpus, dict(said.env), args, said.end, said.grace, program=own)
