"""Another user of a host, really another uid, who wants to have our GPUs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import Host
from tests.support.lab import PATH
from tests.support.leases import another, busy, look
from tests.support.nvml import Fleet
from tests.support.other_users import BECOME, LOCK, NOBODY, NOW, WAIT, done_by_nobody, nobody, vendor
from tests.support.patience import until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


# ---- leases


def test_a_lease_file_that_is_removed_frees_no_gpu_that_the_kernel_knows(gpus: Host, leases: Path) -> None:
    vendor(leases, 0)
    first, second = gpus.start(), another(gpus, "second")
    assert busy(look(first, lease=True)) == ["", ""]
    (leases / "GPU-a").unlink()
    for lease in (False, True):
        assert busy(look(second, lease))[0] == f"leased to root's run {gpus.run}", "named by its command line"
    until((leases / "GPU-a").exists, "the agent to take the file anew")
    told = "was removed while this run held it; it is taken anew"
    until(lambda: told in (gpus.directory / "agent.log").read_text(), "the agent to note it")
    first.send("let_go")
    look(first)
    assert busy(look(second, lease=True)) == ["", ""]


def test_a_lease_file_that_is_removed_is_taken_anew_or_its_loss_is_told(gpus: Host, leases: Path) -> None:
    """Where the kernel shows no file of the GPU: then the file is all there is."""
    first, second = gpus.start(), another(gpus, "second")
    look(first, lease=True)
    (leases / "GPU-a").unlink()
    until((leases / "GPU-a").exists, "the agent to take the file anew")
    assert busy(look(second, lease=True))[0] == f"leased to root's run {gpus.run}"
    assert "taken anew" in first.wait("said")["text"]
    with contextlib.suppress(FileNotFoundError):
        (leases / "GPU-a").unlink()
    assert busy(look(second, lease=True))[0] == "", "the window that there is"
    text = first.wait("said")["text"]
    assert text == (
        f"{leases}/GPU-a was removed while this run held it, and root's run {gpus.run}-second has taken that GPU: "
        "two runs are on it"
    )


PLANTED = {
    "a file for him alone": "os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600))",
    "a FIFO": "os.mkfifo(sys.argv[1])",
    "a directory": "os.mkdir(sys.argv[1]); open(sys.argv[1] + '/x', 'w')",
    "a link": "os.symlink('/etc/passwd', sys.argv[1])",
    "a socket": "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])",
}


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel's file", "file alone"])
@pytest.mark.parametrize("planted", PLANTED)
def test_what_another_user_has_put_there_keeps_no_gpu_from_anybody(
    gpus: Host, leases: Path, planted: str, kernel: bool
) -> None:
    done_by_nobody(PLANTED[planted], leases / "GPU-a")
    if kernel:
        vendor(leases, 0)
    first, second = gpus.start(), another(gpus, "second")
    assert busy(look(first, lease=True)) == ["", ""]
    assert busy(look(second, lease=False))[0] == f"leased to root's run {gpus.run}"
    assert busy(look(second, lease=True))[0] == f"leased to root's run {gpus.run}"


def test_a_private_file_of_ours_that_somebody_has_moved_there_stays_as_it_is_and_is_named(
    gpus: Host, leases: Path
) -> None:
    private = leases / "GPU-a"
    private.write_text("my diary")
    private.chmod(0o600)
    first, second = gpus.start(), another(gpus, "second")
    assert busy(look(first, lease=True)) == ["", ""]
    assert busy(look(second, lease=True))[0] == f"leased to root's run {gpus.run}"
    assert first.wait("said")["text"] == (
        f"{private} is a file of root (uid 0), where a GPU's lease is kept, but no lease file (its mode is 0600): it "
        f"stays as it is; its owner or root may: mv {private} DIRECTORY"
    )
    first.send("keep", gpus=[])
    look(first)
    assert (private.read_text(), private.stat().st_mode & 0o7777) == ("my diary", 0o600)


@pytest.mark.parametrize("mode", [0o666, 0o600], ids=["anybody's", "his"])
def test_an_older_tflaunch_holds_a_file_that_is_no_lease_file_to_this_one(
    gpus: Host, leases: Path, mode: int
) -> None:
    """It takes any plain file: so the lock on one counts, also where nothing would be written to it now."""
    file = leases / "GPU-a"
    file.write_bytes(b"x" * 10_000)
    file.chmod(mode)
    channel = gpus.start()
    with nobody(
        LOCK.replace(BECOME, BECOME if mode == 0o666 else "import fcntl, sys\n"), file, fcntl.LOCK_EX
    ):
        for lease in (False, True):
            assert busy(look(channel, lease))[0].startswith("leased to pid ")
    until(lambda: busy(look(channel, lease=True)) == ["", ""], "its end")


# Takes a GPU as an agent does, as that user, and says who has it else.
TAKE = """\
import json, os, sys
from tflaunch.agent.gpus import leases
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
held = leases.Leases(sys.argv[2])
print(leases.holder("GPU-a"))
try:
    print(held.take("GPU-a"), flush=True)
except leases.HostError as error:
    print("HostError", error.reason, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def taking(leases: Path, uid: int, run: str) -> Iterator[tuple[str, str]]:
    """What that user's agent sees, and whether it could take the GPU; it holds it until the end."""
    with subprocess.Popen(
        [sys.executable, "-c", TAKE, str(uid), run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TFLAUNCH_LEASES": str(leases)},
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_file_that_its_owner_alone_may_open_keeps_no_gpu_from_others_nor_lets_two_have_it(
    leases: Path,
) -> None:
    daemon = pwd.getpwnam("daemon").pw_uid
    done_by_nobody(PLANTED["a file for him alone"], leases / "GPU-a")
    with taking(leases, daemon, "one") as first:
        assert first == ("None", "None"), "nobody had it, and now daemon has"
        for uid in (NOBODY.pw_uid, 2):
            with taking(leases, uid, "two") as second:
                assert all("'user': 'daemon', 'run': 'one'" in each for each in second)
    (leases / "GPU-a").chmod(0o600)
    with taking(leases, NOBODY.pw_uid, "three") as third:
        assert third == ("None", "None")
        (leases / "GPU-a").chmod(0o600)
        with taking(leases, daemon, "four") as fourth:
            assert all("'user': 'nobody', 'run': 'three'" in each for each in fourth)


def test_whose_it_is_and_what_to_do_is_said_when_every_name_is_taken(gpus: Host, leases: Path) -> None:
    for name in ("GPU-a", "GPU-a.1", "GPU-a.2", "GPU-a.3"):
        done_by_nobody(PLANTED["a directory"], leases / name)
    channel = gpus.start()
    told = busy(look(channel, lease=True))
    assert told == [
        f"cannot be leased: {leases}/GPU-a is a directory of nobody (uid {NOBODY.pw_uid}), where a GPU's lease is "
        f"kept; he or root may: rm -r {leases}/GPU-a, and likewise under 3 other names",
        "",
    ]
    vendor(leases, 0)
    assert busy(look(channel, lease=True)) == ["", ""], "who has the kernel's file needs no other"


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH], ids=["alone", "shared"])
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel's file", "lease file"])
def test_who_has_locked_a_gpu_without_a_run_is_named(
    gpus: Host, leases: Path, kernel: bool, how: int
) -> None:
    path = vendor(leases, 0) if kernel else leases / "GPU-a"
    if not kernel:
        path.touch()
        path.chmod(0o666)
    channel = gpus.start()
    with nobody(LOCK, path, how) as locker:
        for lease in (False, True):
            facts = look(channel, lease)
            said = f"leased to pid {locker.pid} of nobody, which is no run: it has locked the GPU"
            assert busy(facts)[0] == said
            assert facts.gpus[0].lease is not None
            assert (facts.gpus[0].lease.user, facts.gpus[0].lease.run) == ("nobody", "")
            assert abs(facts.gpus[0].lease.since - time.time()) < 3600
    until(lambda: busy(look(channel, lease=True)) == ["", ""], "his end")


def test_an_older_tflaunch_is_kept_out_and_keeps_out(gpus: Host, leases: Path) -> None:
    """It knows the lease file alone."""
    vendor(leases, 0)
    channel = gpus.start()
    assert busy(look(channel, lease=True)) == ["", ""]
    with (leases / "GPU-a").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    channel.send("let_go")
    look(channel)
    with (leases / "GPU-a").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"user": "root", "run": "old-run", "since": NOW, "planning": False}, file)
        file.flush()
        assert busy(look(channel, lease=True))[0] == "leased to root's run old-run"
    assert busy(look(channel, lease=True))[0] == ""


@pytest.mark.parametrize("trick", ["os.chmod(sys.argv[1], 0o600)", "os.link(sys.argv[1], sys.argv[2])"])
def test_a_gpu_that_is_held_stays_so_whatever_the_owner_of_the_file_does(
    gpus: Host, leases: Path, trick: str
) -> None:
    done_by_nobody("os.umask(0); os.close(os.open(sys.argv[1], os.O_CREAT, 0o666))", leases / "GPU-a")
    first, second = gpus.start(), another(gpus, "second")
    look(first, lease=["GPU-a"])
    done_by_nobody(trick, leases / "GPU-a", leases / "GPU-b")
    assert busy(look(second, lease=False))[0] == f"leased to root's run {gpus.run}"
    assert busy(look(second, lease=True))[0] == f"leased to root's run {gpus.run}"


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("os.umask(0); os.mkdir(sys.argv[1], 0o777)", "has the mode 0777"),
        ("os.umask(0); os.mkdir(sys.argv[1], 0o1755)", "has the mode 1755"),
        ("os.symlink('/etc', sys.argv[1])", "is a link or a file of nobody"),
    ],
)
def test_a_directory_of_leases_that_is_none_is_told_with_what_mends_it(
    gpus: Host, leases: Path, lab: Path, plant: str, said: str
) -> None:
    leases.rmdir()
    lab.chmod(0o1777)
    done_by_nobody(plant, leases)
    channel = gpus.start()
    facts = look(channel, lease=True)
    assert facts.gpus[0].busy.startswith(f"cannot be leased: {leases} {said}")
    assert "root may: " in facts.gpus[0].busy
    assert said in facts.queue_error
    if "mkdir" in plant:
        subprocess.run(facts.gpus[0].busy.rpartition(": ")[2].split(), check=True)
        facts = look(channel, lease=True)
        assert (busy(facts), facts.queue_error) == (["", ""], ""), "as it was said"


def test_gpus_that_the_kernel_knows_are_leased_without_the_directory(
    gpus: Host, leases: Path, lab: Path
) -> None:
    file = vendor(leases, 0)
    leases.chmod(0o777)
    os.chown(leases, NOBODY.pw_uid, 0)
    first, second = gpus.start(), another(gpus, "second")
    assert busy(look(first, lease=True))[0] == ""
    assert busy(look(second, lease=True))[0] == f"leased to root's run {gpus.run}"
    facts = look(second)
    assert facts.gpus[1].busy.startswith(f"cannot be leased: {leases} has the mode 0777")
    assert file.exists()


def test_a_lease_is_not_believed_what_nobody_can_show(gpus: Host, leases: Path) -> None:
    """Whoever holds the lock may write what he likes."""
    path = leases / "GPU-a"
    channel = gpus.start()
    script = LOCK.replace(WAIT, "open(sys.argv[1], 'w').write(sys.argv[3])\n") + WAIT
    path.touch()
    path.chmod(0o666)
    for run, since in (
        ("\x1b[2Jx", NOW),
        ("x\nhost9 0 free", NOW),
        ("x", float("nan")),
        ("x", 1e300),
        ("\ud800", NOW),
    ):
        text = json.dumps({"user": "nobody", "run": run, "since": since, "planning": False})
        with nobody(script, path, fcntl.LOCK_EX, text) as locker:
            facts = look(channel, lease=True)
            assert facts.gpus[0].lease is not None
            assert (facts.gpus[0].lease.run, facts.gpus[0].lease.pid) == ("", locker.pid)
            assert 0 < facts.gpus[0].lease.since < time.time() + 60


def test_a_mig_instance_is_held_by_its_capability(library: Path, leases: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        'gpu uuid=GPU-m name="NVIDIA A100" mem=40960 mig=1 minor=3',
        'mig gpu=0 uuid=MIG-x name="NVIDIA A100 MIG 1g.5gb" mem=4864 gi=7 ci=0',
        'mig gpu=0 uuid=MIG-y name="NVIDIA A100 MIG 1g.5gb" mem=4864 gi=8 ci=0',
    )
    host = Host(tmp_path)
    host.env |= {**fleet.env, "TFLAUNCH_LEASES": str(leases), "PATH": PATH}
    try:
        for instance in (7, 8):
            path = leases / f"devices/proc/driver/nvidia/capabilities/gpu3/mig/gi{instance}/ci0/access"
            path.parent.mkdir(parents=True)
            path.write_text("DeviceFileMinor: 3\n")
        first, second = host.start(), another(host, "second")
        assert [each.busy for each in look(first, lease=["MIG-x"]).gpus[0].mig] == ["", ""]
        (leases / "MIG-x").unlink()
        told = [each.busy for each in look(second, lease=True).gpus[0].mig]
        assert told == [f"leased to root's run {host.run}", ""]
    finally:
        host.close()


def test_the_real_file_of_the_kernel_holds_between_mounts_of_ones_own(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines' worth of /var/tmp, one GPU: a PCI device of this machine plays it."""
    devices = sorted(Path("/sys/bus/pci/devices").glob("*.0"))
    script = 'mount -t tmpfs tmpfs /var/tmp || exit 99; [ "$1" = -c ] && shift; exec /bin/sh -c "$1"'
    login = ("unshare", "-m", "/bin/sh", "-c", script, "sh")
    if not devices or subprocess.run([*login, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PCI device here, or no mount namespaces")
    fleet = Fleet(library, tmp_path / "fleet", f"gpu uuid=GPU-a mem=1024 bus={devices[-1].name}")
    host = Host(tmp_path)
    host.env |= {**fleet.env, "PATH": PATH}
    del host.env["TFLAUNCH_LEASES"]
    try:
        first = host.start(login=login)
        assert busy(look(first, lease=True)) == [""]
        second = host.open("start", run=f"{host.run}-second", login=login)
        hello = second.wait("hello")
        for pid in (hello["pid"], host.guard(hello["pid"])):
            host.watch(pid)
        assert busy(look(second, lease=True)) == [f"leased to root's run {host.run}"]
        with nobody(LOCK.replace("'ready'", "'ready'"), "/dev/null", fcntl.LOCK_SH):
            assert busy(look(second)) == [f"leased to root's run {host.run}"]
        first.send("let_go")
        look(first)
        assert busy(look(second, lease=True)) == [""]
    finally:
        host.close()


# ---- systemd-tmpfiles


def test_a_run_whose_agent_is_killed_holds_nothing(gpus: Host, leases: Path) -> None:
    vendor(leases, 0)
    first, second = gpus.start(), another(gpus, "second")
    look(first, lease=True)
    os.kill(json.loads((gpus.directory / "agent.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: busy(look(second, lease=True)) == ["", ""], "the locks to go with it")
