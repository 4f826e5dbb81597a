"""`tflaunch stop RUN --user NAME`: root ends another user's run, with that user's rights."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.endless import endless
from tests.support.launcher import Launcher
from tests.support.other_users import NOBODY
from tests.support.patience import until
from tests.support.sshd import Sshd, SshNetwork
from tflaunch.agent.host import processes

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act for another user")

PATH = "/usr/bin:/bin"  # root's own python3 may lie where another user cannot read it


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in which all may write, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o1777)  # noqa: S103, PTH101
        yield Path(directory)


@pytest.fixture
def nobodys(network: SshNetwork, scratch: Path) -> Sshd:
    """A host on which the log-in is nobody's."""
    become = f"setpriv --reuid={NOBODY.pw_uid} --regid={NOBODY.pw_gid} --clear-groups"
    command = f'ForceCommand exec {become} /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
    return network.add(options=[command], path=PATH, env={"HOME": str(scratch)})


@pytest.fixture
def roots(network: SshNetwork, nobodys: Sshd) -> Sshd:
    """The same machine, where the log-in is root's."""
    return network.add(path=PATH)


def test_root_ends_the_run_and_its_user_sees_who_did(
    launcher: Launcher, nobodys: Sshd, roots: Sshd, scratch: Path
) -> None:
    own = launcher.hostfile([nobodys.name], "own.yaml", run_dir=str(scratch), python="python3")
    administrators = launcher.hostfile([roots.name], "root.yaml", run_dir=str(scratch))
    elsewhere = {"TFLAUNCH_STATE": str(launcher.directory / "administrators")}
    with endless(launcher, own) as running:
        run = running.run_id
        place = scratch / f"tflaunch-{NOBODY.pw_uid}"
        assert place.stat().st_uid == NOBODY.pw_uid

        listed = launcher.run("ps", administrators, "--user", "nobody", "-q", env=elsewhere).ran()
        assert listed.out.split() == [run]
        without = launcher.run("stop", run, "--hosts", administrators, env=elsewhere).ran(2)
        assert f"these hosts know no run {run}" in without.sentences, "not root's own"

        words = ("stop", run, "--user", "nobody", "--hosts", administrators)
        done = launcher.run(*words, env=elsewhere).ran()
        assert f"{run} is stopped: 1 host checked, nothing is left running" in done.sentences
        ended = running.done().ran(143)
    status = launcher.run("status", run).ran()
    assert "stopped by root (root@" in status.out
    assert "tflaunch stop by root (root@" in ended.sentences
    owners = {path.lstat().st_uid for path in place.rglob("*")}
    assert owners == {NOBODY.pw_uid}, "root has touched nothing there"


def test_a_planted_link_does_not_lead_root_anywhere(launcher: Launcher, roots: Sshd, scratch: Path) -> None:
    precious = launcher.directory / "precious"
    (precious / "trainer-abcdef" / roots.name).mkdir(parents=True)
    before = {path: path.stat().st_mtime_ns for path in precious.rglob("*")}
    link = scratch / f"tflaunch-{NOBODY.pw_uid}"
    link.symlink_to(precious)
    os.lchown(link, NOBODY.pw_uid, NOBODY.pw_gid)
    hosts = launcher.hostfile([roots.name], run_dir=str(scratch))
    refused = launcher.run("stop", "trainer-abcdef", "--user", "nobody", "--hosts", hosts).ran(69)
    assert f"{link} is not your directory but a link" in refused.sentences
    assert {path: path.stat().st_mtime_ns for path in precious.rglob("*")} == before


def test_a_planted_pid_ends_no_process_of_root(launcher: Launcher, roots: Sshd, scratch: Path) -> None:
    """The record of the run names a process of root's as its agent."""
    place = scratch / f"tflaunch-{NOBODY.pw_uid}"
    directory = place / "trainer-abcdef" / roots.name
    directory.mkdir(parents=True)
    with subprocess.Popen(["/bin/sleep", "600"]) as roots_own:
        try:
            about = processes.read(roots_own.pid)
            assert about is not None
            named = {"pid": about.pid, "start": about.start}
            (directory / "agent.json").write_text(json.dumps(named))
            for path in (place, *place.rglob("*")):
                os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
                path.chmod(0o700 if path.is_dir() else 0o600)
            hosts = launcher.hostfile([roots.name], run_dir=str(scratch))
            stopped = launcher.run("stop", "trainer-abcdef", "--user", "nobody", "--hosts", hosts)
            assert stopped.code in (0, 76), stopped.err
            assert roots_own.poll() is None
        finally:
            roots_own.kill()


def test_only_root_may(launcher: Launcher, nobodys: Sshd, roots: Sshd, scratch: Path) -> None:
    hosts = launcher.hostfile([nobodys.name], run_dir=str(scratch))
    refused = launcher.run("stop", "trainer-abcdef", "--user", "sshd", "--hosts", hosts).ran(69)
    assert "only root may act for sshd on this host: log in there as root" in refused.sentences
    unknown = launcher.hostfile([roots.name], run_dir=str(scratch))
    refused = launcher.run("stop", "trainer-abcdef", "--user", "nosuch", "--hosts", unknown).ran(69)
    assert "this host knows no user nosuch" in refused.sentences
    wrong = launcher.run("stop", "trainer-abcdef", "--user", "a;b", "--hosts", unknown).ran(2)
    assert "'a;b' is not the name of an account" in wrong.sentences
    until(lambda: not launcher.leftovers(), "the end of all")
