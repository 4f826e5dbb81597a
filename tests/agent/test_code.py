"""Code that is shipped: what is sent, what is kept, and what is damaged. The agent as it is shipped, over pipes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_over_pipes import (
    Channel,
    Host,
    environment,
    failure,
    interpreters,
    shell,
    small_disk,
    swept,
    task,
)
from tests.support.code import grow
from tests.support.other_users import BECOME, NOBODY
from tests.support.patience import until
from tflaunch.agent.files.checked import CHECKED, SETTLED_NS
from tflaunch.code import bundle as sources
from tflaunch.code import shipping
from tflaunch.protocol import wire


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
    for frame, _ in shipping.frames(bundle, lacks):
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
    kept = {path.name for path in (any_host.parent / "code").iterdir()}
    compiled = {name for name in kept if name.startswith("sitecustomize.")}  # for the Python of the next task
    assert kept - compiled == {f"{bundle.digest}.tree", "files"}
    assert {path.name for path in (any_host.parent / "code/files").iterdir()} == {*bundle.contents}


def shipped(channel: Channel, bundle: sources.Bundle, **fields: Any) -> list[str]:
    """Bring it there, and stage it; the paths of what was sent."""
    lacks = channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")["lacks"]
    if lacks:
        for frame, _ in shipping.frames(bundle, lacks):
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


# Keeps its sources beside its results, as programs do, changes what it kept, and writes into its own files.
KEEPS_ITS_SOURCES = """\
import os, shutil, sys
here, logdir = os.path.dirname(os.path.abspath(__file__)), sys.argv[1]
os.makedirs(logdir, exist_ok=True)
for start in range(2):
    shutil.copy(__file__, logdir)
    shutil.copytree(here + "/net", logdir + "/net", dirs_exist_ok=True)
for name in ("net/model.py", "net/ops.so"):
    for place in (here, logdir):
        with open(place + "/" + name, "a") as file:
            file.write("mine")
    with open(here + "/" + name) as file:
        assert file.read().count("mine") == 1, "of another run"
"""


@pytest.fixture
def anybodys_python() -> str:
    """A Python that another user may start, too."""
    for each in interpreters():
        script = f"exec '{each}' -c '' 2> /dev/null"
        if not subprocess.run(["/bin/sh", "-c", script], user=NOBODY.pw_uid, check=False).returncode:
            return each
    pytest.skip("every Python of this machine lies where only root comes")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_who_is_not_root_may_copy_and_change_what_came_again_and_again(
    lab: Path, anybodys_python: str
) -> None:
    code = grow(
        lab / "code", {"train.py": KEEPS_ITS_SOURCES, "net/model.py": "x", "net/ops.so": "y" * 100_000}
    )
    theirs = lab / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY.pw_uid, NOBODY.pw_gid)
    host = Host(lab, anybodys_python)
    host.run_dir, host.env = theirs / "runs", environment(lab, host.env["PATH"])
    login = (sys.executable, "-c", BECOME + "os.execv('/bin/sh', ['sh', *sys.argv[1:]])")
    program = task("python3", "train.py", str(theirs / "logs"))
    try:
        for sent in (3, 0, 0):  # runs with one directory for their results
            channel = host.start(login=login)
            assert len(shipped(channel, sources.bundle(code), tasks=[program])) == sent
            channel.wait("staged")
            channel.send("release")
            assert (channel.wait("exit")["code"], channel.log) == (0, {})
            swept(channel)
            host.run += "-again"
        assert (theirs / "logs/train.py").stat().st_uid == NOBODY.pw_uid
    finally:
        host.close()


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
    for frame, _ in shipping.frames(bundle, lacks[0]):
        for channel in channels:
            channel.write(frame)
    for channel in channels:
        assert channel.wait("code")["have"] is True
        assert shipped(channel, bundle) == []
        channel.wait("staged")
        swept(channel)
    assert {path.name for path in (host.parent / "code/files").iterdir()} == {*bundle.contents}


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


def test_what_was_checked_and_has_changed_since_is_found(host: Host) -> None:
    if not os.major(host.work_dir.stat().st_dev):
        pytest.skip("no disk of this machine: there, all is read at each launch")
    code = grow(host.work_dir / "code", {"data": "x" * 1_100_000, "other": "y"})
    packed = sources.bundle(code)
    kept = host.parent / "code/files" / str(packed.entries[0][2])
    index = host.parent / "code" / CHECKED
    for sent in (["data", "other"], []):
        channel = host.start()
        assert shipped(channel, packed) == sent
        channel.wait("staged")
        swept(channel)
        host.run += "-again"
        until(lambda: time.time_ns() > kept.stat().st_ctime_ns + SETTLED_NS, "its contents to be of some age")
    assert json.loads(index.read_text())["lines"].keys() == packed.contents.keys()
    before = kept.stat()
    with kept.open("r+b") as file:
        file.write(b"!")
    os.utime(kept, ns=(before.st_atime_ns, before.st_mtime_ns))
    channel = host.start()
    assert shipped(channel, packed) == []
    reason, _ = failure(channel)
    assert str(kept) in reason


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


def test_contents_that_nobody_lacks_leave_the_store_as_it_is(host: Host) -> None:
    code = host.work_dir / "code"
    code.mkdir()
    (code / "data").write_bytes(b"x" * 50_000)
    bundle = sources.bundle(code)
    channel = host.start()
    shipped(channel, bundle)
    channel.wait("staged")
    swept(channel)
    host.run += "-again"
    channel = host.start()
    [tree] = host.parent.glob("code/*.tree")
    before = tree.read_bytes()
    assert channel.ask("code", bundle.manifest, digest=bundle.digest, answer="code")["have"]
    for body in (b"", b"{}"):
        channel.send("blob", body, packed=False, last=True)
        reason, _ = failure(channel)
        assert "contents came that were not lacking" in reason
        assert tree.read_bytes() == before


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
            for frame, _ in shipping.frames(bundle, lacks):
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
