"""Values that only a shell would expand are told, with the line that does it; all others are left in peace."""

from __future__ import annotations

import subprocess

import pytest

from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.unexpanded import warnings
from tflaunch.protocol.job import JobSpec, Role


def told(env: dict[str, str]) -> list[str]:
    return list(warnings(JobSpec(()), Hostfile("h", (Host("a", env=env), Host("b", env=env)))))


@pytest.mark.parametrize(
    ("value", "what", "line"),
    [
        ("/opt/bin:$PATH", "$PATH in X stays as it is", "export X=/opt/bin:$PATH"),
        ("$HOME", "$HOME in X stays as it is", "export X=$HOME"),
        ("~/data", "~ in X stays as it is", "export X=~/data"),
        ("/a:~me/lib", "~me in X stays as it is", "export X=/a:~me/lib"),
        ("${CONDA_PREFIX}/a.so:$HOME/b", "${CONDA_PREFIX} and $HOME in X stay as they are", ""),
        ("$A:$B/b:~/c", "$A, $B and ~ in X stay as they are", ""),
        ("~/my data:$X", "", 'export X="$HOME/my data:$X"'),
    ],
)
def test_what_a_shell_would_expand_is_told(value: str, what: str, line: str) -> None:
    [text] = told({"X": value})
    assert text.startswith("env: ")
    assert what in text
    assert text.endswith(line)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "/opt/bin",
        "pa$$word",
        "a$b/c",
        "$5",
        "10$",
        "http://h/$a$b",
        "~",
        "a~/b",
        "{index}",
        "$(id)",
        "x:$",
        "^~/",
    ],
)
def test_other_values_are_left_in_peace(value: str) -> None:
    assert told({"X": value}) == []


def test_the_line_that_is_told_does_it() -> None:
    [text] = told({"X": '~/my "data":$Y/c:~/d'})
    line = text.partition("setup: ")[2]
    done = subprocess.run(
        ["/bin/bash", "-c", f'{line}\nprintf %s "$X"'],
        env={"HOME": "/h", "Y": "/y y"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == '/h/my "data":/y y/c:/h/d'


def test_every_source_is_read_and_no_hidden_value_is_shown() -> None:
    job = JobSpec(
        (),
        env={"HERE": "$A/here", "FILE": "$A/secret", "OPTION": "$A/x"},
        masked=frozenset({"FILE"}),
        literal=frozenset({"FILE", "HERE"}),
        roles={"worker": Role(2, env={"R": "~/r", "L": "~/l"}, literal=frozenset({"L"}))},
    )
    hosts = Hostfile("h", (Host("a", env={"X": "$A"}), Host("b")))
    found = list(warnings(job, hosts, as_here={"HERE"}))
    assert [text.partition(": ")[0] for text in found] == [
        "env of a",
        "--env-file",
        "--env",
        "--job-env worker",
    ]
    assert "secret" not in "".join(found)
    assert found[1].endswith("export FILE=…")
