"""Tasks, from their arguments to their end: the agent as it is shipped, over pipes, with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_over_pipes import (
    ESCAPE,
    Host,
    failure,
    gone,
    marked,
    running,
    shell,
    staged,
    swept,
    task,
)
from tests.support.patience import until
from tflaunch.agent.host import processes
from tflaunch.planning.inventory import HostFacts


def test_from_hello_to_swept(every_host: Host) -> None:
    channel = every_host.open("start")
    hello = channel.wait("hello")
    every_host.watch(hello["pid"])
    assert hello["run"] == every_host.run
    assert hello["host"] == "h1"
    assert hello["directory"] == str(every_host.directory)

    facts = channel.ask("probe", lease=False, ports=None, count=2, answer="facts")
    known = HostFacts.from_wire("h1", facts.fields)
    assert known.hostname == socket.gethostname()
    assert known.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert known.cores == len(os.sched_getaffinity(0))
    assert known.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert len(known.ports) == 2
    assert list(known.ports) == sorted(known.ports)
    assert not any(address.startswith("127.") for address in known.addresses)
    link = every_host.work_dir / "bin" / "python3"
    version = subprocess.run([link, "-V"], capture_output=True, text=True, check=True).stdout
    assert version.split()[1].startswith(known.python)

    proof = every_host.work_dir / "proof"
    script = f"touch {proof}; echo out; echo err >&2; printf 'no newline'; exit 7"
    staged(channel, shell(script))
    shells = marked(every_host.run)
    assert shells, "staged, so it waits at its gate"
    assert not proof.exists(), "nothing runs before the release"
    channel.send("release")
    assert channel.wait("started")["pid"] == shells[0].pid
    exited = channel.wait("exit")
    assert (exited["task"], exited["code"], exited["signal"]) == ("worker/0", 7, None)
    assert exited["stopped"] is False
    assert 0 <= exited["seconds"] < 30
    assert exited.body == b"out\nerr\nno newline"
    assert proof.exists()
    result = swept(channel)
    assert result == {"killed": [], "survivors": [], "gpus": [], "logs": {"worker/0": [0, len(exited.body)]}}
    assert channel.read_log("worker/0", lambda log: len(log) == len(exited.body)) == exited.body
    assert channel.next() is None
    assert channel.wait_end() == 0
    gone(hello["pid"])
    assert (every_host.directory / "logs" / "worker-0.log").read_bytes() == exited.body
    started, ended, end = map(json.loads, (every_host.directory / "events.jsonl").read_text().splitlines())
    assert (started["type"], ended["type"], end["type"]) == ("started", "exit", "swept")
    assert (ended["task"], ended["attempt"], ended["code"]) == ("worker/0", 0, 7)


ARGUMENTS = [
    b"a b",
    b"it's",
    b'"quoted"',
    b"two\nlines\n",
    b"$HOME",
    b"`id`",
    b"",
    b"*",
    b"\\",
    b"-n",
    b"caf\xe9\xff",
    b"!x",
]


def test_arguments_and_environment_arrive_byte_for_byte(any_host: Host) -> None:
    show = (
        "import os, sys\n"
        "out = sys.stdout.buffer\n"
        "out.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])) + b'\\0--\\0')\n"
        "out.write(b'\\0'.join(k + b'=' + v for k, v in os.environb.items()))\n"
        "out.write(b'\\0--\\0' + os.getcwdb() + b'\\0--\\0' + os.fsencode(os.readlink('/proc/self/fd/0')))"
    )
    argv = [
        sys.executable,
        "-c",
        show,
        *(argument.decode("utf-8", "surrogateescape") for argument in ARGUMENTS),
    ]
    directory = any_host.work_dir / "it's a $HOME dir"
    directory.mkdir()
    channel = any_host.start()
    env = {"TF_CONFIG": '{"a": "ü\n"}', "EMPTY": "", "ODD": "caf\udce9", "PATH": os.environ["PATH"]}
    running(channel, task(*argv, env=env, cwd=str(directory), id="ps/1"))
    arguments, environment, cwd, stdin = channel.wait("exit").body.split(b"\0--\0")
    assert arguments.split(b"\0") == ARGUMENTS
    variables = dict(each.split(b"=", 1) for each in environment.split(b"\0"))
    for name, value in env.items():
        assert variables[name.encode()] == value.encode("utf-8", "surrogateescape")
    assert variables[b"TFLAUNCH_RUN"].decode() == any_host.run
    assert variables[b"TFLAUNCH_HOST"] == b"h1"
    assert variables[b"TFLAUNCH_TASK"] == b"ps/1"
    assert not {b"TFLAUNCH_BOOT", b"TFLAUNCH_NAMED"} & variables.keys()
    assert cwd == os.fsencode(directory)
    assert stdin == b"/dev/null"
    swept(channel)


def test_nothing_that_a_task_left_behind_survives_the_end(any_host: Host) -> None:
    channel = any_host.start()
    escape = [sys.executable, "-c", ESCAPE]
    running(
        channel,
        shell("trap '' TERM HUP; sleep 600 & echo ready; while :; do sleep 600; done", id="ps/0"),
        shell(
            '"$@" & sleep 600 & echo ready; wait',
            id="worker/0",
            argv=["/bin/sh", "-c", '"$@"; sleep 600', "sh", *escape],
        ),
    )
    log = channel.read_log("worker/0", lambda log: log.endswith(b"\n"))
    channel.read_log("ps/0", lambda log: b"ready" in log)
    escaped = int(log.split()[1])
    before = until(lambda: len(found := marked(any_host.run)) >= 5 and found, "all processes of the tasks")
    assert escaped in {process.pid for process in before}
    result = swept(channel, grace_s=0.5)
    assert result["survivors"] == []
    assert any(f"pid {escaped} " in each for each in result["killed"])
    assert not [process for process in before if processes.alive(process.pid, process.start)]
    assert marked(any_host.run) == []


def test_setup_is_done_in_the_shell_of_the_task(any_host: Host) -> None:
    channel = any_host.start()
    setup = ["echo talks; echo tflaunch-ready; export FROM_SETUP='it works'", "cd /", "true < /dev/null; cat"]
    running(channel, shell('echo "$FROM_SETUP in $PWD"', setup=setup))
    exited = channel.wait("exit")
    assert exited.body.decode() == "talks\ntflaunch-ready\nit works in /\n"
    assert exited["code"] == 0
    swept(channel)


@pytest.mark.parametrize("how", ["kill -9 of the agent", "the lease", "SIGTERM to the agent"])
def test_whatever_ends_the_agent_nothing_is_left(any_host: Host, how: str) -> None:
    channel = any_host.start()
    agent = json.loads((any_host.directory / "agent.json").read_text())
    escape = [sys.executable, "-c", ESCAPE]
    running(channel, task("/bin/sh", "-c", '"$@"; sleep 600', "sh", *escape))
    escaped = int(channel.read_log("worker/0", lambda log: log.endswith(b"\n")).split()[1])
    before = marked(any_host.run)
    if how.startswith("kill"):
        os.kill(agent["pid"], signal.SIGKILL)
        assert channel.next() is None
    else:
        if how == "the lease":
            channel.send("renew", lease_s=0.1)
        else:
            os.kill(agent["pid"], signal.SIGTERM)
        expired = channel.wait("expired")
        assert expired["asked"] is False
        assert ("lease" in expired["reason"]) == (how == "the lease")
        assert channel.wait("swept")["survivors"] == []
        channel.kill()
    gone(agent["pid"], agent["guard"], escaped)
    assert not [process for process in before if processes.alive(process.pid, process.start)]
    assert not (any_host.directory / "agent.sock").exists()


# ---- what cannot be staged


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (task("no-such program"), "no program no-such program on this host"),
        (task("/etc/passwd"), "no program /etc/passwd on this host"),
        (shell("true", cwd="/no/such/dir"), "/no/such/dir: no such directory"),
        (shell("true", setup=["echo before; false"]), "before\nsetup failed with exit code 1"),
        (shell("true", setup=["echo why; exit 3"]), "why\nsetup failed with exit code 3"),
        (shell("true", setup=["exit 4"]), "setup failed with exit code 4"),
        (shell("true", setup=["kill -9 $$"]), "ended with signal 9"),
        (shell("true", setup=["if"]), "syntax error"),
        (task("a\0b"), "null byte"),
        (task("true", env={"A=B": "c"}), "environment"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_staged_says_why(host: Host, request_: dict[str, Any], words: str) -> None:
    channel = host.start()
    proof = host.work_dir / "proof"
    good = shell(f"touch {proof}", id="ps/0")
    channel.send("stage", tasks=[good, request_], code=None, ports=[], gpus=[], door=False, attempt=0)
    reason, _ = failure(channel)
    assert words in reason
    result = swept(channel)
    assert result["survivors"] == []
    assert not proof.exists()
    assert marked(host.run) == []


def test_a_profile_that_prints_and_leaves_something_running_does_not_disturb(host: Host) -> None:
    if not os.access("/bin/bash", os.X_OK):
        pytest.skip("no bash here")
    home = host.work_dir / "home"
    home.mkdir()
    (home / ".bash_profile").write_text("head -c 70000 /dev/zero | tr '\\0' x\nsleep 600 &\n")
    host.env["HOME"] = str(home)
    channel = host.start()
    staged(channel, shell("echo fine", setup=["true"]))
    channel.send("release")
    exited = channel.wait("exit")
    assert (exited["code"], exited.body) == (0, b"fine\n")
    # What bash has left running is bash until it has become `sleep`, which takes its time on a busy machine.
    until(
        lambda: [each for each in marked(host.run) if each.name == "sleep"], "what the profile leaves running"
    )
    assert any("sleep" in each for each in swept(channel)["killed"])


def test_a_setup_that_fails_is_told_though_its_background_child_lives(host: Host) -> None:
    if not os.access("/bin/bash", os.X_OK):
        pytest.skip("no bash here")
    home = host.work_dir / "home"
    home.mkdir()
    (home / ".bash_profile").write_text("sleep 600 &\n")  # it holds the pipe that says ready
    host.env["HOME"] = str(home)
    channel = host.start()
    channel.send(
        "stage", tasks=[shell("true", setup=["false"])], code=None, ports=[], gpus=[], door=False, attempt=0
    )
    assert "setup failed with exit code 1" in failure(channel)[0]


def test_a_task_has_a_session_of_its_own_where_posix_spawn_makes_none(host: Host) -> None:
    """As with a Python that was built for a C library without POSIX_SPAWN_SETSID."""
    python = host.work_dir / "bin" / "python3"
    real = python.readlink()
    python.unlink()
    asked = host.work_dir / "asked"
    python.write_text(
        f"""#!{real} -ISXutf8
import os, sys
spawn = os.posix_spawn
def older(*words, setsid=False, **more):
    if setsid:
        open({str(asked)!r}, "a").close()
        raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
    return spawn(*words, **more)
os.posix_spawn = older
code = sys.argv.index("-c") + 1
text, sys.argv = sys.argv[code], ["-c", *sys.argv[code + 1 :]]
exec(text, {{"__name__": "__main__"}})
"""
    )
    python.chmod(0o755)
    channel = host.start()
    pid = running(channel, shell("sleep 600 & echo child $!; wait"))["worker/0"]
    assert asked.exists()
    log = channel.read_log("worker/0", lambda log: log.endswith(b"\n"))
    child = int(log.split()[-1])
    assert [os.getsid(each) for each in (pid, child)] == [pid, pid]
    channel.send("stop", tasks=None, grace_s=20.0)
    exited = channel.wait("exit")
    assert (exited["signal"], exited["stopped"]) == (signal.SIGTERM, True)
    gone(pid, child)
    assert swept(channel)["killed"] == []


def test_a_task_whose_shell_died_at_its_gate_is_told_when_it_is_released(host: Host) -> None:
    channel = host.start()
    staged(channel, shell("true"), shell("exit 5", id="ps/0"))
    victim = next(
        each for each in marked(host.run) if b"TFLAUNCH_TASK=worker/0" in processes.environment(each.pid)
    )
    os.kill(victim.pid, signal.SIGKILL)
    gone(victim.pid)
    channel.send("release")
    ends = {said["task"]: (said["code"], said["signal"]) for said in channel.gather("exit", 2)}
    assert ends == {"worker/0": (None, 9), "ps/0": (5, None)}


# ---- ends


def test_term_and_after_the_grace_kill(host: Host) -> None:
    channel = host.start()
    running(
        channel,
        shell("trap '' TERM; echo up; while :; do sleep 600; done", id="ps/0"),
        shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done", id="worker/0"),
        shell("echo up; kill -STOP $$; sleep 600", id="worker/1"),
    )
    for name in ("ps/0", "worker/0", "worker/1"):
        channel.read_log(name, lambda log: b"up" in log)
    channel.send("stop", tasks=None, grace_s=5.0)  # which the trap of worker/0 may need on a busy machine
    ends = {
        said["task"]: (said["code"], said["signal"], said["stopped"]) for said in channel.gather("exit", 3)
    }
    assert ends == {"ps/0": (None, 9, True), "worker/0": (3, None, True), "worker/1": (None, 15, True)}
    assert swept(channel)["survivors"] == []


def test_only_the_named_tasks_are_stopped(host: Host) -> None:
    channel = host.start()
    running(channel, shell("sleep 600", id="ps/0"), shell("sleep 600", id="worker/0"))
    channel.send("stop", tasks=["ps/0"], grace_s=5.0)
    assert channel.wait("exit")["task"] == "ps/0"
    assert marked(host.run), "the other one lives"
    assert swept(channel)["survivors"] == []


def test_the_programs_of_the_named_attempts_get_sigusr1_once(host: Host) -> None:
    channel = host.start()
    saver = "trap 'echo saves' USR1; sleep 600 & echo helper $!; echo up; while :; do wait; done"
    staged(channel, shell(saver, id="ps/0"), shell(saver, id="worker/0"), shell("sleep 600", id="worker/1"))
    every = {"ps/0": 0, "worker/0": 1, "worker/1": 0}
    channel.send("signal", tasks=every)  # to the gates, where it would end the shells
    channel.send("release")
    channel.gather("started", 3)
    for name in ("ps/0", "worker/0"):
        channel.read_log(name, lambda log: b"up" in log)
    channel.send("signal", tasks={**every, "worker/7": 0})
    exited = channel.wait("exit")
    assert (exited["task"], exited["signal"]) == ("worker/1", signal.SIGUSR1)
    assert exited["facts"]["warned"]
    log = channel.read_log("ps/0", lambda log: b"saves" in log)
    helper = int(log.split()[1])
    channel.send("signal", tasks={"ps/0": 0, "worker/0": 0})
    channel.read_log("worker/0", lambda log: b"saves" in log)
    assert processes.read(helper), "only the program itself got it"
    assert swept(channel)["survivors"] == []
    for name in ("ps-0", "worker-0"):
        assert (host.directory / "logs" / f"{name}.log").read_bytes().count(b"saves") == 1


def test_a_child_may_use_its_grace_when_its_wrapper_ends_first(host: Host) -> None:
    channel = host.start()
    saver = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    running(channel, task("/bin/sh", "-c", 'sh -c "$1" & wait', "sh", saver))
    channel.read_log("worker/0", lambda log: b"up" in log)
    result = swept(channel, grace_s=20.0)
    assert b"saved" in (host.directory / "logs" / "worker-0.log").read_bytes()
    assert result["killed"] == []


def test_a_process_whose_first_thread_has_ended_is_found_and_killed(host: Host) -> None:
    script = (
        "import ctypes, os, threading, time\n"
        "os.setsid() if os.fork() == 0 else os._exit(0)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print(os.getpid(), flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    channel = host.start()
    running(channel, task(sys.executable, "-c", script))
    pid = int(channel.read_log("worker/0", lambda log: log.endswith(b"\n")))
    until(lambda: b") Z " in Path(f"/proc/{pid}/stat").read_bytes(), "its first thread to end")
    result = swept(channel, grace_s=0.2)
    assert any(f"pid {pid} " in each for each in result["killed"])
    gone(pid)
    assert not Path(f"/proc/{pid}").exists()


def test_tasks_start_with_signals_as_any_program_would(host: Host) -> None:
    channel = host.start()
    running(channel, task("cat", "/proc/self/status"))
    said = dict(line.split(":\t", 1) for line in channel.wait("exit").body.decode().splitlines())
    threads = 0b11 << 31  # 32 and 33: glibc's own, which it sets as it needs them
    assert [int(said[name], 16) & ~threads for name in ("SigBlk", "SigIgn", "SigCgt")] == [0, 0, 0]


# ---- set-up


def test_setup_cannot_change_what_the_plan_decided(host: Host) -> None:
    channel = host.start()
    env = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "OTHER": "given"}
    setup = ["export CUDA_VISIBLE_DEVICES=0 OTHER=changed"]
    script = 'echo "$CUDA_VISIBLE_DEVICES $OTHER"'
    running(channel, shell(script, env=env, setup=setup, decided=["CUDA_VISIBLE_DEVICES"]))
    assert channel.wait("exit").body == b"GPU-1,GPU-2 changed\n"


def test_a_variable_keeps_its_bytes_where_there_is_a_setup(host: Host) -> None:
    channel = host.start()
    running(channel, shell('printf %s "$X"', env={"X": "caf\udce9 \u0444"}, setup=["true"]))
    assert channel.wait("exit").body == b"caf\xe9 " + "\u0444".encode()


def test_a_setup_block_ends_at_its_first_line_that_fails(host: Host) -> None:
    channel = host.start()
    block = "export ONE=1\nsource_nothing_of_that_name\nexport TWO=2"
    channel.send(
        "stage", tasks=[shell("true", setup=[block])], code=None, ports=[], gpus=[], door=False, attempt=0
    )
    assert "setup failed with exit code 127" in failure(channel)[0]


def test_no_secret_of_the_setup_is_in_an_argv(host: Host) -> None:
    channel = host.start()
    staged(channel, shell("echo got $TOKEN", setup=["export TOKEN=s3cr3t"], env={"GIVEN": "k3y"}))
    words = b"".join(Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in marked(host.run))
    assert b"s3cr3t" not in words and b"k3y" not in words
    (file,) = host.directory.glob("*.setup")
    assert file.stat().st_mode & 0o077 == 0


def test_a_login_profile_chooses_the_network_where_nobody_else_has(host: Host, tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text("export GLOO_SOCKET_IFNAME=ib7 NCCL_SOCKET_IFNAME=ib7 NCCL_IB_HCA=x\n")
    host.env["HOME"] = str(tmp_path)
    channel = host.start()
    names = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"]
    env = {**dict.fromkeys(names, "=it's eth0"), "NCCL_IB_HCA": "the user's"}
    script = " ".join(["printf '%s|'", *(f'"${name}"' for name in env)])
    running(channel, shell(script, env=env, setup=["true"], yielding=names))
    whole = channel.read_log("worker/0", lambda log: log.count(b"|") == len(env))
    assert whole == b"ib7|ib7|=it's eth0|the user's|"


def test_a_login_profile_does_not_change_the_requested_environment(host: Host, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bash_profile").write_text("export WANTED=profile OTHER=profile\n")
    channel = host.start()
    env = {"HOME": str(home), "WANTED": "asked"}
    running(channel, shell('echo "$WANTED $OTHER $MORE"', env=env, setup=["export MORE=$WANTED-more"]))
    assert channel.wait("exit").body == b"asked profile asked-more\n"
