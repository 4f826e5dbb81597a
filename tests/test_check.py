"""`tflaunch check`: what is made of given facts, and the verb on real sshd and on the bed."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent_over_pipes import interpreters
from tests.bed import Bed, FarLauncher
from tests.launcher import Launcher, processes, until
from tests.nvml import Fleet, build
from tests.sshd import SshNetwork, make_key
from tests.test_gpus import facts, gpu
from tflaunch.agent import host_check as agent_check
from tflaunch.console.check_page import document as data
from tflaunch.console.check_page import page
from tflaunch.console.pen import Marks
from tflaunch.hosts import Host
from tflaunch.in_task import check_task
from tflaunch.protocol.errors import ConnectError
from tflaunch.survey.check_answers import CheckAnswers, Clock, HostAnswer, TaskAnswer
from tflaunch.survey.check_findings import Finding, Findings

GIB = 2**30
LIMITS = {"nofile": 1048576, "nproc": None, "memlock": 8 << 20, "core": 0}
VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1", "protobuf": "7.36.2", "numpy": "2.4.6"}
BUILD = {"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": "True"}


def task_answer(**changes: Any) -> TaskAnswer:
    """A task that has told; `tensorflow` and `limits` are changed in part."""
    report = {
        "python": "3.11.7",
        "executable": "/usr/bin/python3",
        "limits": {**LIMITS, **changes.pop("limits", {})},
        "proxies": [],
        "versions": {**VERSIONS, **changes.pop("versions", {})},
        "error": "",
        "tensorflow": {"seconds": 3.0, "build": BUILD, "gpus": 0, **changes.pop("tensorflow", {})},
        **changes,
    }
    return TaskAnswer(report, 0, "", 3.5)


def host_answer(
    name: str,
    *gpus: Any,
    host: dict[str, Any] | None = None,
    held: tuple[int, ...] = (20001, 20072),
    **changes: Any,
) -> HostAnswer:
    told: dict[str, Any] = {
        "facts": dataclasses.replace(
            facts(name, *gpus, disk_free_bytes=500 * GIB, **changes.pop("facts", {})), ports=held
        ),
        "task": task_answer(),
        "clock": Clock(0.0, 0.001),
        "ports": (20001, 20072),
        "cards": tuple(each for each in gpus if not each.busy),
        "system": system(),
    }
    return HostAnswer(Host(name=name, **(host or {})), **{**told, **changes})


def system(**changes: Any) -> dict[str, Any]:
    return {
        "interfaces": [{"name": "eth0", "addresses": ["10.0.0.1"], "mtu": 1500}],
        "infiniband": [],
        "disks": [{"path": "/var/tmp/tflaunch-1000/check-1/a", "free_bytes": 500 * GIB, "free_files": 10**6}],
        "logout": {"kills": False, "session": "", "user": "ada", "linger": False},
        **changes,
    }


def found(*hosts: HostAnswer, **more: Any) -> list[Finding]:
    return Findings(CheckAnswers(hosts, **more)).all


def only(*hosts: HostAnswer, **more: Any) -> Finding:
    [finding] = found(*hosts, **more)
    return finding


# ---- what is made of given facts


def test_nothing_is_found_where_all_is_well() -> None:
    findings = Findings(CheckAnswers((host_answer("a"), host_answer("b"))))
    assert findings.all == []
    assert findings.exit_code(strict=True) == 0


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
            "/usr/bin/python3 -m pip",
        ),
        (
            {"task": task_answer(error="ImportError: libfoo.so.1")},
            "error",
            "ImportError: libfoo.so.1",
            "`setup:`",
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
        ({"facts": {"gpu_note": "NVML: Driver Not Loaded"}}, "error", "Driver Not Loaded", "nvidia-smi"),
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
def test_cards_that_tensorflow_does_not_see(
    tensorflow: dict[str, Any], driver: dict[str, Any], said: str
) -> None:
    told = found(host_answer("a", gpu(0), gpu(1), facts=driver, task=task_answer(tensorflow=tensorflow)))
    assert [said in each.what for each in told] == ([True] if said else [])


def ways(*open_ways: str, hosts: str = "abc") -> dict[str, Any]:
    """Who reaches whom; those not named are dropped."""
    return {
        a: {
            b: {
                "address": f"10.0.0.{ord(b) - 96}",
                "port": 20001,
                "result": 0.2 if a + b in open_ways else ["silent", ""],
            }
            for b in hosts
        }
        for a in hosts
    }


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

    def told(address: str, result: Any) -> list[Finding]:
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


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, False),
        ({"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=no\n"}, False),
        ({"usr/lib/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=root {me}\n"}, False),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillOnlyUsers=eve\n"}, False),
        (
            {
                "etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/50-keep.conf": "[Login]\nKillUserProcesses=no\n",
            },
            False,
        ),
    ],
)
def test_who_is_killed_at_logout(tmp_path: Path, files: dict[str, str], kills: bool) -> None:
    me = agent_check.logout(str(tmp_path))["user"]
    everywhere = "KillExcludeUsers=\n" if me == "root" else ""
    for name, text in {**files, "proc/self/cgroup": "0::/user.slice/user-0.slice/session-3.scope\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        default = "" if "Exclude" in text or "cgroup" in name else everywhere
        (tmp_path / name).write_text(text.format(me=me) + default)
    assert agent_check.logout(str(tmp_path)) == {
        "kills": kills,
        "session": "session-3.scope",
        "user": me,
        "linger": False,
    }
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/ssh.service\n")
    assert not agent_check.logout(str(tmp_path))["kills"]


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


# ---- the page


@dataclasses.dataclass
class Paper:
    """A screen of that width."""

    columns: int | None = 80
    marks: Marks = dataclasses.field(default_factory=Marks)


def shown(*hosts: HostAnswer, columns: int | None = 80, **more: Any) -> list[str]:
    screen: Any = Paper(columns)
    return [line.plain for line in page(Findings(CheckAnswers(hosts, **more)), screen)]


def test_a_page_fits_the_terminal_and_hosts_that_agree_share_a_line() -> None:
    many = [host_answer(f"gpu{n:03}") for n in range(200)]
    odd = [host_answer(f"gpu{n:03}", task=task_answer(versions={"numpy": f"1.{n}"})) for n in range(200, 216)]
    dead = [HostAnswer(Host(name="dead"), error=ConnectError("no route " * 20, "look " * 40))]
    lines = shown(*many, *odd, *dead, outside={"gpu000": {}})
    assert max(map(len, lines)) <= 80
    assert lines[0] == "✓  gpu[000-199]  TensorFlow 2.21.0 · 64 cores · 500 GiB free"
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["TensorFlow"] == ["TensorFlow", "2.21.0"]
    assert rows["NumPy"][:5] == ["NumPy", "2.4.6", "!", "1.200", "gpu200"]
    assert lines[-1] == "✗ 217 hosts, 1 without an answer: 1 error, 16 warnings"


def test_who_reaches_whom_is_a_matrix_where_there_is_room() -> None:
    names = "abc"
    dials = ways("aa", "bb", "cc", "ab", "ba", "ca")
    hosts = [host_answer(name) for name in names]
    lines = shown(*hosts, dials=dials, outside={"a": {}})
    at = lines.index("✗ 6 of 9 connections between the hosts succeed, the slowest in 0.2 ms")
    assert [line.split() for line in lines[at + 1 : at + 5]] == [
        ["from,", "to", "(ms)", *names],
        ["a", "0.2", "0.2", "✗", "no"],
        ["b", "0.2", "0.2", "✗", "no"],
        ["c", "0.2", "✗", "no", "0.2"],
    ]
    narrow = shown(*hosts, dials=dials, outside={"a": {}}, columns=24)
    assert not any("to (ms)" in line for line in narrow)


def test_all_of_it_can_be_told_as_json() -> None:
    findings = Findings(
        CheckAnswers(
            (host_answer("a", gpu(0)), host_answer("b")), ways("aa", "bb", hosts="ab"), {}, {"a": {}}
        )
    )
    told = json.loads(json.dumps(data(findings, 1.0, 70)))
    assert told["exit_code"] == 70
    assert [host["host"] for host in told["hosts"]] == ["a", "b"]
    assert {each["topic"] for each in told["findings"]} == {"network", "gpus"}


# ---- the program that is run


def fake_tensorflow(directory: Path, version: str = "2.21.0", body: str = "") -> Path:
    """A package of that name; returns what PYTHONPATH must hold."""
    (directory / "tensorflow").mkdir(parents=True)
    (directory / "tensorflow/__init__.py").write_text(
        f"""__version__ = {version!r}
class sysconfig:
    get_build_info = staticmethod(lambda: {{"cuda_version": "12.5.1", "is_cuda_build": True}})
class config:
    list_physical_devices = staticmethod(lambda kind: [])
{body}
"""
    )
    return directory


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: "-".join(Path(path).parts[-3:-2]))
@pytest.mark.parametrize(("body", "error"), [("", ""), ("import nowhere", "ModuleNotFoundError: No module")])
def test_every_python_can_tell(tmp_path: Path, python: str, body: str, error: str) -> None:
    path = fake_tensorflow(tmp_path, body=body)
    told = subprocess.run(
        [python, "-c", Path(check_task.__file__).read_text(), "tensorflow"],
        env={"PYTHONPATH": str(path), "http_proxy": "http://nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(told.stdout.rpartition(check_task.MARK)[2])
    assert report["error"].startswith(error)
    assert bool(report["error"]) == bool(error)
    assert report["proxies"] == ["http_proxy"]
    assert set(report["limits"]) == {"nofile", "nproc", "memlock", "core"}
    if not error:
        assert report["versions"]["tensorflow"] == "2.21.0"
        assert report["tensorflow"]["build"]["cuda_version"] == "12.5.1"


# ---- the verb


def document(launcher: Launcher, *words: str | Path, code: int = 0, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(launcher.run("check", *words, "--json", **more).ran(code).out)
    assert told["exit_code"] == code
    return told


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_hosts_that_differ_and_hosts_that_fail(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    new, old = fake_tensorflow(tmp_path / "new"), fake_tensorflow(tmp_path / "old", "2.15.1")
    for _ in range(6):
        network.add()
    odd = network.add(known=False)
    with network.known_hosts.open("a") as lines:  # another key than it shows
        kind, blob = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
        lines.write(f"[{odd.address}]:{odd.port} {kind} {blob}\n")
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(empty)], check=True)
    hosts = [
        *({"name": f"host{n}", "setup": f"export PYTHONPATH={new}"} for n in (1, 2)),
        {"name": "host3", "setup": f"export PYTHONPATH={old}"},
        {"name": "host4", "python": str(empty / "bin/python")},
        {"name": "host5", "setup": ["echo hello there", "false"]},
        {"name": "host6", "python": "/no/such/python"},
        {"name": "host7"},
        {"name": "dead", "ssh": "127.0.0.1", "port": closed_port()},
    ]
    told = document(launcher, launcher.hostfile(hosts), code=69)
    by_host: dict[str, list[dict[str, Any]]] = {}
    for each in told["findings"]:
        for host in each["hosts"]:
            by_host.setdefault(host, []).append(each)

    def said(host: str) -> str:
        return " | ".join(f"{each['level']} {each['topic']}: {each['what']}" for each in by_host[host])

    assert "warning versions: TensorFlow is 2.15.1, on the other hosts 2.21.0" in said("host3")
    assert "error tensorflow: TensorFlow does not import in" in said("host4")
    assert "No module named 'tensorflow'" in said("host4")
    assert "error setup: hello there setup failed with exit code 1" in said("host5").replace("\n", " ")
    assert "error setup: no program /no/such/python on this host" in said("host6")
    assert "error connection:" in said("host7")
    assert "key" in said("host7")
    assert "error connection:" in said("dead")
    assert not [each for each in by_host.get("host1", []) if each["level"] != "note"]
    reached = {f"host{n}" for n in range(1, 7)}
    assert told["dials"].keys() == reached
    assert all(
        isinstance(way["result"], float) and to in reached
        for each in told["dials"].values()
        for to, way in each.items()
    )
    assert launcher.run_directories() == []

    told_people = launcher.run("check", launcher.directory / "hosts.yaml").ran(69).out
    assert "✓  host[1-2] " in told_people
    assert "TensorFlow is 2.15.1, on the other hosts 2.21.0" in told_people
    assert "8 hosts, 2 without an answer" in told_people


def test_tensorflow_itself_is_imported_as_a_task_would(launcher: Launcher) -> None:
    told = document(launcher, launcher.local(1, python=sys.executable))
    [host] = told["hosts"]
    assert host["versions"]["TensorFlow"].startswith("2.")
    assert host["versions"].keys() >= {"Python", "TensorFlow", "Keras", "protobuf", "NumPy"}
    assert host["task"]["report"]["tensorflow"]["gpus"] == 0
    assert launcher.run_directories() == []


def test_without_tensorflow_what_is_installed_is_told(launcher: Launcher, tmp_path: Path) -> None:
    path = fake_tensorflow(tmp_path / "never", body="raise SystemExit(3)")
    hostfile = launcher.local(1, python=sys.executable, env={"PYTHONPATH": str(path)})
    told = document(launcher, hostfile, "--no-tensorflow")
    assert told["hosts"][0]["versions"]["TensorFlow"].startswith("2.")
    assert "tensorflow" not in told["hosts"][0]["task"]["report"]
    [finding] = document(launcher, hostfile, code=70)["findings"]
    assert "SystemExit: 3" in finding["what"]


def test_an_import_that_hangs_is_ended_and_tells_where(launcher: Launcher, tmp_path: Path) -> None:
    path = fake_tensorflow(tmp_path / "slow", body="import time\ntime.sleep(1000)")
    hostfile = launcher.local(1, python=sys.executable, env={"PYTHONPATH": str(path)})
    [finding] = document(launcher, hostfile, "--timeout=2", code=70)["findings"]
    assert finding["what"] == "the import of TensorFlow did not end within 2 s, and was stopped"
    assert any("slow/tensorflow/__init__.py" in line for line in finding["lines"])
    assert launcher.run_directories() == []


@pytest.mark.parametrize("hard", [False, True])
def test_whatever_ends_it_nothing_is_left(launcher: Launcher, tmp_path: Path, hard: bool) -> None:
    body = "import subprocess, time\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\ntime.sleep(1000)"
    path = fake_tensorflow(tmp_path / "slow", body=body)
    hostfile = launcher.local(2, python=sys.executable, env={"PYTHONPATH": str(path)})
    with launcher.start("check", hostfile) as running:
        until(
            lambda: [
                each
                for each in processes()
                if "sleep" in each.words and each.env.get("TFLAUNCH_RUN", "")[:5] == "check"
            ],
            "the import",
        )
        if hard:
            running.process.kill()
        else:
            running.interrupt()
            assert running.end() == 130
            assert "nothing is left on the hosts" in running.err
    launcher.wait_until_nothing_is_left()
    until(lambda: launcher.run_directories() == [], "the directories go")


CARDS = """
class config:
    list_physical_devices = staticmethod(lambda kind: SEEN)
import os
SEEN = [each for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if each in KNOWN]
"""


def test_the_task_is_shown_the_free_cards_of_its_host(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    cards = ("gpu uuid=GPU-0 mem=16384 used=9000", "gpu uuid=GPU-1 mem=16384", "gpu uuid=GPU-2 mem=16384")
    library = build(tmp_path)
    hosts = []
    for number, known in enumerate((["GPU-1", "GPU-2"], ["GPU-1"]), 1):
        network.add(env=Fleet(library, tmp_path / f"fleet{number}", *cards).env)
        path = fake_tensorflow(tmp_path / f"tf{number}", body=f"KNOWN = {known!r}\n{CARDS}")
        hosts.append({"name": f"host{number}", "setup": f"export PYTHONPATH={path}"})
    told = document(launcher, launcher.hostfile(hosts, gpus="auto"), code=70)
    errors = [(each["hosts"], each["what"]) for each in told["findings"] if each["level"] == "error"]
    assert errors == [(["host2"], "TensorFlow sees 1 of 2 free GPUs")]
    assert [each["task"]["report"]["tensorflow"]["gpus"] for each in told["hosts"]] == [2, 1]
    assert [card["busy"] != "" for card in told["hosts"][0]["cards"]] == [True, False, False]


def test_firewalls_clocks_and_disks(bed: Bed, far: FarLauncher) -> None:
    one, two, three = bed.up(3, clock=True)
    two.set_clock(75)
    bed.block(three, one, 22000)
    bed.narrow(one, two, 1400)
    two.small_disk("/small", 2**20)
    hosts = [
        {"name": one.name, "ports": "22000-22009"},
        {"name": two.name, "run_dir": "/small", "ports": "22000-22009"},
        {"name": three.name, "ports": "22000-22009"},
    ]
    words = (far.hostfile(hosts, python=sys.executable), "--no-tensorflow")
    told = document(far, *words, code=70)
    said = {(each["level"], *each["hosts"], each["topic"]): each["what"] for each in told["findings"]}
    assert said["error", "host3", "network"] == (
        "cannot reach host1 at host1:22000: silently dropped (a firewall?)"
    )
    for host, other in (("host1", "host2"), ("host2", "host1")):
        assert said["error", host, "network"].startswith(
            f"cannot reach {other} at {other}:22000: it answers, but"
        )
    assert "s ahead of those of the others" in said["warning", "host2", "clock"]
    assert "1 MiB are free on the disk of /small" in said["error", "host2", "disk"].replace("0 MiB", "1 MiB")
    assert "reaches the ports of the tasks" in said["note", "host1", "host2", "host3", "exposed"]
    assert told["dials"]["host1"]["host3"]["result"] > 0
    assert {each["interface"] for each in told["hosts"]} == {"eth0"}
    assert 70 < told["hosts"][1]["clock"]["ahead_s"] < 80
    assert far.run_directories() == []


def test_a_host_that_freezes_in_the_middle_does_not_keep_the_others(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    hosts = [one.name, {"name": two.name, "setup": ["touch /tmp/there", "sleep 1000"]}]
    hostfile = far.hostfile(hosts, python=sys.executable)
    with far.start("check", hostfile, "--no-tensorflow", "--timeout=600", "--json") as running:
        until(lambda: two.path("/tmp/there").exists(), "its setup")
        two.freeze()
        try:
            told = json.loads(running.done(120.0).ran(69).out)
        finally:
            two.thaw()
    [finding] = [each for each in told["findings"] if each["level"] != "note"]
    assert finding["hosts"] == ["host2"]
    assert "the connection was lost: its agent has sent nothing for 10 s" in finding["what"]
    assert told["dials"].keys() == {"host1"}
    far.wait_until_nothing_is_left()
    until(lambda: far.run_directories() == [], "the directories go")
