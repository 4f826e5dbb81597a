"""Environments that hosts make of requirements, here offline: the agent as it is shipped, over pipes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Channel, Host, descriptors, staged, task
from tests.support.launcher import alive
from tests.support.patience import until
from tests.support.wheels import made
from tflaunch.agent.host import processes
from tflaunch.hosts import Host as Entry
from tflaunch.planning.environments import read, to_prepare
from tflaunch.protocol import wire
from tflaunch.protocol.job import JobSpec, Requirements


def prepare(channel: Channel, wanted: Requirements, **more: object) -> Channel:
    """Ask for it."""
    fields = to_prepare(Entry("here", python=sys.executable), JobSpec((), requirements=wanted), [])
    channel.send("prepare", **{**fields, **more})
    return channel


def prepared(channel: Channel) -> wire.Message:
    """What came of it: an installer takes its time on a busy machine."""
    while message := channel.next():
        if message.type in ("prepared", "failed"):
            return message
    raise AssertionError(channel.last_words())


def waits_for(agent: int, lock: str) -> bool:
    """Whether a child of that process has this file open."""
    for process in processes.descendants(agent, processes.every()):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            if lock in descriptors(process.pid).values():
                return True
    return False


def simple(wheels: Path, *lines: str, **more: object) -> Requirements:
    text = f"--no-index\n--find-links {wheels}\n" + "".join(f"{line}\n" for line in lines)
    return Requirements("pip", "r.txt", {"r.txt": text}, **more)  # type: ignore[arg-type]


@pytest.fixture
def second(tmp_path: Path, host: Host) -> Iterator[Host]:
    """Another run on the same machine."""
    other = Host(tmp_path)
    other.run += "-second"
    yield other
    other.close()


def test_two_runs_that_want_the_same_make_it_once(host: Host, second: Host, wheels: Path) -> None:
    """The one waits for the other's; and it stays as long as a run uses it, then as long as `clean` says."""
    channels = [host.start(), second.start()]
    for channel in channels:
        prepare(channel, simple(wheels, "tiny==1.0"))
    assert sorted(prepared(channel)["made"] for channel in channels) == [False, True]
    (path,) = made(host.parent)
    aged = os.open(path.parent, os.O_RDONLY)  # as systemd-tmpfiles does, to remove what nobody has touched
    with pytest.raises(BlockingIOError):
        fcntl.flock(aged, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(aged)
    staged(channels[0], task("sleep", "600"))
    (planned,) = json.loads((host.directory / "plan.json").read_text())["tasks"]
    assert str(path) in "".join(planned["setup"]), "TensorBoard is started by what is written there"
    old = 30 * 86400
    os.utime(path / "made.json", (1, 1))
    visit = host.open("visit", run="", host="")
    clean = {"runs": [], "code_older_s": old, "dry_run": False, "answer": "cleaned"}
    assert visit.ask("clean", **clean)["environments"]["files"] == 0  # type: ignore[arg-type]
    assert visit.ask("measure", answer="usage")["environment_bytes"] > 10_000
    for channel in channels:
        channel.ask("end", grace_s=0.0, answer="swept")
        channel.leave()
        assert channel.wait_end() == 0
    lock = Path(f"{path}.lock")
    until(
        lambda: not any(str(lock) in set(descriptors(p).values()) for p in host._watched if alive(p)),
        "agents",
    )
    os.utime(path / "made.json")
    assert visit.ask("clean", **clean)["environments"]["files"] == 0  # type: ignore[arg-type]
    os.utime(path / "made.json", (1, 1))
    cleaned = visit.ask("clean", **clean)["environments"]  # type: ignore[arg-type]
    assert cleaned["files"] == 1
    assert cleaned["bytes"] > 10_000
    assert list((host.parent / ".environments").iterdir()) == []


def test_the_last_line_of_what_installs_is_told_as_long_as_it_goes_on(
    host: Host, wheels: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    setup = ["printf 'first\\n50%%\\rtwo of 9\\n\\n' >&2", f"until test -e {go}; do sleep 0.1; done"]
    channel = prepare(host.start(), simple(wheels, "tiny==1.0"), setup=setup)
    assert channel.wait("preparing")["line"] == "two of 9"
    go.touch()
    said = []
    while (message := channel.next()) and message.type != "prepared":
        said.append(message["line"] if message.type == "preparing" else message.type)
    assert message is not None
    assert message["made"] is True
    assert "two of 9" not in said, "what has been told is not told again"


def test_what_was_killed_half_way_is_made_anew(host: Host, wheels: Path) -> None:
    """An environment without its last file is nobody's."""
    channel = prepare(host.start(), simple(wheels, "tiny==2.0"))
    prepared(channel)
    channel.ask("end", grace_s=0.0, answer="swept")
    (path,) = made(host.parent)
    (path / "made.json").unlink()
    shutil.rmtree(path / "lib")
    host.run += "-again"
    assert prepared(prepare(host.start(), simple(wheels, "tiny==2.0")))["made"] is True
    assert made(host.parent) == [path]
    assert list(path.glob("lib/*/site-packages/tiny.py"))


def test_the_agent_does_not_wait_for_who_makes_it_anew(host: Host, wheels: Path) -> None:
    """What it has found may be taken away before it holds it: then it waits aside."""
    channel = prepare(host.start(), simple(wheels, "tiny==1.0"))
    prepared(channel)
    (path,) = made(host.parent)
    channel.ask("end", grace_s=0.0, answer="swept")
    channel.leave()
    assert channel.wait_end() == 0
    host.run += "-again"
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]
    with Path(f"{path}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepare(channel, simple(wheels, "tiny==1.0"))
        until(lambda: waits_for(agent, lock.name), "the process that prepares")
        os.kill(agent, signal.SIGSTOP)
        fcntl.flock(lock, fcntl.LOCK_UN)
        until(lambda: not waits_for(agent, lock.name), "it to have found the environment")
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.kill(agent, signal.SIGCONT)
        until(lambda: waits_for(agent, lock.name), "the next one")
        channel.ask("clock", sent=1.0, answer="clock")
    assert prepared(channel)["made"] is False
    assert str(path) + ".lock" in descriptors(agent).values()


def test_system_site_packages_are_those_of_the_interpreter_itself(
    host: Host, wheels: Path, tmp_path: Path
) -> None:
    """Also where that is of a virtual environment, whose packages venv alone would not show."""
    outer = tmp_path / "outer"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", outer], check=True)
    (tmp_path / "editable").mkdir()
    (tmp_path / "editable" / "heavy.py").write_text("value = 'heavy'\n")
    (next(outer.glob("lib/*/site-packages")) / "of-pip.pth").write_text(f"{tmp_path / 'editable'}\n")
    wanted = simple(wheels, "tiny", system_site=True)
    assert prepared(prepare(host.start(), wanted, python=str(outer / "bin" / "python")))["made"] is True
    (path,) = made(host.parent)
    words = [path / "bin" / "python", "-c", "import heavy, tiny; print(heavy.value, tiny.value)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "heavy 2.0\n"


UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(UV is None, reason="there is no uv here")
@pytest.mark.parametrize("kind", ["project", "lock"])
def test_projects_need_uv(host: Host, wheels: Path, tmp_path: Path, kind: str) -> None:
    """pyproject.toml, and uv.lock beside it; a host without uv says so."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.8"\ndependencies = ["tiny==1.0"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n'
    )
    assert UV is not None
    if kind == "lock":
        env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
        subprocess.run([UV, "lock", "--quiet", "--offline"], cwd=project, env=env, check=True)
    wanted = read(project / "pyproject.toml")
    assert (wanted.kind, wanted.name) == (kind, {"lock": "uv.lock", "project": "pyproject.toml"}[kind])
    without = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    failed = prepared(prepare(host.start(), wanted, env=without))
    assert failed["reason"] == f"{wanted.name} needs uv, and there is no uv on this host"
    host.run += "-again"
    path = {"PATH": f"{Path(UV).parent}:/usr/bin:/bin", "UV_CACHE_DIR": str(tmp_path / "cache")}
    if kind == "lock":  # the launcher's own, on a host that is this machine
        channel = host.start()
        prepare(channel, wanted, env={**without, "UV_CACHE_DIR": str(tmp_path / "cache")}, uv=UV)
        done = prepared(channel)
        assert done.type == "prepared", done.fields
    else:
        assert prepared(prepare(host.start(), wanted, env=path))["made"] is True
    (path_made,) = made(host.parent)
    assert list(path_made.glob("lib/*/site-packages/tiny.py"))
