"""Another user of a host, really another uid, who wants to run code as ours or to be in our way."""

from __future__ import annotations

import grp
import marshal
import os
import pwd
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import Host, kept_modules, running, shell, staged
from tests.support.leases import look
from tests.support.other_users import BECOME, NOBODY, WAIT, done_by_nobody, nobody, refused
from tests.support.patience import until
from tflaunch.protocol import ancestry

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


# ---- run_dir: who could put another directory in its place


@pytest.mark.parametrize("verb", ["start", "visit"])
@pytest.mark.parametrize(
    ("mode", "owner", "group", "said"),
    [
        (
            0o2775,
            0,
            100,
            "has no sticky bit (its mode is 2775): everybody in the group "
            f"{grp.getgrgid(100).gr_name} could put another directory",
        ),
        (0o777, 0, 0, "has no sticky bit (its mode is 0777): everybody could put another directory"),
        (0o755, NOBODY.pw_uid, 0, f"belongs to uid {NOBODY.pw_uid}, who could put another directory"),
        (0o1777, NOBODY.pw_uid, 0, f"belongs to uid {NOBODY.pw_uid}, who could put another directory"),
    ],
)
def test_a_directory_in_which_others_may_rename_ours_is_refused(  # noqa: PLR0917
    host: Host, lab: Path, verb: str, mode: int, owner: int, group: int, said: str
) -> None:
    place, below = lab / "scratch", "mine/deep"
    place.mkdir()
    os.chown(place, owner, group)
    place.chmod(mode)
    (place / below).mkdir(parents=True, exist_ok=True)
    reason, hint = refused(host.open(verb, run_dir=place / below))
    assert reason == f"{place} {said} in the place of {place / below}/tflaunch-0"
    assert "`run_dir:`" in hint
    assert ("chmod +t" in hint) == (owner == 0)
    assert list((place / below).iterdir()) == [], "nothing was made there"


def test_the_sticky_bit_mends_it(host: Host, lab: Path) -> None:
    place = lab / "scratch"
    place.mkdir()
    os.chown(place, 0, 100)
    place.chmod(0o2775)
    _, hint = refused(host.open("start", run_dir=place))
    command = hint.partition(",")[0]
    assert command == f"chmod +t {place}"
    subprocess.run(command.split(), check=True)
    host.run_dir = place
    channel = host.start()
    running(channel, shell("echo trained"))
    assert channel.wait("exit")["code"] == 0


def test_a_link_that_another_user_has_made_is_not_followed(host: Host, lab: Path) -> None:
    lab.chmod(0o1777)
    (lab / "real").mkdir()
    done_by_nobody("os.symlink(sys.argv[1], sys.argv[2])", lab / "real", lab / "link")
    reason, _ = refused(host.open("start", run_dir=lab / "link"))
    assert reason.startswith(f"{lab / 'link'} belongs to uid {NOBODY.pw_uid}, who could put another")
    (lab / "mine").symlink_to("real")
    host.run_dir = lab / "mine"
    host.start()
    assert (lab / "real/tflaunch-0").is_dir()


def test_what_leads_there_is_made_for_this_user_alone(host: Host, lab: Path) -> None:
    lab.chmod(0o1777)
    host.run_dir = lab / "a/b/c"
    before = os.umask(0)
    try:
        host.start()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (lab / "a", lab / "a/b", lab / "a/b/c")] == [0o700] * 3


def test_a_group_of_one_is_its_owner(lab: Path) -> None:
    """umask 002 where every user has a group of his own."""
    lonely = next(
        user
        for user in pwd.getpwall()
        if user.pw_uid
        and (group := grp.getgrgid(user.pw_gid)).gr_name == user.pw_name
        and not group.gr_mem
        and [each.pw_gid for each in pwd.getpwall()].count(user.pw_gid) == 1
    )
    place = lab / "home"
    place.mkdir()
    script = (
        "import grp, os, pwd, sys\nfrom tflaunch.protocol import ancestry\nos.setgroups([])\n"
        "os.setgid(int(sys.argv[2]))\nos.setuid(int(sys.argv[3]))\nprint(ancestry.weak_place(sys.argv[1]))"
    )

    def judged(user: pwd.struct_passwd, group: int) -> str:
        os.chown(place, user.pw_uid, group)
        place.chmod(0o775)
        words = [sys.executable, "-c", script, str(place), str(user.pw_gid), str(user.pw_uid)]
        return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert judged(lonely, lonely.pw_gid) == "None\n"
    assert str(place) in judged(lonely, 100), "a group of many"
    assert str(place) in judged(NOBODY, NOBODY.pw_gid), "others have that group, too"
    assert str(place) in judged(pwd.getpwnam("root"), lonely.pw_gid)
    os.chown(place, 0, 0)
    assert ancestry.weak_place(str(place)) is None
    # user::rwx, user:nobody:rwx, group::r-x, mask::rwx, other::r-x: the bits of the group are the mask.
    entries = ((1, 7, -1), (2, 7, NOBODY.pw_uid), (4, 5, -1), (16, 7, -1), (32, 5, -1))
    packed = (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + (who & 0xFFFFFFFF).to_bytes(4, "little")
        for tag, bits, who in entries
    )
    try:
        os.setxattr(place, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error}")
    assert place.stat().st_mode & 0o777 == 0o775
    assert ancestry.weak_place(str(place)) is not None


def test_in_a_user_namespace_root_of_the_machine_is_believed(tmp_path: Path, lab: Path) -> None:
    """There it looks like a user who has no number."""
    shutil.copy(ancestry.__file__, lab / "ancestry.py")
    ask = "import os, sys; sys.path.insert(0, sys.argv[1]); import ancestry; "
    ask += "print(os.stat('/').st_uid, ancestry.weak_place('/var/tmp'))"
    words = ["unshare", "--user", "--map-root-user", "/usr/bin/python3", "-c", ask, str(lab)]
    done = subprocess.run(
        words,
        user=NOBODY.pw_uid,
        group=NOBODY.pw_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no user namespace for nobody: {done.stderr.strip()}")
    assert done.stdout == f"{Path('/proc/sys/kernel/overflowuid').read_text().strip()} None\n"


# Exchanges the directory of root's runs and his own for ever.
EXCHANGE = (
    BECOME
    + """\
libc = ctypes.CDLL(None)
ours, his = (os.fsencode(each) for each in sys.argv[1:3])
print("ready", flush=True)
while True:
    libc.renameat2(-100, ours, -100, his, 2)
"""
)


def test_hostile_modules_do_not_run_however_quickly_directories_are_exchanged(host: Host, lab: Path) -> None:
    host.env["HOME"] = str(lab)
    place = lab / "scratch"
    place.mkdir()
    place.chmod(0o1777)
    host.run_dir = place
    ended = host.open("visit")
    ended.wait("hello")
    ours = host.parent
    ours.mkdir(mode=0o700)
    (ours / "code").mkdir(mode=0o700)
    ended = host.open("visit")
    ended.wait("hello")
    trap = lab / "trap"
    shutil.copytree(ours, trap)
    proof = lab / "proof"
    hostile = marshal.dumps(compile(f"open({str(proof)!r}, 'w')", "hostile", "exec"))
    assert kept_modules(place), "what he knows the names of"
    for path in kept_modules(place):
        (trap / path.relative_to(ours)).write_bytes(zlib.crc32(hostile).to_bytes(4, "big") + hostile)
    subprocess.run(["chown", "-R", str(NOBODY.pw_uid), trap], check=True)
    shutil.move(trap, place / "his")
    os.chown(place, 0, NOBODY.pw_gid)
    place.chmod(0o2775)
    with nobody(EXCHANGE, ours, place / "his"):
        for _ in range(20):
            reason, _ = refused(host.open("visit"))
            assert "could put another directory" in reason
    assert not proof.exists()


# ---- processes of others that look like ours


LOOKS = BECOME + "os.execve('/bin/sh', ['sh', '-c', 'echo ready; read x', *sys.argv[1:]], %r)\n"


def test_processes_of_another_user_are_no_processes_of_a_run(host: Host) -> None:
    channel = host.start()
    running(channel, shell("true"))
    channel.wait("exit")
    channel.send("end", grace_s=1.0)
    channel.wait("swept")
    channel.send("bye")
    assert channel.next() is None
    agent = ["x", "tflaunch-agent", "1", "start", host.run, "h1"]
    marks = {"TFLAUNCH_RUN": host.run, "TFLAUNCH_HOST": "h1", "TFLAUNCH_TASK": "worker/0"}
    with (
        nobody(LOOKS % {}, *agent) as like_an_agent,
        nobody(LOOKS % marks) as like_a_task,
    ):
        visit = host.open("visit", run="", host="")
        visit.wait("hello")
        (known,) = visit.ask("list", all=True, answer="runs")["runs"]
        assert (known["state"], known["strays"]) == ("ended", [])
        for _ in range(2):  # with its directory, and when that is gone
            finished = visit.ask("finish", run=host.run, grace_s=0.0, answer="finished")
            assert (finished["found"], finished["killed"], finished["survivors"]) == (False, [], [])
            (usage,) = visit.ask("measure", answer="usage")["runs"] or [{"keep": ""}]
            assert usage["keep"] == ""
            visit.ask("clean", runs=[host.run], code_older_s=None, dry_run=False, answer="cleaned")
            assert not host.directory.exists()
        assert like_an_agent.poll() is None
        assert like_a_task.poll() is None


# ---- ports


SQUAT = (
    BECOME
    + """\
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept = []
for port in range(20000, 30000):
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind("\\0tflaunch-port-0-%d" % port)
    except OSError:
        continue  # an older tflaunch is at work on this machine
    kept.append(name)
"""
    + WAIT
)


def test_names_that_another_user_takes_cost_no_port(host: Host) -> None:
    with nobody(SQUAT):
        channel = host.start()
        ports = channel.ask("probe", lease=False, ports=None, count=3, answer="facts")["ports"]
    assert len(ports) == 3
    for port in ports:
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", port))
        with socket.socket() as joined:
            joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            joined.bind(("127.0.0.1", port))


# ---- systemd-tmpfiles


def test_systemd_tmpfiles_leaves_a_run_alone_that_lives(
    gpus: Host, leases: Path, lab: Path, tmp_path: Path
) -> None:
    """`lab` is what /var/tmp is elsewhere."""
    if shutil.which("systemd-tmpfiles") is None:
        pytest.skip("systemd-tmpfiles is not installed")
    lab.chmod(0o1777)
    gpus.run_dir = lab
    aged = tmp_path / "aged.conf"
    aged.write_text(f"d {lab} 1777 root root 1s\n")
    channel = gpus.start()
    look(channel, lease=True)
    (gpus.parent / "code/files").mkdir(mode=0o700, exist_ok=True)
    (gpus.parent / "code/files/content").write_text("shipped")
    staged(channel, shell("mkdir -p deep/er; touch deep/er/checkpoint; sleep 600"))
    channel.send("keep", gpus=["GPU-a"])
    channel.send("release")
    channel.wait("started")
    until((gpus.directory / "work/deep/er/checkpoint").exists, "what the task writes")
    kept = set(lab.rglob("*"))

    old = lab / "old"
    old.mkdir()
    (old / "file").touch()

    def cleaned(path: Path) -> bool:
        subprocess.run(["systemd-tmpfiles", "--clean", aged], check=True)
        return not path.exists()

    until(lambda: cleaned(old), "what is younger, and nobody's, to be removed")
    assert kept - set(lab.rglob("*")) == set()
    names = {path.name for path in kept}
    assert {"agent.json", "plan.json", "agent.sock", "worker-0.log", "GPU-a", "content"} <= names
    visit = gpus.open("visit", run="", host="")
    visit.wait("hello")
    (known,) = visit.ask("list", all=True, answer="runs")["runs"]
    assert known["state"] == "alive"
    channel.send("end", grace_s=0.0)
    channel.wait("swept")
    channel.send("bye")
    assert channel.next() is None
    # Not at once: a directory out of which something was removed is young again.
    until(lambda: cleaned(gpus.directory), "an ended run to go as anything does")
    until(lambda: cleaned(leases / "GPU-a"), "what its lease was, too")
