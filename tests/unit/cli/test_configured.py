"""The configuration and the options of the verbs."""

from __future__ import annotations

import pytest
import typer
import typer.main

from tflaunch.cli import VERBS, application
from tflaunch.inputs.options.in_files import OF_VERB, of_table

# Options of `run` that no configuration sets: what makes one run, what scripts rely on, answers to questions.
_OF_ONE_RUN = {
    "module", "code_dir", "show_files", "ps", "workers", "chief", "evaluator", "ps_hosts", "worker_hosts", "job",
    "job_hosts", "job_gpus", "job_env", "job_args", "job_program", "job_end", "job_grace", "gpus_per_worker", "name",
    "dry_run", "yes", "only", "json",
    "no_dial_check",  # the key is dial_check
}  # fmt: skip


def _options(verb: str) -> set[str]:
    group = typer.main.get_command(application([verb]))
    params = group.commands[verb].params  # type: ignore[attr-defined]
    return {each.name for each in params if each.param_type_name == "option"}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_key_is_an_option_of_its_verb(verb: str) -> None:
    options, keys = _options(verb), {each.name for each in (of_table(verb) if verb in OF_VERB else ())}
    assert keys <= options
    unsaid = {each.name for each in of_table("")} & options - keys
    assert not unsaid, f"OF_VERB of inputs/options/in_files.py lacks their group for {verb}"


def test_each_option_of_run_is_a_key_or_of_one_run() -> None:
    assert _options("run") == {each.name for each in of_table("run")} | _OF_ONE_RUN
