"""What Linux does not take as arguments and variables is told with the limit and the number."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tflaunch.hosts import Host, Hostfile
from tflaunch.planning import sent_sizes
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import JobSpec, Role

HOSTS = Hostfile("h", (Host("a"), Host("b")))
LONG, FIT = "x" * 165_000, "x" * 131_071
MANY = tuple("x" * 100_000 for _ in range(30))


@pytest.mark.parametrize(
    ("job", "fact"),
    [
        ({"args": ("1", LONG)}, "argument 2 after -- is 165,000 bytes long; Linux takes 131,071 in one"),
        ({"file_args": (LONG,)}, "argument 1 in the job file is 165,000 bytes"),
        ({"roles": {"data": Role(1, args=(LONG,))}}, "argument 1 of --job-args data is 165,000 bytes"),
        (
            {"env": {"A": LONG}},
            "A of --env is 165,002 bytes long; Linux takes 131,071 in one argument or variable",
        ),
        ({"env": {"A": LONG}, "masked": frozenset("A")}, "A of --env-file is 165,002 bytes"),
        ({"roles": {"ps": Role(env={"A": LONG})}}, "A of --job-env ps is 165,002 bytes"),
        ({"args": ("ü" * 70_000,)}, "argument 1 after -- is 140,000 bytes long"),
        (
            {"args": MANY},
            "the ps tasks get 3,000,270 bytes of arguments and variables; Linux takes 2,097,152 in all",
        ),
        ({"env": {f"A{n}": text for n, text in enumerate(MANY)}}, "the ps tasks get 3,000,3"),
        (
            {"args": MANY[:10], "roles": {"ps": Role(0), "worker": Role(env={"B": FIT[2:]}, args=MANY[:10])}},
            "worker",
        ),
    ],
)
def test_too_much_is_told(job: dict[str, Any], fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        sent_sizes.check(JobSpec((), **job), HOSTS)
    assert fact in caught.value.message
    assert "write it to a file beside the program" in caught.value.hint
    assert len(caught.value.message + caught.value.hint) < 600


def test_what_linux_takes_is_taken() -> None:
    for job in (
        JobSpec((), args=(FIT,), env={"A": FIT[2:]}),
        JobSpec((), args=MANY[:15]),
        JobSpec((), roles={"data": Role(0, args=(LONG,))}),
        JobSpec((), env={"A": FIT[2:]}, roles={"worker": Role(env={"A": FIT[2:]})}),
    ):
        sent_sizes.check(job, HOSTS)
    for words, code in (([FIT], 0), ([FIT + "x"], 7)):
        try:
            subprocess.run([sys.executable, "-c", "", *words], check=True)
            assert code == 0
        except OSError as error:
            assert error.errno == code


def test_the_values_of_a_trial_count_twice() -> None:
    trials = [{"a": "x"}, {"a": FIT[:70_000], "b": FIT[:70_000]}]
    with pytest.raises(UsageError, match=r"TFLAUNCH_PARAMS is 140,0.. bytes long"):
        sent_sizes.check_trials(JobSpec(()), HOSTS, trials)
    with pytest.raises(UsageError, match="a of trial 0 is 165,004 bytes long"):
        sent_sizes.check_trials(JobSpec(()), HOSTS, [{"a": LONG}])
    sent_sizes.check_trials(JobSpec(()), HOSTS, trials[:1])
    sent_sizes.check_trials(JobSpec(()), HOSTS, [])
