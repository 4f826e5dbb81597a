"""Names and ranges of hosts: matched, expanded, folded."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.hostfiles import host
from tflaunch.hosts import Hostfile, expand, fold, match
from tflaunch.inputs import hostnames
from tflaunch.protocol.errors import UsageError

CLUSTER = Hostfile(
    "hosts.yaml",
    (
        *(host(f"gpu0{i}", labels={"rack": "a" if i < 3 else "b"}) for i in range(1, 5)),
        host("big", labels={"rack": "b"}),
        host("login"),
    ),
)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu02", "gpu02"),
        ("big,gpu[03-02]", None),
        ("big,gpu[02-03]", "big gpu02 gpu03"),
        ("gpu*", "gpu01 gpu02 gpu03 gpu04"),
        ("gpu0?,big", "gpu01 gpu02 gpu03 gpu04 big"),
        ("gpu[01-02]*", "gpu01 gpu02"),
        ("rack=b", "gpu03 gpu04 big"),
        ("@rack=b", "gpu03 gpu04 big"),
        ("rack=*", "gpu01 gpu02 gpu03 gpu04 big"),
        ("gpu*!gpu02", "gpu01 gpu03 gpu04"),
        ("gpu*,login!rack=a", "gpu03 gpu04 login"),
        ("gpu*&rack=b", "gpu03 gpu04"),
        ("gpu*^rack=b", "gpu01 gpu02 big"),
        ("gpu01,gpu01", "gpu01"),
        ("gpu05", None),
        ("gpu[03-05]", None),
        ("x*", None),
        ("rack=c", None),
        ("rack=b!rack=b", None),
        ("", None),
        ("gpu[1-99999999]", None),
        ("gpu[", None),
        ("@nodes", None),
    ],
)
def test_match(pattern: str, names: str | None) -> None:
    if names is None:
        with pytest.raises(UsageError):
            match(pattern, CLUSTER)
    else:
        assert [host.name for host in match(pattern, CLUSTER)] == names.split()


def test_match_says_what_there_is() -> None:
    with pytest.raises(UsageError) as caught:
        match("gpu[03-06]", CLUSTER)
    assert caught.value.message == "hosts.yaml has no host gpu[05-06]"
    assert caught.value.hint == "Its hosts are gpu[01-04],big,login; its labels rack=a, rack=b."


def test_expand_and_fold() -> None:
    assert expand("b,gpu[01-02].lab,gpu01.lab") == ["b", "gpu01.lab", "gpu02.lab"]
    assert fold(f"gpu{i:02}.lab" for i in range(1, 17)) == "gpu[01-16].lab"
    assert fold(["a b", "n2", "@x", "n1", "[", "", "n1"]) == "n[1-2],a b,@x,[,"
    assert fold([]) == ""
    with pytest.raises(UsageError, match="stands for more than 10,000 hosts"):
        expand("a[1-6000],b[1-6000]")


@pytest.mark.parametrize("count", [200, 2000])
def test_folded_names_unfold_again(count: int) -> None:
    pick = random.Random(count)  # noqa: S311
    names = {f"r{pick.randrange(40)}n{pick.randrange(40)}-{pick.randrange(9)}.lab" for _ in range(count)}
    assert set(expand(fold(names))) == names


@given(st.from_regex(r"[a-z]{1,3}(\[[0-9,/-]{1,9}\]){0,2}[a-z]?", fullmatch=True))
@example("a[0-016]")
@example("a[1-1,1]")
def test_a_checked_range_expands_to_as_many(pattern: str) -> None:
    try:
        size = hostnames.check(pattern)
    except ValueError:
        return
    assert 1 <= len(expand(pattern)) <= size
    if "," not in pattern:
        assert len(expand(pattern)) == size
