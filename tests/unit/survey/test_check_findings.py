"""What `tflaunch check` makes of given facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.checks import GIB, found, host_answer, only, system, task_answer, ways
from tests.support.gpus import gpu
from tflaunch.hosts import Host
from tflaunch.in_task import check_task
from tflaunch.planning.inventory import Nic
from tflaunch.protocol.errors import ConnectError
from tflaunch.survey.check_answers import CheckAnswers, Clock, HostAnswer, TaskAnswer
from tflaunch.survey.check_bandwidth import Throughput
from tflaunch.survey.check_findings import CheckFinding, Findings


def test_nothing_is_found_where_all_is_well() -> None:
    findings = Findings(CheckAnswers((host_answer("a"), host_answer("b"))))
    assert findings.all == []
    assert findings.exit_code(strict=True) == 0


def test_a_machine_that_is_listed_twice() -> None:
    same = {"facts": {"boot_id": "one", "hostname": "m"}, "host_key": "k"}
    finding = only(host_answer("a", **same), host_answer("b", **same), host_answer("c", host_key="k"))
    assert (finding.level, finding.hosts) == ("error", ("a", "b"))
    assert finding.what == "a,b are one machine, and a run refuses that"
    hidden = {**same, "host_key": "", "host": {"connection": "openssh"}}
    assert only(host_answer("a", **hidden), host_answer("b", **hidden)).level == "error"
    local = {**hidden, "host": {"connection": "local"}}
    assert found(host_answer("a", **local), host_answer("b", **local)) == []


def test_the_odd_one_out_is_the_one_that_differs_from_most() -> None:
    odd = host_answer("c", task=task_answer(versions={"tensorflow": "2.15.1", "numpy": "1.26.4"}))
    answers = CheckAnswers((host_answer("a"), host_answer("b"), odd))
    rows = {row.name: row for row in answers.matrix}
    assert rows["TensorFlow"].common == "2.21.0"
    assert rows["TensorFlow"].odd == {"2.15.1": ["c"]}
    assert rows["Keras"].odd == {}
    assert [(each.level, each.hosts, each.what) for each in Findings(answers).all] == [
        ("warning", ("c",), "TensorFlow is 2.15.1, on the other hosts 2.21.0"),
        ("warning", ("c",), "NumPy is 1.26.4, on the other hosts 2.4.6"),
    ]
    assert Findings(answers).exit_code() == 0
    assert Findings(answers).exit_code(strict=True) == 70


def test_without_a_majority_all_are_named() -> None:
    finding = only(host_answer("a"), host_answer("b", task=task_answer(python="3.9.2")))
    assert finding.hosts == ("a", "b")
    assert finding.what == "Python differs: 3.11.7 on a, 3.9.2 on b"


def test_a_difference_of_limits_is_shown_and_no_warning() -> None:
    answers = CheckAnswers(
        (host_answer("a"), host_answer("b"), host_answer("c", task=task_answer(limits={"core": None})))
    )
    assert {row.name: row.odd for row in answers.matrix}["core file"] == {"unlimited": ["c"]}
    assert Findings(answers).all == []


def test_what_many_hosts_have_in_common_is_told_once() -> None:
    dead = [
        HostAnswer(Host(name=name), error=ConnectError("no route", "try: ssh {host} true"))
        for name in ("n1", "n2", "n3")
    ]
    answers = CheckAnswers((*dead, host_answer("a")))
    [finding] = Findings(answers).all
    assert (finding.level, finding.hosts) == ("error", ("n1", "n2", "n3"))
    assert finding.fix == "try: ssh n1 true"
    assert Findings(answers).exit_code() == 69


@pytest.mark.parametrize(
    ("changed", "level", "said", "fix"),
    [
        (
            {"task": task_answer(error="ModuleNotFoundError: No module named 'tensorflow'", tensorflow={})},
            "error",
            "does not import in /usr/bin/python3: ModuleNotFoundError",
            "have the hosts install it: --requirements FILE, with a line `tensorflow`",
        ),
        (
            {"task": task_answer(error="ImportError: libfoo.so.1")},
            "error",
            "ImportError: libfoo.so.1",
            "have the hosts install it anew: --requirements FILE",
        ),
        ({"task": TaskAnswer(None, None, "SIGILL", 1.0)}, "error", "ended with SIGILL", "another build"),
        ({"task": TaskAnswer(None, 1, "", 1.0, lines=("oops",))}, "error", "ended with code 1", "printed"),
        (
            {"task": TaskAnswer(None, None, "SIGABRT", 9.0, late=True)},
            "error",
            "did not end within",
            "--timeout",
        ),
        (
            {"refused": ConnectError("setup failed with exit code 3", "correct it")},
            "error",
            "code 3",
            "correct",
        ),
        ({"lost": ConnectError("the connection broke", "again")}, "error", "connection was lost", "again"),
        ({"unswept": "it has said nothing for 10 s"}, "error", "may still be alive", "tflaunch stop"),
        ({"task": task_answer(limits={"nofile": 1024})}, "warning", "1024 files and connections", "ulimit"),
        ({"task": task_answer(limits={"nproc": 1024})}, "warning", "1024 processes and threads", "ulimit"),
        ({"system": system(infiniband=["mlx5_0"])}, "warning", "8,192 KiB of memory", "ulimit"),
        ({"task": task_answer(proxies=["http_proxy"])}, "note", "http_proxy is set", ""),
        ({"task": task_answer(tensorflow={"seconds": 67.0})}, "note", "took 1 min 0 s", "local disk"),
        (
            {"system": system(disks=[{"path": "/x/tflaunch-1/r/h", "free_bytes": GIB, "free_files": None}])},
            "warning",
            "1,024 MiB are free on the disk of /x",
            "run_dir",
        ),
        (
            {"system": system(disks=[{"path": "/x", "free_bytes": 2**20, "free_files": 9**9}])},
            "error",
            "1 MiB are free",
            "run_dir",
        ),
        (
            {"system": system(disks=[{"path": "/x", "free_bytes": 2**40, "free_files": 3}])},
            "warning",
            "3 inodes are free",
            "run_dir",
        ),
        (
            {"system": system(logout={"kills": True, "session": "s", "user": "ada", "linger": True})},
            "warning",
            "KillUserProcesses=yes",
            "KillExcludeUsers=ada or KillUserProcesses=no in /etc/systemd/logind.conf there; `loginctl",
        ),
        ({"facts": {"gpu_note": "NVML: Driver Not Loaded"}}, "error", "Driver Not Loaded", "modprobe nvidia"),
        ({"host": {"ports": (22000, 22009)}, "held": ()}, "error", "0 of 10 are free", "ss -tlnp"),
    ],
)
def test_what_is_found_of_one_host(changed: dict[str, Any], level: str, said: str, fix: str) -> None:
    finding = only(host_answer("a", **changed))
    assert (finding.level, finding.hosts) == (level, ("a",))
    assert said in finding.what
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("tensorflow", "driver", "said"),
    [
        ({"gpus": 0}, {"cuda": "12.4"}, "TensorFlow sees 0 of 2 free GPUs"),
        ({"gpus": 0, "build": {"is_cuda_build": "False"}}, {"cuda": "12.4"}, "built without CUDA"),
        ({"gpus": 0}, {"cuda": "11.8"}, "built for CUDA 12.5.1, the driver serves 11.8 at most"),
        ({"gpus": 2}, {"cuda": "12.4"}, ""),
    ],
)
def test_gpus_that_tensorflow_does_not_see(
    tensorflow: dict[str, Any], driver: dict[str, Any], said: str
) -> None:
    told = found(host_answer("a", gpu(0), gpu(1), facts=driver, task=task_answer(tensorflow=tensorflow)))
    assert [said in each.what for each in told] == ([True] if said else [])


def test_blocked_ways_are_folded_by_what_they_lead_to() -> None:
    dials = ways("aa", "bb", "cc", "ab", "ba", "ca")
    told = found(host_answer("a"), host_answer("b"), host_answer("c"), dials=dials, outside={"a": {}})
    assert {(each.hosts, each.what) for each in told} == {
        (("a", "b"), "cannot reach c at 10.0.0.3:20001: silently dropped (a firewall?)"),
        (("c",), "cannot reach b at 10.0.0.2:20001: silently dropped (a firewall?)"),
    }
    assert all("`ports:` in the hostfile" in each.fix for each in told)


def test_hosts_that_all_keep_each_other_out_are_one_finding() -> None:
    names = [f"n{number}" for number in range(40)]
    dials = {
        a: {b: {"address": b, "port": 1, "result": 0.1 if a == b else ["silent", ""]} for b in names}
        for a in names
    }
    finding = only(*map(host_answer, names), dials=dials, outside={"a": {}})
    assert finding.hosts == tuple(names)
    assert finding.what == "cannot reach each other at port 1: silently dropped (a firewall?)"


def test_who_reaches_the_ports_from_outside_is_told() -> None:
    dials = ways("aa", hosts="a")

    def told(address: str, result: Any) -> list[CheckFinding]:
        return found(host_answer("a"), dials=dials, outside={"a": {address: {"port": 1, "result": result}}})

    [finding] = told("10.0.0.1", 0.3)
    assert (finding.level, finding.topic) == ("note", "exposed")
    assert "asks for no password" in finding.what
    [finding] = told("8.8.8.8", 0.3)
    assert finding.level == "warning"
    assert "at a public address" in finding.what
    assert told("8.8.8.8", ["silent", ""]) == []
    [finding] = found(host_answer("a"), dials=dials)  # this machine is one of the hosts
    assert finding.level == "note"
    assert "cannot tell which others" in finding.what


def test_a_clock_is_wrong_by_more_than_the_answer_took() -> None:
    def hosts(*ahead: float, within: float = 0.01) -> list[HostAnswer]:
        return [host_answer(f"h{n}", clock=Clock(each, within)) for n, each in enumerate(ahead)]

    assert found(*hosts(0.1, -0.5, 1.0)) == []
    finding = only(*hosts(0.0, 75.0, 0.1))
    assert finding.hosts == ("h1",)
    assert "1 min 15 s ahead of those of the others" in finding.what
    assert found(*hosts(0.0, 75.0, 0.1, within=80.0)) == []
    assert "behind this machine's" in only(*hosts(-30.0)).what
    assert only(*hosts(0.0, -30.0)).hosts == ("h1",)
    assert found(*hosts(90.0, 90.0, 90.0)) == []  # it is this machine that is wrong; no run minds


def test_the_interface_that_is_dialled_is_found() -> None:
    faces = [
        {"name": "eth0", "addresses": ["192.168.1.7"], "mtu": 1500},
        {"name": "ib0", "addresses": ["10.0.0.1"], "mtu": 9000},
        {"name": "docker0", "addresses": ["172.17.0.1"], "mtu": 1500},
    ]
    wide = host_answer("a", system=system(interfaces=faces))
    narrow = [
        host_answer(name, system=system(interfaces=[{"name": "eth0", "addresses": [address], "mtu": 1500}]))
        for name, address in (("b", "10.0.0.2"), ("c", "10.0.0.3"))
    ]
    everything = [a + b for a in "abc" for b in "abc"]
    told = found(wide, *narrow, dials=ways(*everything), outside={"a": {}})
    assert [(each.level, each.hosts, each.what) for each in told] == [
        ("warning", ("a",), "MTU is 9000, on the other hosts 1500"),
        ("note", ("a",), "it is in several networks (eth0, ib0); other hosts call its tasks through ib0"),
    ]
    bridge = {"a": {"a": {"address": "172.17.0.1", "port": 1, "result": 0.1}}}
    [finding] = found(wide, dials=bridge, outside={"a": {}})
    assert "docker0, a bridge within the host" in finding.what


def test_what_a_program_has_printed_last_is_kept_short() -> None:
    stacks = b"".join(b'  File "/f.py", line %d in f\n' % n for n in range(30))
    told = TaskAnswer.from_log(b"why\n\nFatal Python error: Aborted\n\n" + stacks, None, "SIGABRT", 1.0, True)
    assert told.report is None
    assert told.lines[:3] == ("why", "Fatal Python error: Aborted", '  File "/f.py", line 0 in f')
    assert len(told.lines) == 6
    report = task_answer().report
    log = f"noise\n\n{check_task.MARK}{json.dumps(report)}\nmore\n".encode()
    told = TaskAnswer.from_log(log, 0, "", 1.0, False)
    assert (told.report, told.lines) == (report, ("noise",))
    assert TaskAnswer.from_log(check_task.MARK.encode() + b'{"err', 1, "", 1.0, False).report is None
    assert TaskAnswer.from_log(b"\xff\n", 1, "", 1.0, False).lines == ("\ufffd",)


def test_a_network_that_is_slower_than_its_link_says() -> None:
    """That of the addresses, too; of a link that is faster than one connection can fill, no more is expected."""

    def told(link: int | None, bits_per_s: float) -> list[str]:
        hosts = [
            host_answer(
                name,
                facts={"nics": (Nic("eth0", (f"10.0.0.{number}/24",), link),)},
                system=system(interfaces=[{"name": "eth0", "addresses": [f"10.0.0.{number}"], "mtu": 1500}]),
            )
            for number, name in enumerate("ab", 1)
        ]
        measured = {"a": {"b": Throughput(bits_per_s)}, "b": {"a": Throughput(bits_per_s / 2)}}
        dials = ways("aa", "ab", "ba", "bb", hosts="ab")
        findings = found(*hosts, dials=dials, bandwidth=measured)
        return [each.what for each in findings if "no way between" in each.what]

    assert told(10_000, 0.9e9) == ["eth0 (10 Gbit/s): no way between the hosts had more than 900 Mbit/s"]
    assert told(1000, 0.9e9) == told(100_000, 4e9) == told(None, 1e6) == []
    assert told(100_000, 3e9) == ["eth0 (100 Gbit/s): no way between the hosts had more than 3 Gbit/s"]
