"""Roles on the command line."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tflaunch.api.requests.roles import roles_of
from tflaunch.inputs.options.job_groups import ClusterOptions, RoleOptions
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import Role


def read(words: str, in_file: Mapping[str, Role] | None = None) -> dict[str, Role]:
    """The roles of a command line of only such options."""
    said: dict[str, list[str]] = {}
    for option, value in zip(words.split()[::2], words.split()[1::2], strict=True):
        said.setdefault(option.removeprefix("--").replace("-", "_"), []).append(value)
    one = {name: values[0] for name, values in said.items()}
    cluster = ClusterOptions(
        ps=int(one["ps"]) if "ps" in one else None,
        workers=int(one["worker"]) if "worker" in one else None,
        chief="chief" in one,
        evaluator=int(one["evaluator"]) if "evaluator" in one else None,
        ps_hosts=one.get("ps_hosts"),
        worker_hosts=one.get("worker_hosts"),
    )
    names = ("job", *(f"job_{name}" for name in ("hosts", "gpus", "env", "args", "program", "end", "grace")))
    return roles_of(
        in_file or {},
        cluster,
        RoleOptions(**{name: tuple(said.get(name, ())) for name in names}),
        int(one["gpus_per_worker"]) if "gpus_per_worker" in one else None,
    )


def test_roles_of_the_command_line_go_over_those_of_a_job_file() -> None:
    in_file = {"worker": Role(4, "gpu*", 2), "data": Role(1, env={"X": "1", "Y": "1"}), "evaluator": Role(1)}
    words = (
        "--worker 2 --job data=3 --job-env data=X=2 --job-grace evaluator=9.5 --gpus-per-worker 0 --chief 1"
    )
    assert read(words, in_file) == {
        "worker": Role(2, "gpu*", 0),
        "data": Role(3, env={"X": "2", "Y": "1"}),
        "evaluator": Role(1, grace_s=9.5),
        "chief": Role(1),
    }
    assert read("") == {}


def test_a_program_of_a_role_and_variables_that_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "{index}")
    found = read("--job data=1 --job-program data=server.py --job-env data=HERE --job-env data=B={index}")[
        "data"
    ]
    assert found.program == ("server.py",)
    assert (found.env, found.literal) == ({"HERE": "{index}", "B": "{index}"}, {"HERE"})
    over = read("--job-env data=HERE=1", {"data": found})["data"]
    assert over.literal == set()
    module = RoleOptions(job=("data=1",), job_program=("data=-m pkg.server",))
    assert roles_of({}, ClusterOptions(), module)["data"].program == ("-m", "pkg.server")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--job data", "--job data: not JOB=VALUE"),
        (
            "--job data=1 --job-program data=",
            "--job-program data=: '' is neither a script nor -m and a module",
        ),
        ("--job data=1 --job-program data=-mx", "'-mx' is neither a script nor -m and a module"),
        ("--job-program data=server.py", "--job-program data=server.py: there are no data tasks"),
        ("--job data=many", "--job data=many: 'many' is not a whole number from 0 to 10000"),
        ("--job my-data=1", "--job my-data=1: 'my-data' is not a job name"),
        ("--job data=1 --job data=2", "--job data=2: --job data=1 says it already"),
        ("--worker 1 --job worker=2", "--job worker=2: --workers 1 says it already"),
        ("--chief 1 --job chief=1", "--job chief=1: --chief says it already"),
        ("--ps 0 --job-args ps=x", "--job-args ps=x: there are no ps tasks"),
        ("--ps 0 --job-env ps=TOKEN=secret", "--job-env ps=TOKEN: there are no ps tasks"),
        ("--worker 0 --job-end worker=decides", "--job-end worker=decides: there are no worker tasks"),
        ("--job-gpus data=1", "--job-gpus data=1: there are no data tasks"),
        ("--job-end worker=maybe", "'maybe' is none of decides, stopped, sidecar"),
        ("--job-grace evaluator=long", "'long' is not a time: 90 (seconds)"),
        ("--job-args evaluator='", "cannot be split into words"),
        ("--job-env evaluator=NO_SUCH_NAME", "NO_SUCH_NAME is not set here"),
    ],
)
def test_roles_that_cannot_be(words: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(words)
    assert message in raised.value.message
