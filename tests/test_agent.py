"""The agent as it is shipped, over pipes, with real processes: the contract under every Python that is here,
and the hard cases (deaths, floods, full disks) under one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent_over_pipes import (
    PATIENCE_S,
    Channel,
    Host,
    descriptors,
    marked,
    running,
    shell,
    staged,
    task,
    until,
)
from tflaunch.agent import processes
from tflaunch.agent.files.rundir import RunDirectory
from tflaunch.code import bundle as sources
from tflaunch.code import shipping
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol import wire

IS_ROOT = os.getuid() == 0
WINDOW = 256 * 1024

# A process that nothing but KILL ends, and that no process group or parent leads to.
ESCAPE = """
import os, signal, sys, time
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print("escaped", os.getpid(), flush=True)
time.sleep(600)
"""


def swept(channel: Channel, grace_s: float = 5.0) -> dict[str, Any]:
    """End the run and take leave."""
    said = channel.ask("end", grace_s=grace_s, answer="swept")
    channel.leave()
    assert said.fields.pop("n") > 0
    assert said.fields.pop("time") > 0
    return said.fields


def failure(channel: Channel) -> tuple[str, str]:
    """The next `failed` message: reason and hint."""
    while message := channel.next():
        if message.type == "failed":
            return message["reason"], message["hint"]
    raise AssertionError(f"the channel ended: {channel.last_words()}")


def gone(*pids: int) -> None:
    until(lambda: not any(processes.read(pid) for pid in pids), f"{pids} to be gone")


# ---- the contract, under every Python


def test_from_hello_to_swept(any_host: Host) -> None:
    channel = any_host.open("start")
    hello = channel.wait("hello")
    any_host.watch(hello["pid"])
    assert hello["run"] == any_host.run
    assert hello["host"] == "h1"
    assert hello["directory"] == str(any_host.directory)

    facts = channel.ask("probe", lease=False, ports=None, count=2, answer="facts")
    known = HostFacts.from_wire("h1", facts.fields)
    assert known.hostname == socket.gethostname()
    assert known.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert known.cores == len(os.sched_getaffinity(0))
    assert known.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert len(known.ports) == 2
    assert list(known.ports) == sorted(known.ports)
    assert not any(address.startswith("127.") for address in known.addresses)
    link = any_host.work_dir / "bin" / "python3"
    version = subprocess.run([link, "-V"], capture_output=True, text=True, check=True).stdout
    assert version.split()[1].startswith(known.python)

    proof = any_host.work_dir / "proof"
    script = f"touch {proof}; echo out; echo err >&2; printf 'no newline'; exit 7"
    staged(channel, shell(script))
    shells = marked(any_host.run)
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
    assert result == {"killed": [], "survivors": [], "cards": [], "logs": {"worker/0": [0, len(exited.body)]}}
    assert channel.read_log("worker/0", lambda log: len(log) == len(exited.body)) == exited.body
    assert channel.next() is None
    assert channel.wait_end() == 0
    gone(hello["pid"])
    assert (any_host.directory / "logs" / "worker-0.log").read_bytes() == exited.body
    started, ended, end = map(json.loads, (any_host.directory / "events.jsonl").read_text().splitlines())
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


def test_code_is_shipped_once(any_host: Host) -> None:
    code = any_host.work_dir / "code"
    deep = "d" * 60 + "/" + "é" * 60 + "/" + os.fsdecode(b"\xff") * 60
    for name, text in (
        ("train.py", "import pkg.m\n"),
        ("pkg/m.py", "print(__file__)\n"),
        ("run.sh", "exec true"),
        (deep, "x" * 1000),
    ):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(text)
    (code / "run.sh").chmod(0o755)
    (code / "empty").mkdir()
    (code / "link.py").symlink_to("train.py")
    (code / "far").symlink_to(deep)
    (code / "same.py").write_text("import pkg.m\n")
    (code / "none.py").touch()
    (code / "large").write_bytes(os.urandom(1_300_000))  # in parts, and copied aside
    bundle = sources.bundle(code)
    channel = any_host.start()
    channel.send("probe", lease=False, ports=None, count=1)
    assert channel.ask("code", digest=bundle.digest, answer="code")["lacks"] is None
    for start in range(0, len(bundle.manifest), 100):
        end = start + 100
        channel.send("manifest", bundle.manifest[start:end], last=end >= len(bundle.manifest))
    lacks = channel.wait("code")["lacks"]
    assert len(lacks) == len(bundle.contents) == 6
    for frame in shipping.frames(bundle, lacks):
        channel.write(frame)
    assert channel.wait("code")["have"] is True
    assert channel.ask("code", digest=bundle.digest, answer="code").fields == {"have": True, "lacks": []}
    run = task(sys.executable, "train.py")
    channel.ask(
        "stage", tasks=[run], code=bundle.digest, ports=[], gpus=[], door=False, attempt=0, answer="staged"
    )
    channel.send("release")
    exited = channel.wait("exit")
    assert (exited["code"], exited.body) == (
        0,
        os.fsencode(any_host.directory / "work" / "pkg" / "m.py") + b"\n",
    )
    agent = json.loads((any_host.directory / "agent.json").read_text())
    loaded = Path(f"/proc/{agent['pid']}/maps").read_text()
    assert not [name for name in ("liblzma", "libbz2") if name in loaded], "what only `tarfile` needs"
    work = any_host.directory / "work"
    shutil.rmtree(work / "pkg" / "__pycache__", ignore_errors=True)
    for path in code.rglob("*"):
        here = work / path.relative_to(code)
        assert here.lstat().st_mode == path.lstat().st_mode
        assert here.is_dir() or here.read_bytes() == path.read_bytes()
        assert not path.is_symlink() or here.readlink() == path.readlink()
    assert len(list(work.rglob("*"))) == len(list(code.rglob("*")))
    shipped = json.loads((any_host.directory / "shipped.json").read_text())
    names = ["train.py", "pkg/m.py", "run.sh", "link.py", "far", "same.py", "none.py", "large", deep]
    assert sorted(shipped["files"]) == sorted(names)
    assert (work / "train.py").stat().st_mtime == shipped["modified"]
    swept(channel)
    assert {path.name for path in (any_host.parent / "code").iterdir()} == {f"{bundle.digest}.tree", "files"}
    assert {path.name for path in (any_host.parent / "code/files").iterdir()} == {*bundle.contents}


def shipped(channel: Channel, bundle: sources.Bundle, **fields: Any) -> list[str]:
    """Bring it there, and stage it; the paths of what was sent."""
    lacks = channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")["lacks"]
    if lacks:
        for frame in shipping.frames(bundle, lacks):
            channel.write(frame)
        channel.wait("code")
    stage(channel, bundle, **fields)
    return [str(bundle.entries[place][0]) for place in lacks]


def stage(channel: Channel, bundle: sources.Bundle, **fields: Any) -> None:
    fields = {"tasks": [shell("true")], "ports": [], "gpus": [], "door": False, "attempt": 0, **fields}
    channel.send("stage", code=bundle.digest, **fields)


def test_of_code_that_was_changed_only_that_is_sent(host: Host) -> None:
    code = host.work_dir / "code"
    (code / "pkg").mkdir(parents=True)
    for name in ("a.py", "b.py", "pkg/c.py"):
        (code / name).write_text(name)
    changes: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: None, ["a.py", "b.py", "pkg/c.py"]),
        (lambda: (code / "b.py").write_text("other"), ["b.py"]),
        (lambda: (code / "b.py").rename(code / "pkg/d.py"), []),
        (lambda: (code / "a.py").chmod(0o755), []),
    ]
    for change, sent in changes:
        change()
        channel = host.start()
        assert shipped(channel, sources.bundle(code)) == sent
        channel.wait("staged")
        work = host.directory / "work"
        theirs, ours = ({path.relative_to(at) for path in at.rglob("*.py")} for at in (work, code))
        assert theirs == ours
        for name in ours:  # a program that writes into its own files changes no other run
            assert (work / name).read_text() == (code / name).read_text()
            assert (work / name).stat().st_mode & 0o777 == (code / name).stat().st_mode & 0o777 & ~0o022
            assert (work / name).stat().st_nlink == 1
            (work / name).write_text("mine")
        swept(channel)
        assert not work.exists()  # and nothing was started: it is not kept
        host.run += "-again"


def test_many_launchers_may_ship_the_same_at_once(host: Host) -> None:
    code = host.work_dir / "code"
    code.mkdir()
    for number in range(3):
        (code / f"{number}.bin").write_bytes(os.urandom(300_000))
    bundle = sources.bundle(code)
    channels = []
    for _ in range(2):
        channels.append(host.start())
        host.run += "-again"
    lacks = [
        channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")["lacks"]
        for channel in channels
    ]
    assert lacks == [[0, 1, 2]] * 2
    for frame in shipping.frames(bundle, lacks[0]):
        for channel in channels:
            channel.write(frame)
    for channel in channels:
        assert channel.wait("code")["have"] is True
        assert shipped(channel, bundle) == []
        channel.wait("staged")
        swept(channel)
    assert {path.name for path in (host.parent / "code/files").iterdir()} == {*bundle.contents}


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


# ---- ports


def bind(port: int, *options: int, family: int = socket.AF_INET6, uid: int | None = None) -> int:
    """0, or the error number of a bind to `port` on every address."""
    script = (
        "import os, socket, sys\n"
        "family, port, uid, options = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]\n"
        "if uid >= 0: os.setuid(uid)\n"
        "s = socket.socket(family)\n"
        "for option in options: s.setsockopt(socket.SOL_SOCKET, int(option), 1)\n"
        "try: s.bind(('', port))\n"
        "except OSError as error: sys.exit(error.errno)\n"
        "s.listen()\n"
    )
    words = [sys.executable, "-c", script, str(int(family)), str(port), str(-1 if uid is None else uid)]
    return subprocess.run([*words, *map(str, options)], check=False).returncode


def test_a_held_port_is_only_for_who_joins_it(host: Host) -> None:
    channel = host.start()
    ports = channel.ask("probe", lease=False, ports=None, count=3, answer="facts")["ports"]
    assert len(set(ports)) == 3
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for port in ports:
        assert not first <= port <= last
        for family in (socket.AF_INET, socket.AF_INET6):
            assert bind(port, family=family) == errno.EADDRINUSE
            assert bind(port, socket.SO_REUSEADDR, family=family) == errno.EADDRINUSE
            assert bind(port, socket.SO_REUSEPORT, family=family) == 0
        with socket.socket() as dial:
            assert dial.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    if IS_ROOT:
        nobody = pwd.getpwnam("nobody").pw_uid
        assert bind(ports[0], socket.SO_REUSEPORT, uid=nobody) == errno.EADDRINUSE
    kept = ports[1]
    channel.ask(
        "stage",
        tasks=[shell("sleep 600")],
        code=None,
        ports=[kept],
        gpus=[],
        door=False,
        attempt=0,
        answer="staged",
    )
    assert [bind(port) for port in ports] == [0, errno.EADDRINUSE, 0]
    swept(channel)
    assert channel.next() is None
    assert bind(kept) == 0


def test_two_agents_in_one_range_share_no_port(host: Host) -> None:
    free = 21300
    channels = [host.open("start", host=name) for name in ("h1", "h2", "h3")]
    taken: list[int] = []
    for channel in channels:
        host.watch(channel.wait("hello")["pid"])
        channel.send("probe", lease=False, ports=[free, free + 9], count=4)
    counts = []
    for channel in channels:
        ports = channel.wait("facts")["ports"]
        counts.append(len(ports))
        taken += ports
    assert len(set(taken)) == len(taken), "a port is held twice"
    assert set(taken) <= set(range(free, free + 10))
    assert sum(counts) <= 10
    assert all(counts)


def test_a_port_that_anyone_listens_on_is_not_taken(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        channel = host.start()
        assert channel.ask("probe", lease=False, ports=[port, port], count=1, answer="facts")["ports"] == []


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


@pytest.mark.parametrize(
    ("damage", "size"),
    [
        *((damage, 50_000) for damage in ("flipped", "cut", "gone", "unreadable", "of the manifest")),
        ("flipped", 1_100_000),  # copied aside
    ],
)
def test_kept_code_that_is_damaged_is_asked_for_again(host: Host, damage: str, size: int) -> None:
    code = host.work_dir / "code"
    code.mkdir()
    for name in ("data", "other", "third"):
        (code / name).write_bytes(os.urandom(size))
    shutil.copy(code / "data", code / "same")
    bundle = sources.bundle(code)
    channel = host.start()
    assert len(shipped(channel, bundle)) == 3
    channel.wait("staged")
    swept(channel)
    tree = host.parent / "code" / f"{bundle.digest}.tree"
    contents = [host.parent / "code" / "files" / str(bundle.entries[place][2]) for place in (0, 1)]

    def spoil() -> None:
        for path in [tree] if damage == "of the manifest" else contents:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.unlink()
            if damage == "unreadable":
                path.symlink_to(path)
            elif damage != "gone":
                path.write_bytes(data[: len(data) // (2 if damage == "cut" else 1)])

    def refused(channel: Channel) -> bool:
        message = channel.next()
        assert message is not None
        assert message.type == "failed"
        assert "is damaged: " in message["reason"]
        assert str(tree if damage == "of the manifest" else contents[0]) in message["reason"]
        return bool(message["again"])

    spoil()
    channels = []
    for _ in range(2):  # two runs at once
        host.run += "-again"
        channel = host.start()
        ports = channel.ask("probe", lease=False, ports=None, count=1, answer="facts")["ports"]
        dialled = {"ports": ports, "dial_key": "key"}
        assert shipped(channel, bundle, **dialled) == []
        assert refused(channel), "it can be sent again"
        channels.append((channel, host.directory, dialled))
    stage(channel, bundle, **dialled)
    assert not refused(channel), "it was not whole once more"
    for channel, directory, dialled in channels:
        assert shipped(channel, bundle, **dialled) == (
            [] if damage == "of the manifest" else ["data", "other"]
        )
        channel.wait("staged")
        channel.ask("release", answer="started")
        with socket.socket() as caller:
            assert caller.connect_ex(("127.0.0.1", dialled["ports"][0])) == errno.ECONNREFUSED, (
                "it is the task's"
            )
        for path in code.iterdir():
            assert (directory / "work" / path.name).read_bytes() == path.read_bytes()
        swept(channel)
    host.run += "-again"
    channel = host.start()
    assert shipped(channel, bundle) == []
    channel.wait("staged")


@pytest.mark.parametrize("damage", ["another content", "too little", "too much", "not zlib", "no manifest"])
def test_code_that_comes_damaged_is_not_taken(host: Host, damage: str) -> None:
    code = host.work_dir / "code"
    code.mkdir()
    (code / "data").write_bytes(b"x" * 50_000)
    bundle = sources.bundle(code)
    channel = host.start()
    if damage == "no manifest":
        channel.send("code", bundle.manifest[:-9], digest=bundle.digest)
    else:
        channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")
        body = {"another content": b"y" * 50_000, "too little": b"x" * 9, "too much": b"x" * 50_001}
        channel.send("blob", body.get(damage, b"<html>"), packed=damage == "not zlib", last=True)
    reason, hint = failure(channel)
    assert "damaged" in reason
    assert hint == "start the run again"
    kept = [path for path in host.parent.glob("code/**/*") if path.is_file()]
    assert [path.name for path in kept] == ([*bundle.contents] if damage == "too much" else [])


def test_code_is_not_copied_through_a_link_that_leads_away(host: Host, tmp_path: Path) -> None:
    code, scratch = tmp_path / "code", tmp_path / "scratch"
    for place in (code / "data", scratch):
        place.mkdir(parents=True)
    (code / "data/a.txt").write_text("shipped")
    (scratch / "a.txt").write_text("theirs")
    bundle = sources.bundle(code)
    (host.directory / "work").mkdir(parents=True, mode=0o700)
    for place in (host.parent, host.directory.parent, host.directory):
        place.chmod(0o700)
    (host.directory / "work/data").symlink_to(scratch)  # as the program left it
    channel = host.start()
    shipped(channel, bundle)
    reason, _ = failure(channel)
    assert "a link leads out of there" in reason
    assert (scratch / "a.txt").read_text() == "theirs"
    assert (host.parent / "code" / f"{bundle.digest}.tree").exists()


def test_the_agent_is_there_while_much_code_is_copied(host: Host) -> None:
    code = host.work_dir / "code"
    code.mkdir()
    (code / "data").write_bytes(bytes(4 << 20))
    bundle = sources.bundle(code)
    stage = wire.encode("stage", tasks=[], code=bundle.digest, ports=[], gpus=[], door=False, attempt=0)
    for last in ("staged", "swept"):
        channel = host.start()
        if lacks := channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")["lacks"]:
            for frame in shipping.frames(bundle, lacks):
                channel.write(frame)
            channel.wait("code")
        # In one piece: what comes behind is answered first.
        if last == "staged":
            channel.write(stage + stage + wire.encode("clock", sent=1.0))
            assert "has been staged on this host before" in failure(channel)[0]
            assert channel.wait("clock", "staged").type == "clock"
            channel.wait("staged")
            assert (host.directory / "work" / "data").stat().st_size == 4 << 20
        else:
            channel.write(stage + wire.encode("end", grace_s=5.0))
        result = swept(channel)
        assert (result["killed"], result["survivors"]) == ([], []), "it ends when it is told to"
        host.run += "-again"


def test_what_is_done_aside_ends_once() -> None:
    """Of a task's orphans, which the agent reaps, one may have the number that it had."""
    script = (
        "import os\n"
        "from tflaunch.agent.aside import Aside\n"
        "work = Aside(lambda: None)\n"
        "os.waitpid(work.pid, 0)\n"
        "print(work.reaped(1), work.alive, work.reaped(work.pid), work.alive, work.reaped(work.pid))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "False", "False"], done.stderr


def test_what_is_done_aside_can_be_stopped_as_soon_as_it_begins() -> None:
    script = (
        "import os, signal, time\n"
        "from tflaunch.agent.aside import Aside\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"  # as the agent has it
        "for _ in range(5):\n"
        "    work = Aside(lambda: time.sleep(3))\n"
        "    work.stop()\n"
        "    print(os.WEXITSTATUS(os.waitpid(work.pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"] * 5, done.stderr


def test_half_of_the_code_is_not_kept(host: Host) -> None:
    code = host.work_dir / "code"
    code.mkdir()
    (code / "whole").write_bytes(b"x" * 100)
    (code / "yet").write_bytes(b"y" * 100)
    bundle = sources.bundle(code)
    channel = host.start()
    channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")
    channel.send("blob", b"x" * 100 + b"y" * 50, packed=False, last=False)
    until(lambda: list(host.parent.glob("code/files/*.part")), "the first half")
    channel.kill()
    until(lambda: not list(host.parent.glob("code/files/*.part")), "the half to be removed")
    host.run += "-again"
    assert shipped(host.start(), bundle) == ["yet"], "what came whole is sent again"


# ---- logs


def test_never_more_than_the_window_is_under_way_and_requests_are_heard(host: Host) -> None:
    channel = host.start()
    size = 2_000_000
    running(channel, shell(f"head -c {size} /dev/zero | tr '\\0' x; sleep 600"), window=WINDOW)
    log = host.directory / "logs" / "worker-0.log"
    until(lambda: log.stat().st_size == size, "the task to write without being read")
    while len(channel.log.get("worker/0", b"")) < WINDOW:
        channel.wait("log")
    assert len(channel.log["worker/0"]) == WINDOW
    # Nobody pays for more: no log byte comes, but what is asked is answered.
    assert channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    channel.send("stop", tasks=["worker/0"], grace_s=5.0)
    exited = channel.wait("exit")
    assert (exited["signal"], exited["stopped"]) == (signal.SIGTERM, True)
    assert exited.body == b"x" * 65536
    assert swept(channel)["logs"] == {"worker/0": [0, size]}
    assert len(channel.log["worker/0"]) == WINDOW


def test_a_flood_arrives_complete_and_in_order(host: Host) -> None:
    channel = host.start()
    lines = 200_000  # of 100 bytes, from each of two
    script = f"i = 0\nwhile i < {lines}:\n    print(f'{{i:099d}}')\n    i += 1"
    tasks = [task(sys.executable, "-c", script, id=f"worker/{index}") for index in range(2)]
    running(channel, *tasks, window=1 << 20)
    expected = b"".join(b"%099d\n" % number for number in range(lines))
    ended = 0
    while sum(map(len, channel.log.values())) < 2 * len(expected):
        said = channel.wait("log", "exit")
        if said.type == "log":
            channel.send("credit", bytes=len(said.body))
        else:
            ended += 1
    assert channel.log["worker/0"] == channel.log["worker/1"] == expected
    channel.gather("exit", 2 - ended)
    assert swept(channel)["logs"] == {each["id"]: [0, len(expected)] for each in tasks}


def test_a_log_is_followed_from_any_offset(host: Host) -> None:
    channel = host.start()
    staged(channel, shell("printf 0123456789; exit 0"))
    channel.send("release")
    channel.wait("exit")
    channel.send("watch", after=2, logs={"worker/0": [0, 6]}, window=3, client="test")
    for offset, body in ((6, b"678"), (9, b"9")):
        message = channel.next_raw()
        while (message and message.type == "through") or message["offset"] == 0:  # of the first time
            message = channel.next_raw()
        assert message
        assert (message["offset"], message.body) == (offset, body)
        channel.send("credit", bytes=1)


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
    channel.send("stop", tasks=None, grace_s=0.5)
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
    assert {processes.environment(each.pid) and True for each in marked(host.run)} == {True}
    assert swept(channel)["survivors"] == []


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


def test_threads_of_the_kernel_are_no_processes() -> None:
    stats = {
        path.parent.name: path.read_text().rpartition(")")[2].split()
        for path in Path("/proc").glob("[1-9]*/stat")
    }
    kernel = {int(pid) for pid, fields in stats.items() if int(fields[6]) & processes.PF_KTHREAD}
    assert kernel.isdisjoint(processes.every())
    assert os.getpid() in processes.every()


def test_tasks_start_with_signals_as_any_program_would(host: Host) -> None:
    channel = host.start()
    running(channel, task("cat", "/proc/self/status"))
    said = dict(line.split(":\t", 1) for line in channel.wait("exit").body.decode().splitlines())
    threads = 0b11 << 31  # 32 and 33: glibc's own, which it sets as it needs them
    assert [int(said[name], 16) & ~threads for name in ("SigBlk", "SigIgn", "SigCgt")] == [0, 0, 0]


def test_no_descriptor_strays(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    channel.ask("probe", lease=False, ports=None, count=4, answer="facts")
    pids = running(channel, task("sleep", "600", id="ps/0"), task("sleep", "600"))
    log = str(host.directory / "logs" / "worker-0.log")
    until(
        lambda: Path(f"/proc/{pids['worker/0']}/comm").read_text() == "sleep\n", "the program to be running"
    )
    assert descriptors(pids["worker/0"]) == {0: "/dev/null", 1: log, 2: log}
    own = str(host.directory / "agent.log")
    assert descriptors(agent["guard"]) == {0: "/dev/null", 1: own, 2: own}
    # Each of them is milliseconds of CPU on every host of every run.
    loaded = Path(f"/proc/{agent['pid']}/maps").read_text()
    assert not [name for name in ("libcrypto", "liblzma", "libbz2") if name in loaded]
    before = descriptors(agent["pid"])
    pipes = [name for name in before.values() if name.startswith("pipe:")]
    assert len(pipes) == 2, "the channel's; gates and ready pipes are closed"
    for _ in range(5):
        host.attach().kill()
    until(lambda: len(descriptors(agent["pid"])) == len(before), "the agent to let go of what has left")
    host.attach()
    channel.send("restart", tasks={"worker/0": 1})
    again = channel.wait("started")["pid"]
    until(lambda: Path(f"/proc/{again}/comm").read_text() == "sleep\n", "the program to be running again")
    log = str(host.directory / "logs" / "worker-0.1.log")
    assert descriptors(again) == {0: "/dev/null", 1: log, 2: log}, "the other channel has reached a task"
    swept(channel)


def test_what_comes_right_behind_an_attach_is_heard_by_the_agent(host: Host) -> None:
    channel = host.start()
    running(channel, shell("sleep 600"))
    second = host.open("visit", run="", host="")
    watch = wire.encode("watch", after=0, logs={}, window=1, client="", tasks=["worker/0"] * 10_000)
    # The visit reads it in one piece with the attach, and not the whole of it.
    second.write(wire.encode("attach", run=host.run, host="h1") + watch)
    assert second.wait("started")["task"] == "worker/0"
    swept(channel)


def test_a_channel_that_is_none_ends_nothing_but_itself(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]
    before = descriptors(agent)
    with Path(os.devnull).open("rb+") as null:  # it cannot be waited for
        for passed in ([], [null.fileno()], [null.fileno()] * 2):
            connection = RunDirectory(str(host.parent), host.run, "h1").connect()
            assert connection is not None
            with socket.socket(fileno=connection.detach()) as caller:
                socket.send_fds(caller, [wire.encode("channel")], passed)
                while caller.recv(4096):
                    pass
    until(lambda: descriptors(agent) == before, "the agent to let go of what has come")
    assert channel.ask("clock", sent=0, answer="clock")
    swept(channel)


def cpu_share(pid: int, period_s: float) -> float:
    """How much of one core that process uses."""

    def cpu_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = cpu_s(), time.monotonic()
    time.sleep(period_s)
    return (cpu_s() - before) / (time.monotonic() - began)


def test_an_agent_with_nothing_to_do_does_nothing(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, task("sleep", "600"))
    assert cpu_share(agent["pid"], 2.0) < 0.1, "a busy loop"
    swept(channel)


def test_an_agent_without_a_free_descriptor_rests_until_there_is_one(host: Host) -> None:
    channel = host.start()
    running(channel, shell("exec sleep 600"))
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]
    before = resource.prlimit(agent, resource.RLIMIT_NOFILE)
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (0, before[1]))
    caller = RunDirectory(str(host.parent), host.run, "h1").connect()
    assert caller is not None
    with contextlib.closing(caller):
        channel.ask("clock", sent=1.0, answer="clock")  # it has tried to let the caller in
        assert channel.ask("look", answer="looked")["tasks"] == {}  # a failure would end the run
        until(lambda: cpu_share(agent, 0.5) < 0.1, "it to rest")
        resource.prlimit(agent, resource.RLIMIT_NOFILE, before)
        caller.settimeout(PATIENCE_S)
        assert b"hello" in caller.recv(4096)
    swept(channel)


def test_an_orphan_that_ends_is_reaped(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, shell("(sh -c 'sleep 0.2' &) ; echo up; sleep 600"))
    channel.read_log("worker/0", lambda log: b"up" in log)

    def zombies() -> list[str]:
        stats = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                stats.append(path.read_text())
        return [each for each in stats if f" Z {agent['pid']} " in each]

    until(lambda: len(marked(host.run)) == 2, "the orphan to end")
    until(lambda: not zombies(), "the agent to reap it")
    swept(channel)


# ---- connections that come and go


def test_tasks_outlive_the_channel_and_another_goes_on_with_the_log(host: Host) -> None:
    first = host.start()
    more = host.work_dir / "more"
    running(first, shell(f"echo one; while ! test -e {more}; do sleep 0.02; done; echo two; sleep 600"))
    assert first.read_log("worker/0", lambda log: b"one" in log) == b"one\n"
    first.kill()
    second = host.attach(logs={"worker/0": [0, 4]}, window=100)
    second.log["worker/0"] = b"one\n"
    more.touch()
    assert second.read_log("worker/0", lambda log: b"two" in log) == b"one\ntwo\n"
    assert swept(second)["survivors"] == []


def test_a_channel_that_ends_before_the_release_ends_the_run(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    staged(channel, shell("sleep 600"))
    channel.kill()
    gone(agent["pid"], agent["guard"])
    assert marked(host.run) == []


def test_an_abandoned_run_ends_with_its_lease(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, shell("sleep 600"))
    channel.send("renew", lease_s=1.0)
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")  # so the lease has been heard
    channel.kill()
    assert processes.alive(agent["pid"], agent["start"]), "not before"
    gone(agent["pid"], agent["guard"])
    assert marked(host.run) == []


def test_a_launcher_that_reads_nothing_holds_up_no_task_and_no_lease(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    size = 30_000_000
    running(channel, shell(f"head -c {size} /dev/zero; sleep 600"), window=1 << 30)
    log = host.directory / "logs" / "worker-0.log"
    until(lambda: log.stat().st_size == size, "the task to write all of it though nobody reads")
    channel.send("renew", lease_s=0.2)  # heard although the other way is full
    gone(agent["pid"], agent["guard"])
    assert marked(host.run) == []
    # What sshd has started is the last process of it on the host: it must not wait for ever either.
    until(lambda: channel.started_ended, "it to give up")


def test_a_run_of_another_version_is_not_attached_to_but_ended(host: Host) -> None:
    first = host.start()
    running(first, shell("sleep 600"))
    path = host.directory / "agent.json"
    agent = json.loads(path.read_text())
    path.write_text(json.dumps({**agent, "wire": wire.PROTOCOL + 1}))
    visit = host.open("visit", run="", host="")
    said = visit.ask("attach", run=host.run, host="h1", answer="failed")
    assert f"whose agents speak protocol {wire.PROTOCOL + 1}" in said["reason"]
    assert "`tflaunch stop`" in said["hint"]
    assert visit.ask("finish", run=host.run, grace_s=5.0, answer="finished")["survivors"] == []
    gone(agent["pid"], agent["guard"])


def test_others_are_told_who_ended_the_run(host: Host) -> None:
    first = host.start()
    running(first, shell("sleep 600"))
    second = host.attach()
    assert second.ask("end", grace_s=5.0, answer="swept")["survivors"] == []
    expired = first.wait("expired")
    assert (expired["asked"], expired["reason"]) == (True, "tflaunch stop ends the run")
    assert first.wait("exit")["stopped"] is True
    assert first.wait("swept")["survivors"] == []
    first.send("bye")
    assert first.next() is None


def test_a_second_agent_of_the_same_run_is_refused(host: Host) -> None:
    host.start()
    reason, hint = failure(host.open("start"))
    assert reason == f"an agent of run {host.run} lives on this host already"
    assert hint == f"tflaunch stop {host.run}"


def test_an_agent_that_leaves_late_takes_nothing_from_the_next_one(host: Host) -> None:
    first = host.start()
    staged(first, shell("sleep 600"))
    record = json.loads((host.directory / "agent.json").read_text())
    first.ask("end", grace_s=0.0, answer="swept")
    host.start()  # nothing was started, so nothing is there of the first one, which has still to hear `bye`
    first.send("bye")
    gone(record["pid"], record["guard"])
    assert (host.directory / "agent.sock").exists()
    assert json.loads((host.directory / "guard.json").read_text()) == {}


def test_there_is_nothing_to_attach_to(host: Host) -> None:
    channel = host.open("visit", run="", host="")
    channel.send("attach", run=host.run, host="h1")
    assert failure(channel)[0] == f"this host knows no run {host.run}"


def test_a_request_that_is_nonsense_does_not_end_the_tasks(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, task("sleep", "600"))
    channel.send("watch", after=0, logs=["no", "mapping"], window=1, client="test")
    assert "logs is not an object: a list of 2" in failure(channel)[0]
    channel.send("find", patterns=[["(", True]], roots=[""])
    assert "defect" in failure(channel)[0]
    for nonsense in (b"\xff" * 8, b""):
        other = host.attach()
        if nonsense:
            other.write(nonsense)
        else:
            other.send("no-such-request")
        assert other.next() is None
        assert processes.alive(agent["pid"], agent["start"])
    assert "Traceback" in (host.directory / "agent.log").read_text()
    assert len(marked(host.run)) == 1
    assert swept(channel)["survivors"] == []


# ---- the run directory


def test_a_run_without_tasks_leaves_no_directory(host: Host) -> None:
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    channel.close()
    until(lambda: not host.directory.parent.exists(), "the directory of the run to go")
    assert list(host.parent.iterdir()) == []


def test_the_run_directory_is_private(host: Host) -> None:
    host.run_dir.mkdir(mode=0o777)
    host.run_dir.chmod(0o1777)
    channel = host.start()
    running(channel, shell("umask; echo secret"))
    channel.wait("exit")
    for path in (host.parent, host.directory.parent, host.directory, host.directory / "logs"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert host.run_dir.stat().st_mode & 0o7777 == 0o1777, "what was there before is not ours to change"
    swept(channel)


@pytest.mark.parametrize("name", ["../x", "..", ".", "a/b", "/etc", "", ".hidden"])
@pytest.mark.parametrize("part", ["run", "host"])
def test_a_name_that_leads_elsewhere_is_refused(host: Host, part: str, name: str) -> None:
    reason, _ = failure(host.open("start", **{part: name}))
    assert reason == f"{name!r} cannot be a directory name"
    assert not host.run_dir.exists()


def test_a_link_in_place_of_the_directory_is_refused(host: Host) -> None:
    elsewhere = host.work_dir / "elsewhere"
    elsewhere.mkdir()
    host.run_dir.mkdir()
    host.parent.symlink_to(elsewhere)
    reason, _ = failure(host.open("start"))
    assert reason == f"{host.parent} is not your directory but a link or a file"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(not IS_ROOT, reason="only root can make somebody else's directory")
def test_somebody_elses_directory_is_refused(host: Host) -> None:
    host.parent.mkdir(parents=True)
    os.chown(host.parent, 12345, -1)
    reason, hint = failure(host.open("start"))
    assert reason == f"{host.parent} belongs to uid 12345, not to you (uid 0)"
    assert "run_dir" in hint


def test_a_place_that_cannot_be_written_is_named(host: Host) -> None:
    place = "/proc" if IS_ROOT else "/"
    reason, hint = failure(host.open("start", run_dir=f"{place}/tflaunch-tests"))
    assert "run_dir" in hint
    assert reason.startswith(f"{place}/tflaunch-tests")
    assert re.search(r"Permission denied|No such file|Read-only", reason)
    file = host.work_dir / "file"
    file.touch()
    reason, _ = failure(host.open("start", run_dir=str(file)))
    assert "Not a directory" in reason or "File exists" in reason


def small_disk(directory: Path, size: str) -> tuple[str, ...]:
    """A login shell that finds a file system of `size` on `directory`."""
    mount = f"mount -t tmpfs -o {size} tmpfs '{directory}' || exit 99"
    script = f'{mount}; [ "$1" = -c ] && shift; exec /bin/sh -c "$1"'
    words = ("unshare", "-m", "/bin/sh", "-c", script, "sh")
    if not IS_ROOT or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no private file system can be mounted here: that takes root")
    return words


def test_a_full_disk_is_found_before_anything_starts(host: Host) -> None:
    host.run_dir.mkdir()
    login = small_disk(host.run_dir, "size=64k,nr_inodes=4")
    reason, hint = failure(host.open("start", login=login))
    assert "No space left on device" in reason
    assert "inodes are free" in reason
    assert "run_dir" in hint


def test_a_disk_that_fills_does_not_hide_how_the_task_ended(host: Host) -> None:
    host.run_dir.mkdir()
    channel = host.start(login=small_disk(host.run_dir, "size=256k"))
    code = host.work_dir / "code"
    code.mkdir()
    (code / "big").write_bytes(os.urandom(1_000_000))
    bundle = sources.bundle(code)
    channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")
    channel.write(next(shipping.frames(bundle, [0])))
    reason, hint = failure(channel)
    assert "No space left on device" in reason
    assert "make room" in hint
    script = "head -c 1000000 /dev/zero; exit 6"
    channel.ask(
        "stage", tasks=[shell(script)], code=None, ports=[], gpus=[], door=False, attempt=0, answer="staged"
    )
    channel.send("release")
    exited = channel.wait("exit")
    assert exited["code"] == 6
    assert b"No space left" not in exited.body  # there was no room for even that
    assert swept(channel)["survivors"] == []


def test_a_disk_that_fills_while_code_is_copied_is_told(host: Host) -> None:
    host.run_dir.mkdir()
    channel = host.start(login=small_disk(host.run_dir, "size=256k"))
    code = host.work_dir / "code"
    code.mkdir()
    (code / "big").write_bytes(os.urandom(130_000))
    assert shipped(channel, sources.bundle(code)) == ["big"]
    reason, hint = failure(channel)
    assert "No space left on device, 0." in reason
    assert "make room" in hint
    assert swept(channel)["survivors"] == []


# ---- visits


def visit(host: Host) -> Channel:
    channel = host.open("visit", run="", host="")
    channel.wait("hello")
    return channel


def test_a_visitor_sees_and_ends_a_living_run(host: Host) -> None:
    launcher = host.start()
    running(launcher, shell("trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    launcher.read_log("worker/0", lambda log: b"up" in log)
    agent = json.loads((host.directory / "agent.json").read_text())
    (host.parent / ".nfs0001").touch()
    (host.directory.parent / ".nfs0002").touch()
    visitor = visit(host)
    (run,) = [run for run in visitor.ask("list", answer="runs")["runs"] if run["run"] == host.run]
    assert [(task["task"], task["state"]) for task in run["tasks"]] == [("worker/0", "running")]
    visitor.send("finish", run=host.run, grace_s=10.0)
    finished = visitor.wait("finished")
    assert (finished["found"], finished["survivors"]) == (True, [])
    assert not processes.alive(agent["pid"], agent["start"])
    assert not processes.read(agent["guard"])
    assert b"asked" in (host.directory / "logs" / "worker-0.log").read_bytes()
    assert launcher.wait("expired")["asked"] is True
    again = visitor.ask("finish", run=host.run, grace_s=1.0, answer="finished")
    assert again.fields == {
        "known": True,
        "found": False,
        "killed": [],
        "survivors": [],
        "unsure": False,
        "cards": [],
        "restarted": 0.0,
    }
    assert host.run not in [run["run"] for run in visitor.ask("list", answer="runs")["runs"]]
    visitor.send("bye")
    assert visitor.next() is None


def test_a_visitor_ends_what_nobody_answers_for(host: Host) -> None:
    launcher = host.start()
    running(launcher, task("/bin/sh", "-c", '"$@"; sleep 600', "sh", sys.executable, "-c", ESCAPE))
    launcher.read_log("worker/0", lambda log: log.endswith(b"\n"))
    before = until(lambda: len(found := marked(host.run)) == 3 and found, "sh, what escaped, sleep")
    agent = json.loads((host.directory / "agent.json").read_text())
    os.kill(agent["guard"], signal.SIGKILL)
    os.kill(agent["pid"], signal.SIGKILL)
    gone(agent["pid"], agent["guard"])
    assert marked(host.run), "orphans of a run whose agent and guard are gone"
    visitor = visit(host)
    assert host.run in [run["run"] for run in visitor.ask("list", answer="runs")["runs"]]
    finished = visitor.ask("finish", run=host.run, grace_s=1.0, answer="finished")
    assert finished["found"] is True
    assert finished["survivors"] == []
    assert len(finished["killed"]) == len(before)
    assert not [process for process in before if processes.alive(process.pid, process.start)]


def test_a_visitor_ends_a_run_whose_agent_is_frozen(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from tflaunch.sessions import payload

    launcher = host.start()
    running(launcher, task("env", "-i", "/bin/sleep", "600"))  # no mark: only the guard knows of it
    sleeper = until(
        lambda: [p for p in processes.descendants(agent_pid(host), processes.every()) if p.name == "sleep"],
        "it",
    )
    os.kill(agent_pid(host), signal.SIGSTOP)
    contents = dict(payload._contents())
    begins = b"    try:\n        main("
    impatient = b"    import tflaunch.agent.visit as v; v.MARGIN_S = v.AGENT_S = v.BEAT_S = 0.2\n"
    assert contents["tflaunch.agent.loader"].count(begins) == 1
    contents["tflaunch.agent.loader"] = contents["tflaunch.agent.loader"].replace(begins, impatient + begins)
    monkeypatch.setattr(payload, "_contents", lambda: contents)
    payload.loader.cache_clear()
    visitor = visit(host)
    finished = visitor.ask("finish", run=host.run, grace_s=0.1, answer="finished")
    payload.loader.cache_clear()
    assert (finished["found"], finished["survivors"]) == (True, [])
    gone(sleeper[0].pid)


def agent_pid(host: Host) -> int:
    return int(json.loads((host.directory / "agent.json").read_text())["pid"])


@pytest.mark.parametrize("run", ["no-such-run", "../../etc", "code", ".."])
def test_a_run_that_is_not_there_is_not_found(host: Host, run: str) -> None:
    visitor = visit(host)
    finished = visitor.ask("finish", run=run, grace_s=0.0, answer="finished")
    assert finished.fields == {
        "known": False,
        "found": False,
        "killed": [],
        "survivors": [],
        "unsure": False,
        "cards": [],
        "restarted": 0.0,
    }
    assert not host.run_dir.exists()


def test_a_visitor_ends_a_run_whose_directory_is_gone(host: Host) -> None:
    running(host.start(), task("env", "-i", "/bin/sleep", "600"))
    agent = agent_pid(host)
    sleeper = [each for each in processes.descendants(agent, processes.every()) if each.parent == agent]
    shutil.rmtree(host.directory.parent)
    finished = visit(host).ask("finish", run=host.run, grace_s=0.0, answer="finished")
    assert (finished["found"], finished["survivors"]) == (True, [])
    gone(agent, *(each.pid for each in sleeper))


@pytest.mark.parametrize("run", ["", "h1", "start", "tflaunch-agent"])
def test_a_word_that_is_no_run_ends_none(host: Host, run: str) -> None:
    channel = host.start()
    running(channel, task("sleep", "600"))
    visitor = visit(host)
    finished = visitor.ask("finish", run=run, grace_s=0.0, answer="finished")
    assert finished.fields == {
        "known": False,
        "found": False,
        "killed": [],
        "survivors": [],
        "unsure": False,
        "cards": [],
        "restarted": 0.0,
    }
    assert len(marked(host.run)) == 1
    assert swept(channel)["survivors"] == []


def test_setup_cannot_change_what_the_plan_decided(host: Host) -> None:
    channel = host.start()
    env = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "OTHER": "given"}
    setup = ["export CUDA_VISIBLE_DEVICES=0 OTHER=changed"]
    script = 'echo "$CUDA_VISIBLE_DEVICES $OTHER"'
    running(channel, shell(script, env=env, setup=setup, decided=["CUDA_VISIBLE_DEVICES"]))
    assert channel.wait("exit").body == b"GPU-1,GPU-2 changed\n"


@pytest.mark.skipif(not IS_ROOT, reason="only root can make a directory that belongs to somebody else")
def test_a_parent_that_somebody_else_made_is_believed_nothing(host: Host) -> None:
    with subprocess.Popen(["sleep", "600"]) as victim:
        start = processes.read(victim.pid).start
        trap = Path(host.run_dir) / f"tflaunch-{os.getuid()}"
        directory = trap / "evil-abc123" / "h1"
        directory.mkdir(parents=True)
        (directory / "agent.json").write_text(json.dumps({"pid": victim.pid, "start": start}))
        os.chown(trap, 65534, 65534)
        for verb in ("visit", "start"):
            reason, _ = failure(host.open(verb))
            assert "belongs to uid 65534" in reason
        assert victim.poll() is None
        victim.kill()


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


def test_a_login_profile_does_not_change_the_requested_environment(host: Host, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bash_profile").write_text("export WANTED=profile OTHER=profile\n")
    channel = host.start()
    env = {"HOME": str(home), "WANTED": "asked"}
    running(channel, shell('echo "$WANTED $OTHER $MORE"', env=env, setup=["export MORE=$WANTED-more"]))
    assert channel.wait("exit").body == b"asked profile asked-more\n"
