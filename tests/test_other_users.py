"""Another user of a host, really another uid, who wants to run code as ours, to have our cards, or to be in our way."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import marshal
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_over_pipes import Channel, Host, running, shell, staged, until
from tests.lab import PATH
from tests.nvml import Fleet, build
from tests.test_payload import kept_modules
from tests.test_tickets import another, busy, look, wait_for
from tflaunch.agent.files import ancestry
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol import messages, wire

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")

NOBODY = pwd.getpwnam("nobody")
NOW = float(int(time.time()))
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the simulated NVML library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def lab() -> Iterator[Path]:
    """A directory of root's that all can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103, PTH101
        yield Path(directory)


@pytest.fixture
def leases(lab: Path) -> Path:
    """The directory of leases, as root's first run would make it."""
    path = lab / "leases"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def cards(library: Path, leases: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with the cards GPU-a and GPU-b, of which the kernel shows no files."""
    fleet = Fleet(library, tmp_path / "fleet", "gpu uuid=GPU-a mem=1024", "gpu uuid=GPU-b mem=1024")
    host = Host(tmp_path)
    host.env |= {**fleet.env, "TFLAUNCH_LEASES": str(leases), "PATH": PATH}
    yield host
    host.close()


def vendor(leases: Path, card: int) -> Path:
    """The kernel's file of that card, made as the kernel would: root's, readable by all."""
    path = leases / f"devices/sys/bus/pci/devices/0000:{card + 1:02x}:00.0/vendor"
    path.parent.mkdir(parents=True)
    path.write_text("0x10de\n")
    path.chmod(0o444)
    return path


@contextlib.contextmanager
def nobody(script: str, *words: object, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A program of his, once it has printed a line; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,  # type: ignore[call-overload]
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


# Python may lie where only root comes: it starts as root, and becomes him once all of it is there.
BECOME = f"""\
import ctypes, fcntl, json, os, resource, socket, sys
os.setgroups([])
os.setgid({NOBODY.pw_gid})
os.setuid({NOBODY.pw_uid})
"""
WAIT = "print('ready', flush=True)\nsys.stdin.read()\n"


def done_by_nobody(script: str, *words: object) -> None:
    """What he does at once."""
    subprocess.run([sys.executable, "-c", BECOME + script, *map(str, words)], check=True)


def refused(channel: Channel) -> tuple[str, str]:
    message = channel.next()
    assert message is not None
    assert message.type == "failed", message
    return message["reason"], message["hint"]


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
        "import grp, os, pwd, sys\nfrom tflaunch.agent.files import ancestry\nos.setgroups([])\n"
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


# ---- leases

LOCK = BECOME + "file = open(sys.argv[1])\nfcntl.flock(file, int(sys.argv[2]))\n" + WAIT


def test_a_lease_file_that_is_removed_frees_no_card_that_the_kernel_knows(cards: Host, leases: Path) -> None:
    vendor(leases, 0)
    first, second = cards.start(), another(cards, "second")
    assert busy(look(first, lease=True)) == ["", ""]
    (leases / "GPU-a").unlink()
    for lease in (False, True):
        assert busy(look(second, lease))[0] == f"leased to root's run {cards.run}", (
            "named by its command line"
        )
    until((leases / "GPU-a").exists, "the agent to take the file anew")
    assert (
        "was removed while this run held it; it is taken anew" in (cards.directory / "agent.log").read_text()
    )
    first.send("let_go")
    look(first)
    assert busy(look(second, lease=True)) == ["", ""]


def test_a_lease_file_that_is_removed_is_taken_anew_or_its_loss_is_told(cards: Host, leases: Path) -> None:
    """Where the kernel shows no file of the card: then the file is all there is."""
    first, second = cards.start(), another(cards, "second")
    look(first, lease=True)
    (leases / "GPU-a").unlink()
    until((leases / "GPU-a").exists, "the agent to take the file anew")
    assert busy(look(second, lease=True))[0] == f"leased to root's run {cards.run}"
    assert "taken anew" in first.wait("said")["text"]
    with contextlib.suppress(FileNotFoundError):
        (leases / "GPU-a").unlink()
    assert busy(look(second, lease=True))[0] == "", "the window that there is"
    text = first.wait("said")["text"]
    assert text == (
        f"{leases}/GPU-a was removed while this run held it, and root's run {cards.run}-second has taken that GPU: "
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
def test_what_another_user_has_put_there_keeps_no_card_from_anybody(
    cards: Host, leases: Path, planted: str, kernel: bool
) -> None:
    done_by_nobody(PLANTED[planted], leases / "GPU-a")
    if kernel:
        vendor(leases, 0)
    first, second = cards.start(), another(cards, "second")
    assert busy(look(first, lease=True)) == ["", ""]
    assert busy(look(second, lease=False))[0] == f"leased to root's run {cards.run}"
    assert busy(look(second, lease=True))[0] == f"leased to root's run {cards.run}"


# Takes a card as an agent does, as that user, and says who has it else.
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
    """What that user's agent sees, and whether it could take the card; it holds it until the end."""
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


def test_a_file_that_its_owner_alone_may_open_keeps_no_card_from_others_nor_lets_two_have_it(
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
            assert all("'user': 'nobody', 'run': ''" in each for each in fourth), "/proc/locks tells"


def test_whose_it_is_and_what_to_do_is_said_when_every_name_is_taken(cards: Host, leases: Path) -> None:
    for name in ("GPU-a", "GPU-a.1", "GPU-a.2", "GPU-a.3"):
        done_by_nobody(PLANTED["a directory"], leases / name)
    channel = cards.start()
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
def test_who_has_locked_a_card_without_a_run_is_named(
    cards: Host, leases: Path, kernel: bool, how: int
) -> None:
    path = vendor(leases, 0) if kernel else leases / "GPU-a"
    if not kernel:
        path.touch()
        path.chmod(0o666)
    channel = cards.start()
    with nobody(LOCK, path, how) as locker:
        for lease in (False, True):
            facts = look(channel, lease)
            said = f"leased to pid {locker.pid} of nobody, which is no run: it has locked the GPU"
            assert busy(facts)[0] == said
            assert facts.gpus[0].lease is not None
            assert (facts.gpus[0].lease.user, facts.gpus[0].lease.run) == ("nobody", "")
            assert abs(facts.gpus[0].lease.since - time.time()) < 3600
    until(lambda: busy(look(channel, lease=True)) == ["", ""], "his end")


def test_an_older_tflaunch_is_kept_out_and_keeps_out(cards: Host, leases: Path) -> None:
    """It knows the lease file alone."""
    vendor(leases, 0)
    channel = cards.start()
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
def test_a_card_that_is_held_stays_so_whatever_the_owner_of_the_file_does(
    cards: Host, leases: Path, trick: str
) -> None:
    done_by_nobody("os.umask(0); os.close(os.open(sys.argv[1], os.O_CREAT, 0o666))", leases / "GPU-a")
    first, second = cards.start(), another(cards, "second")
    look(first, lease=["GPU-a"])
    done_by_nobody(trick, leases / "GPU-a", leases / "GPU-b")
    assert busy(look(second, lease=False))[0] == f"leased to root's run {cards.run}"
    assert busy(look(second, lease=True))[0] == f"leased to root's run {cards.run}"


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("os.umask(0); os.mkdir(sys.argv[1], 0o777)", "has the mode 0777"),
        ("os.umask(0); os.mkdir(sys.argv[1], 0o1755)", "has the mode 1755"),
        ("os.symlink('/etc', sys.argv[1])", "is a link or a file of nobody"),
    ],
)
def test_a_directory_of_leases_that_is_none_is_told_with_what_mends_it(
    cards: Host, leases: Path, lab: Path, plant: str, said: str
) -> None:
    leases.rmdir()
    lab.chmod(0o1777)
    done_by_nobody(plant, leases)
    channel = cards.start()
    facts = look(channel, lease=True)
    assert facts.gpus[0].busy.startswith(f"cannot be leased: {leases} {said}")
    assert "root may: " in facts.gpus[0].busy
    assert said in facts.queue_error
    if "mkdir" in plant:
        subprocess.run(facts.gpus[0].busy.rpartition(": ")[2].split(), check=True)
        facts = look(channel, lease=True)
        assert (busy(facts), facts.queue_error) == (["", ""], ""), "as it was said"


def test_cards_that_the_kernel_knows_are_leased_without_the_directory(
    cards: Host, leases: Path, lab: Path
) -> None:
    file = vendor(leases, 0)
    leases.chmod(0o777)
    os.chown(leases, NOBODY.pw_uid, 0)
    first, second = cards.start(), another(cards, "second")
    assert busy(look(first, lease=True))[0] == ""
    assert busy(look(second, lease=True))[0] == f"leased to root's run {cards.run}"
    facts = look(second)
    assert facts.gpus[1].busy.startswith(f"cannot be leased: {leases} has the mode 0777")
    assert file.exists()


def test_a_lease_is_not_believed_what_nobody_can_show(cards: Host, leases: Path) -> None:
    """Whoever holds the lock may write what he likes."""
    path = leases / "GPU-a"
    channel = cards.start()
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
    """Two machines' worth of /var/tmp, one card: a PCI device of this machine plays it."""
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


# ---- the queue

# Holds a ticket with that name and content.
TICKET = (
    BECOME
    + """\
file = open(sys.argv[1], "w")
file.write(sys.argv[2])
file.flush()
os.chmod(sys.argv[1], 0o644)
fcntl.flock(file, fcntl.LOCK_EX)
"""
    + WAIT
)


@pytest.fixture
def queue(leases: Path) -> Path:
    path = leases / "queue"
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_a_ticket_of_long_ago_that_was_made_just_now_is_not_the_first(cards: Host, queue: Path) -> None:
    forged = {"run": "his", "since": 1.0, "wants": 1, "uuids": ["GPU-a"], "planning": False}
    channel = cards.start()
    with nobody(TICKET, queue / "0000000001.000000-his-h1", json.dumps(forged)):
        wait_for(channel, time.time() - 60, "GPU-a")
        facts = look(channel, lease=["GPU-a"])
        assert (busy(facts), facts.queue) == (["", ""], ())
        channel.send("let_go")
        other = another(cards, "late")
        told = [(ticket.user, ticket.run) for ticket in look(other).queue]
        assert told == [("root", cards.run), ("nobody", "his")], "he comes after those who were there"


def test_a_dead_ticket_that_another_user_keeps_locked_is_dead(cards: Host, queue: Path) -> None:
    name = queue / f"{NOW:017.6f}-dead-h1"
    name.write_text(
        json.dumps({"run": "dead", "since": NOW, "wants": 1, "uuids": ["GPU-a"], "planning": False})
    )
    name.chmod(0o644)
    with nobody(LOCK, name, fcntl.LOCK_EX):
        assert look(cards.start()).queue == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"uuids": [["GPU-a"]]},
        {"uuids": ["GPU-a"] * 5000},
        {"uuids": ["GPU-a", "\x1b]0;x\x07"]},
        {"wants": -1},
        {"wants": 10**30},
        {"run": "x\x1b[2J"},
        {"run": "x\u202ey"},
    ],
    ids=["a list of lists", "long", "escapes in a card", "negative", "huge", "escapes", "right to left"],
)
def test_a_ticket_that_no_tflaunch_writes_is_none(cards: Host, queue: Path, wrong: dict[str, object]) -> None:
    ticket = {"run": "his", "since": NOW, "wants": 1, "uuids": ["GPU-a"], "planning": False, **wrong}
    with nobody(TICKET, queue / f"{NOW:017.6f}-{ticket['run']}-h1", json.dumps(ticket)):
        assert look(cards.start()).queue == ()


def test_a_queue_that_somebody_fills_is_told_with_his_name(cards: Host, queue: Path) -> None:
    fill = "for number in range(2500): os.close(os.open(f'{sys.argv[1]}/{number}', os.O_CREAT))"
    done_by_nobody(fill, queue)
    facts = look(cards.start(), lease=True)
    assert (busy(facts), facts.queue) == (["", ""], ())
    assert re.search(
        rf"queue holds more than 2000 files, 2001 of the first are of nobody \(uid {NOBODY.pw_uid}\)",
        facts.queue_error,
    )


# Holds tickets that are as long as they may be.
TICKETS = (
    BECOME
    + """\
files = []
for number in range(200):
    run = "%03d" % number + "r" * 200
    name = "%017.6f-%s-h1" % (float(sys.argv[2]), run)
    uuids = ["GPU-a", *("%03d" % each + "x" * 240 for each in range(250))]
    files.append(open(sys.argv[1] + "/" + name, "w"))
    ticket = {"run": run, "since": float(sys.argv[2]), "wants": 1, "uuids": uuids, "planning": False}
    files[-1].write(json.dumps(ticket))
    files[-1].flush()
    os.chmod(files[-1].name, 0o644)
    fcntl.flock(files[-1], fcntl.LOCK_EX)
"""
    + WAIT
)


def test_long_tickets_make_no_message_that_a_launcher_would_not_believe(cards: Host, queue: Path) -> None:
    with nobody(TICKETS, queue, NOW):
        told = cards.start().ask("probe", lease=False, ports=None, count=0, answer="facts")
        head = wire.dumps({"type": told.type, **told.fields})
        assert len(head) < wire.ANSWER_LIMIT
        facts = HostFacts.from_wire("h1", messages.check(told, messages.FROM_AGENT).fields)
        assert len(facts.queue) == 200
        assert {ticket.uuids for ticket in facts.queue} == {("GPU-a",)}
        assert busy(facts)[0].startswith("promised to nobody's run 000r")


def test_a_ticket_that_is_removed_is_written_again(cards: Host, queue: Path) -> None:
    waiting, other = cards.start(), another(cards, "other")
    wait_for(waiting, NOW, "GPU-a")
    (ticket,) = queue.iterdir()
    ticket.unlink()
    until(ticket.exists, "the ticket to be there again")
    assert [each.run for each in look(other).queue] == [cards.run]
    wait_for(waiting, NOW, "GPU-a")
    assert [each.run for each in look(other).queue] == [cards.run]


# ---- systemd-tmpfiles


def test_systemd_tmpfiles_leaves_a_run_alone_that_lives(
    cards: Host, leases: Path, lab: Path, tmp_path: Path
) -> None:
    """`lab` is what /var/tmp is elsewhere."""
    if shutil.which("systemd-tmpfiles") is None:
        pytest.skip("systemd-tmpfiles is not installed")
    lab.chmod(0o1777)
    cards.run_dir = lab
    aged = tmp_path / "aged.conf"
    aged.write_text(f"d {lab} 1777 root root 1s\n")
    channel = cards.start()
    look(channel, lease=True)
    (cards.parent / "code/files").mkdir(mode=0o700, exist_ok=True)
    (cards.parent / "code/files/content").write_text("shipped")
    staged(channel, shell("mkdir -p deep/er; touch deep/er/checkpoint; sleep 600"))
    channel.send("keep", gpus=["GPU-a"])
    channel.send("release")
    channel.wait("started")
    until((cards.directory / "work/deep/er/checkpoint").exists, "what the task writes")
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
    visit = cards.open("visit", run="", host="")
    visit.wait("hello")
    (known,) = visit.ask("list", all=True, answer="runs")["runs"]
    assert known["state"] == "alive"
    channel.send("end", grace_s=0.0)
    channel.wait("swept")
    channel.send("bye")
    assert channel.next() is None
    # Not at once: a directory out of which something was removed is young again.
    until(lambda: cleaned(cards.directory), "an ended run to go as anything does")
    until(lambda: cleaned(leases / "GPU-a"), "what its lease was, too")


def test_a_run_whose_agent_is_killed_holds_nothing(cards: Host, leases: Path) -> None:
    vendor(leases, 0)
    first, second = cards.start(), another(cards, "second")
    look(first, lease=True)
    os.kill(json.loads((cards.directory / "agent.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: busy(look(second, lease=True)) == ["", ""], "the locks to go with it")
