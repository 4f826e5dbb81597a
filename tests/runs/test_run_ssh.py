"""`tflaunch run` over real sshd: what reaches the tasks, hosts that are in trouble, launchers that die."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.launcher import TELL, Launcher, Process, Running, alive, told
from tests.support.patience import until, written
from tests.support.sshd import SshNetwork, logins, make_key, path_without
from tflaunch.hosts import fold

QUICK = ("--grace", "2", "--ps-grace", "0.2")
ONE_WORKER = ("--ps=0", "--workers=1", *QUICK)
LEASE = ("--lease=5", "--grace=2")


def names(network: SshNetwork, count: int) -> list[str]:
    """So many hosts, each with an sshd of its own."""
    return [network.add().name for _ in range(count)]


# ---- what reaches the tasks

ARGUMENTS = (
    b"two words",
    b'it\'s "quoted"',
    b"line\nbreak\ttab",
    b"$HOME ${HOME} $(id) `id` !! ~ *",
    b"",
    b"back\\slash \\n",
    b"--flag=--",
    b"--",
    "ü 漢 🙂".encode(),
    b"not UTF-8: \xff\xfe",
)


def test_a_port_behind_a_host_is_where_it_is_dialled(
    network: SshNetwork, launcher: Launcher, out: Path
) -> None:
    first, second = network.add(), network.add()
    network.prepend("Host host*\n  Port 1\n")
    hosts = f"{first.name}:{first.port},{first.user}@{second.name}:{second.port}"
    words = ("run", hosts, launcher.script(TELL), "--ps=0", "--workers=2", f"--env=OUT={out}", *QUICK)
    done = launcher.run(*words).ran()
    assert sorted(task.host for task in told(out).values()) == [first.name, second.name]
    assert f"{hosts.replace(',', ', ')}: the numbers are read as SSH's port, not as slots" in done.sentences


def test_two_ps_and_two_workers_on_four_hosts(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    hosts = names(network, 4)
    done = launcher.run(
        *("run", launcher.hostfile(hosts), launcher.script(TELL), "--ps=2", "--workers=2"),
        *(f"--env=OUT={out}", *QUICK, "--", *ARGUMENTS),
    ).ran()
    assert "succeeded" in done.err
    tasks = told(out)
    assert sorted(tasks) == ["ps/0", "ps/1", "worker/0", "worker/1"]
    assert sorted(task.host for task in tasks.values()) == hosts

    cluster = json.loads(tasks["ps/0"].env["TF_CONFIG"])["cluster"]
    assert {job: len(addresses) for job, addresses in cluster.items()} == {"ps": 2, "worker": 2}
    for name, task in tasks.items():
        job, _, index = name.partition("/")
        assert task.argv == (
            b"trainer.py",
            b"--ps_hosts=" + ",".join(cluster["ps"]).encode(),
            b"--worker_hosts=" + ",".join(cluster["worker"]).encode(),
            f"--job_name={job}".encode(),
            f"--task_index={index}".encode(),
            *ARGUMENTS,
        )
        assert json.loads(task.env["TF_CONFIG"]) == {
            "cluster": cluster,
            "task": {"type": job, "index": int(index)},
        }
        sshd = network.sshds[hosts.index(task.host)]
        assert cluster[job][int(index)].rpartition(":")[0] == sshd.address
        assert {key: task.env[key] for key in ("PYTHONUNBUFFERED", "TF_GRPC_REUSE_PORT")} == {
            "PYTHONUNBUFFERED": "1",
            "TF_GRPC_REUSE_PORT": "true",
        }
        assert task.env["CUDA_VISIBLE_DEVICES"] == ""
        assert task.env["HOME"] == str(sshd.home)
        assert (task.cwd, task.stdin, task.ignored) == (task.here, "", (signal.SIGPIPE, signal.SIGXFSZ))
        assert task.files == ("./trainer.py",)
    assert [logins(sshd) for sshd in network.sshds] == [1, 1, 1, 1]  # one connection does it all


def test_paths_with_spaces_and_quotes_and_ignored_files(
    network: SshNetwork, launcher: Launcher, out: Path
) -> None:
    name = 'it\'s a "project" of $HOME/train er.py'
    script = launcher.script(TELL, name)
    (script.parent / ".gitignore").write_text("secret*\n/data/\n!secret-not.txt\n")
    for file in ("secret.txt", "secret-not.txt", "data/big", "more/data/small", "module.py"):
        (script.parent / file).parent.mkdir(parents=True, exist_ok=True)
        (script.parent / file).write_text("content")
    hostfile = launcher.hostfile(names(network, 1), "my 'hosts'.yaml")
    launcher.run("run", hostfile, name, f"--env=OUT={out}", *ONE_WORKER).ran()
    task = told(out)["worker/0"]
    assert task.argv[0] == b"train er.py"
    assert {*task.files} - {"./.gitignore"} == {
        *("./train er.py", "./module.py", "./secret-not.txt", "./more/data/small"),
    }


def test_code_is_shipped_once_for_each_content(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    hosts = names(network, 2)
    options = ("trainer.py", f"--env=OUT={out}", "--ps=0", *QUICK, "--json")

    def phases(*events: dict[str, Any]) -> list[str]:
        names = [event["name"] for event in events if event["event"] == "phase"]
        return [name for name, _ in itertools.groupby(names)]

    def shipped() -> bool:
        run = launcher.run("run", launcher.hostfile(hosts[:1]), *options, "--workers=1")
        return "shipping" in phases(*run.ran().events)

    def store() -> list[tuple[str, int]]:
        files = launcher.hosts.glob("tflaunch-*/code/*.tree")
        return sorted((path.name, path.stat().st_ino) for path in files)

    script = launcher.script(TELL)
    assert shipped()
    before = store()
    assert len(before) == 1
    os.utime(script)  # another time, the same content
    assert not shipped()
    assert store() == before
    launcher.script(TELL + "# changed\n")
    assert shipped()
    assert len(store()) == 2
    assert {*before} <= {*store()}
    # Damaged where both hosts keep it, and only seen when it is copied: it is sent once more.
    for path in launcher.hosts.glob("tflaunch-*/code/files/*"):
        path.write_bytes(path.read_bytes()[::-1])
    both = launcher.hostfile({"name": host, "address": "127.1"} for host in hosts)  # not taken for loopback
    done = launcher.run("run", both, *options, "--workers=2").ran()
    steps = phases(*done.events)
    assert steps[steps.index("staging") :][:4] == ["staging", "shipping", "staging", "dialling"]
    [warning] = [event["text"] for event in done.events if event["event"] == "warn"]
    assert "are not what came; it is sent again" in warning
    assert warning.startswith(f"{fold(hosts)}: ")


def test_a_module_runs_as_python_m_does(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    launcher.script("", "package/__init__.py")
    launcher.script(TELL, "package/trainer.py")
    launcher.run(
        *("run", launcher.hostfile(names(network, 1)), f"--env=OUT={out}", *ONE_WORKER),
        *("-m", "package.trainer", "--", "a", "--ps", "b"),
    ).ran()
    task = told(out)["worker/0"]
    assert task.argv[0].endswith(b"/package/trainer.py")
    assert task.argv[-3:] == (b"a", b"--ps", b"b")
    assert "./package/trainer.py" in task.files


def test_what_the_hostfile_says_of_a_host(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    (python := launcher.directory / "an other python").write_text(
        f'#!/bin/sh\nTHROUGH=yes exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    place = launcher.directory / "a place"
    place.mkdir()
    (place / "trainer.py").write_text(TELL)
    [plain, special] = names(network, 2)
    settings = {
        "name": special,
        "python": str(python),
        "workdir": str(place),
        "setup": ["export FROM_SETUP='it is set'", "echo said by setup"],
        "env": {"FROM_HOSTFILE": "a $value", "BOTH": "host"},
        "address": "special.example",
        "ports": "21000-21099",
    }
    done = launcher.run(
        *(
            "run",
            launcher.hostfile([plain, settings]),
            launcher.script(TELL),
            "--no-dial-check",
            "--ps=0",
            "--workers=2",
        ),
        *(f"--env=OUT={out}", "--env=BOTH=command", "--env=MINE", "--flag=task_index=task_id", *QUICK),
        env={"MINE": "of the launcher"},
    ).ran()
    by_host = {task.host: task for task in told(out).values()}
    task = by_host[special]
    assert task.env["THROUGH"] == "yes"
    assert (task.cwd, task.files) == (str(place), ("./trainer.py",))
    assert task.env["FROM_SETUP"] == "it is set"
    assert "said by setup" in done.out
    assert (task.env["FROM_HOSTFILE"], task.env["BOTH"]) == ("a $value", "command")
    assert {each.env["MINE"] for each in by_host.values()} == {"of the launcher"}
    assert "FROM_HOSTFILE" not in by_host[plain].env
    assert re.fullmatch(rb"--task_id=[01]", task.argv[4])
    addresses = json.loads(task.env["TF_CONFIG"])["cluster"]["worker"]
    assert any(re.fullmatch(r"special\.example:210\d\d", address) for address in addresses)


def test_no_flags_and_no_sync(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    launcher.script(TELL)  # in the launcher's working directory, which is there on the hosts, too
    launcher.run(
        *("run", launcher.hostfile(names(network, 1)), "trainer.py", f"--env=OUT={out}", *ONE_WORKER),
        *("--no-flags", "--no-sync", "--", "mine"),
    ).ran()
    task = told(out)["worker/0"]
    assert task.argv == (b"trainer.py", b"mine")
    assert task.cwd == str(launcher.code)
    assert not list(launcher.hosts.glob("tflaunch-*/code/*.tree"))


# ---- hosts that are in trouble


def test_a_shell_that_prints_at_login_does_no_harm(
    network: SshNetwork, launcher: Launcher, out: Path
) -> None:
    noisy = network.add(bashrc="echo 'Welcome to the \"cluster\"'; printf '\\0\\377'; echo quota >&2\n")
    launcher.run(
        "run", launcher.hostfile([noisy.name]), launcher.script(TELL), f"--env=OUT={out}", *ONE_WORKER
    ).ran()
    assert told(out)["worker/0"].host == noisy.name


# What sshd then runs is the launcher's own line, but the places where Python may be lead to nothing.
WITHOUT = "sed 's,/usr/[a-z/-]*python[3]*,/none/python,g'"
NO_PYTHON = f'ForceCommand eval "$(printf %s "$SSH_ORIGINAL_COMMAND" | {WITHOUT})"'


def test_several_broken_hosts_are_one_table_and_nothing_is_started(
    network: SshNetwork, launcher: Launcher, out: Path, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other_key")
    network.add()  # host1 is well
    changed = network.add(known=False)
    kind, blob = Path(f"{other}.pub").read_text().split()[:2]
    with network.known_hosts.open("a") as lines:
        lines.write(f"[{changed.address}]:{changed.port} {kind} {blob}\n")
    network.add(known=False)
    for _ in range(2):
        network.add(authorized=[other])
    network.add(path=path_without(tmp_path / "no-python", "python"), options=[NO_PYTHON])
    network.add().kill()
    done = launcher.run(
        *("run", launcher.hostfile([sshd.name for sshd in network.sshds]), launcher.script(TELL)),
        *("--workers=1", f"--env=OUT={out}"),
    ).ran(69)

    assert "6 of 7 hosts could not be used" in done.sentences
    rows = dict(re.findall(r"^  (host\S+) +(.+)$", done.err, re.MULTILINE))
    assert {host: next(cause for cause in CAUSES if cause in row) for host, row in rows.items()} == {
        "host2": "is not the one in",
        "host3": "host key is unknown",
        "host[4-5]": "refused key",  # the same cause: one row
        "host6": "no python3",
        "host7": "refuses the connection",
    }
    for remedy in (
        "ssh-keygen -R",
        "--accept-new",
        "authorized_keys",
        "install Python 3.8",
        "is sshd running",
    ):
        assert remedy in done.sentences
    assert told(out) == {}
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()
    assert launcher.records() == []


CAUSES = ("is not the one in", "host key is unknown", "refused key", "no python3", "refuses the connection")


def test_accept_new_lets_an_unknown_host_in_once(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    sshd = network.add(known=False)
    run = ("run", launcher.hostfile([sshd.name]), launcher.script(TELL), f"--env=OUT={out}", *ONE_WORKER)
    refused = launcher.run(*run).ran(69)
    assert "--accept-new" in refused.sentences
    launcher.run(*run, "--accept-new").ran()
    launcher.run(*run).ran()  # now it is known


def test_the_keys_of_hosts_that_are_unknown_or_have_changed_are_mended_by_what_is_told(
    network: SshNetwork, launcher: Launcher, tmp_path: Path, out: Path
) -> None:
    """Two hosts were installed anew, two are new: the command told removes the old keys, then all are let in."""
    sshds = [network.add(known=False) for _ in range(4)]
    kind, blob = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[:2]
    with network.known_hosts.open("a") as lines:
        lines.writelines(f"[{sshd.address}]:{sshd.port} {kind} {blob}\n" for sshd in sshds[:2])
    run = ("run", launcher.hostfile([sshd.name for sshd in sshds]), launcher.script(TELL), "--workers=4")
    run = (*run, "--ps=0", f"--env=OUT={out}")
    done = launcher.run(*run, "--json").ran(69)
    (event,) = [each for each in done.events if each["event"] == "failures"]
    changed, unknown = event["rows"]
    assert [len(row["lines"]) for row in (changed, unknown)] == [2, 2]
    assert "SHA256:" in changed["lines"][0]
    assert "--accept-new records them all" in unknown["hint"]
    command = changed["hint"].splitlines()[-1]
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    launcher.run(*run, "--accept-new").ran()


def test_through_a_jump_host(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    jump, one, two = network.add(), network.add(), network.add()
    hostfile = launcher.hostfile([one.name, two.name], proxy_jump=jump.name)
    launcher.run(
        "run", hostfile, launcher.script(TELL), "--ps=1", "--workers=1", f"--env=OUT={out}", *QUICK
    ).ran()
    assert sorted(task.host for task in told(out).values()) == [one.name, two.name]
    assert logins(jump) == 1


def test_a_connection_that_max_startups_drops_is_made_again(
    network: SshNetwork, launcher: Launcher, out: Path
) -> None:
    sshd = network.add(options=["MaxStartups 2", "LoginGraceTime 600"])
    with contextlib.ExitStack() as others:
        for _ in range(2):  # two that never log in
            waiting = others.enter_context(socket.create_connection((sshd.address, sshd.port)))
            assert waiting.recv(4) == b"SSH-"
        running = launcher.start(
            "run", launcher.hostfile([sshd.name]), launcher.script(TELL), f"--env=OUT={out}", *ONE_WORKER
        )
        until(lambda: "past MaxStartups" in sshd.log(), "a dropped connection")
    assert running.end() == 0, running.err
    assert told(out)["worker/0"].host == sshd.name


def test_ctrl_c_while_a_host_does_not_answer(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    well, frozen = network.add(), network.add()
    frozen.freeze()
    with launcher.start(
        "run", launcher.hostfile([well.name, frozen.name]), launcher.script(TELL), f"--env=OUT={out}"
    ) as running:
        until(lambda: any(each.is_agent for each in launcher.leftovers()), "the agent of the other host")
        running.interrupt()
        done = running.done().ran(130)
    assert "nothing was started, nothing is left" in done.sentences
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()
    frozen.thaw()


def test_a_host_that_does_not_answer_costs_the_time_limit_and_no_more(
    network: SshNetwork, launcher: Launcher
) -> None:
    frozen = network.add()
    frozen.freeze()
    done = launcher.run(
        "run", launcher.hostfile([frozen.name]), launcher.script(TELL), "--connect-timeout=1"
    ).ran(69)
    assert frozen.name in done.err
    frozen.thaw()


# ---- launchers, agents and connections that die

STUBBORN = """
    import os, pathlib, signal, subprocess, sys, time
    out = pathlib.Path(os.environ["OUT"])
    task = os.environ["TFLAUNCH_TASK"].replace("/", "-")
    if task != "ps-0":
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            (out / ("daemon-" + task)).write_text(str(os.getpid()))
            time.sleep(3600)
    (out / ("main-" + task)).write_text(str(os.getpid()))
    print("here I am", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def stubborn(network: SshNetwork, launcher: Launcher, out: Path) -> Iterator[Running]:
    """A run of one ps and one worker on two hosts; the worker and its daemon ignore every polite signal."""
    hostfile = launcher.hostfile(names(network, 2))
    with launcher.start(
        "run", hostfile, launcher.script(STUBBORN), "--ps=1", "--workers=1", f"--env=OUT={out}", *LEASE
    ) as running:
        running.wait_for("here I am", 2)
        written(out / "daemon-worker-0", "the worker's daemon")
        yield running


def survivors(out: Path) -> list[str]:
    """Which of the processes that wrote their pid into `out` are alive."""
    return [path.name for path in out.iterdir() if alive(int(path.read_text()))]


def test_nothing_survives_a_killed_launcher(launcher: Launcher, stubborn: Running, out: Path) -> None:
    assert sorted(survivors(out)) == ["daemon-worker-0", "main-ps-0", "main-worker-0"]
    stubborn.signal(signal.SIGKILL)
    stubborn.end()
    launcher.wait_until_nothing_is_left()
    assert survivors(out) == []


def test_nothing_survives_a_frozen_launcher(launcher: Launcher, stubborn: Running, out: Path) -> None:
    stubborn.signal(signal.SIGSTOP)
    until(lambda: not survivors(out), "the end of the run by its lease")
    stubborn.signal(signal.SIGCONT)
    done = stubborn.done()
    assert done.code not in (0, 130), done.err
    assert "Traceback" not in done.err
    assert "lease" in done.sentences or "no sign of life" in done.sentences


def host_of(launcher: Launcher, task: str) -> str:
    """The host that runs `task`."""
    return next(
        each.env["TFLAUNCH_HOST"] for each in launcher.leftovers() if each.env.get("TFLAUNCH_TASK") == task
    )


@pytest.mark.parametrize("victims", [("agent",), ("guard",), ("guard", "agent")], ids="+".join)
def test_a_killed_agent_is_a_lost_host_and_its_tasks_are_swept(
    launcher: Launcher, stubborn: Running, out: Path, victims: tuple[str, ...]
) -> None:
    pids = launcher.agents(host_of(launcher, "worker/0"))
    for victim in victims:
        Process(pids[victim], (), {}).kill()
    if victims == ("guard",):
        stubborn.interrupt()  # a guard is missed by nobody
        assert stubborn.end() == 130, stubborn.err
    else:
        done = stubborn.done().ran(76)
        assert "was lost" in done.err
        # Nobody could sweep behind the tasks when both were killed: then it must not be claimed.
        assert ("agent and guard were killed" in done.sentences) == (len(victims) == 2)
        assert ("nothing is left running" in done.sentences) == (len(victims) == 1)
    launcher.wait_until_nothing_is_left()
    assert survivors(out) == []


def test_a_cut_connection_is_a_line_in_the_log(
    network: SshNetwork, launcher: Launcher, stubborn: Running, out: Path
) -> None:
    worker = host_of(launcher, "worker/0")
    next(sshd for sshd in network.sshds if sshd.name == worker).kill_sessions()
    stubborn.wait_for(f"{worker} is out of reach: ")
    stubborn.wait_for(f"{worker} is back after")
    assert len(survivors(out)) > 0
    stubborn.interrupt()
    stubborn.done().ran(130)
    launcher.wait_until_nothing_is_left()
    assert survivors(out) == []


def test_a_host_that_falls_silent_ends_the_run_and_ends_by_itself(
    network: SshNetwork, launcher: Launcher, stubborn: Running, out: Path
) -> None:
    [silent] = (sshd for sshd in network.sshds if sshd.name == host_of(launcher, "worker/0"))
    silent.freeze()  # the host is well, but nobody reaches it any more
    done = stubborn.done().ran(76)
    assert f"{silent.name} was lost" in done.err
    assert "no sign of life" in done.sentences
    assert f"{silent.name}: could not check that nothing is left" in done.sentences
    assert "nothing is left running" not in done.sentences
    launcher.wait_until_nothing_is_left()  # its lease is over
    assert survivors(out) == []
    silent.thaw()


# ---- several runs


def test_two_runs_at_once_on_the_same_hosts(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    trainer = launcher.script(
        """
        import json, os, pathlib, time
        run, out = os.environ["TFLAUNCH_RUN"], pathlib.Path(os.environ["OUT"])
        task = os.environ["TFLAUNCH_TASK"].replace("/", "-")
        (out / f"{run}:{task}").write_text(os.environ["TF_CONFIG"])
        while sum(bool(path.read_text()) for path in out.iterdir()) < 4:
            time.sleep(0.01)
        """
    )
    run = (
        "run",
        launcher.hostfile(names(network, 2)),
        trainer,
        "--ps=1",
        "--workers=1",
        f"--env=OUT={out}",
        *QUICK,
    )
    with launcher.start(*run) as one, launcher.start(*run) as two:
        assert one.end() == 0, one.err
        assert two.end() == 0, two.err
    clusters = {
        path.name.partition(":")[0]: json.loads(path.read_text())["cluster"] for path in out.iterdir()
    }
    assert len(clusters) == 2
    addresses = [address for cluster in clusters.values() for job in cluster.values() for address in job]
    assert len({*addresses}) == 4


def test_two_runs_that_want_the_same_port(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    with socket.socket() as free:  # a port that nobody has, and so no other test
        free.bind(("0.0.0.0", 0))  # noqa: S104
        port = free.getsockname()[1]
    hostfile = launcher.hostfile(names(network, 1), ports=[port, port])
    run = ("run", hostfile, launcher.script(STUBBORN), f"--env=OUT={out}", *ONE_WORKER)
    with launcher.start(*run) as first:
        first.wait_for("here I am")
        second = launcher.run(*run).ran(65)
        assert "port" in second.err
        assert str(port) in second.err
        assert first.process.poll() is None
        first.interrupt()
        assert first.end() == 130
    launcher.wait_until_nothing_is_left()
    with launcher.start(*run) as third:  # the port is free again
        third.wait_for("here I am")
        third.interrupt()
        assert third.end() == 130
