"""Leases and tickets in a directory that all users share: of others, of the dead, of the hostile."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import Host
from tests.support.lab import PATH
from tests.support.leases import another, busy, look, wait_for
from tests.support.nvml import Fleet
from tests.support.patience import PATIENCE_S, until

NOW = 0.0  # set for each test: a ticket is not believed to be much older than its file


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite takes longer than a ticket may be older than its file."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", float(int(time.time())))


NOBODY = pwd.getpwnam("nobody").pw_uid
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


# Another user's agent, with a umask of his own: holds a lease and a ticket until its input ends.
OTHER = """\
import os, sys
from tflaunch.agent.gpus import leases, tickets
os.umask(0o077)
os.setuid(int(sys.argv[1]))
held, place = leases.Leases("his-run"), tickets.QueuePlace("his-run", "h9")
print(held.take("GPU-a"), flush=True)
place.take(float(sys.argv[2]), 1, ["GPU-b"], False)
print(repr(place.error), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of leases that others can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103, PTH101
        yield Path(directory) / "leases"


@pytest.fixture
def host(library: Path, shared: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with the GPUs GPU-a and GPU-b."""
    fleet = Fleet(library, tmp_path / "fleet", "gpu uuid=GPU-a mem=1024", "gpu uuid=GPU-b mem=1024")
    host = Host(tmp_path)
    host.env |= {**fleet.env, "TFLAUNCH_LEASES": str(shared), "PATH": PATH}
    yield host
    host.close()


@contextlib.contextmanager
def other_user(shared: Path, since: float) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "TFLAUNCH_LEASES": str(shared)}
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(NOBODY), str(since)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "None\n", "the lease was taken"
        assert process.stdout.readline() == "''\n", "the ticket was written"
        yield process
        process.kill()


def test_the_first_ticket_is_served_first_whoever_looks(host: Host) -> None:
    first, second, third = (another(host, name) for name in ("first", "second", "third"))
    wait_for(second, NOW + 20, "GPU-a", "GPU-b")
    assert busy(look(second)) == ["", ""], "its own ticket keeps it from nothing"
    wait_for(first, NOW + 10, "GPU-a")
    told = look(second, lease=True)
    assert told.gpus[0].busy.startswith(
        f"promised to {pwd.getpwuid(os.getuid()).pw_name}'s run {host.run}-first"
    )
    assert told.gpus[1].busy == ""
    assert [ticket.run for ticket in told.queue] == [f"{host.run}-first"]
    second.send("let_go")
    look(second)  # so it has let go
    # Who has no ticket comes last, and who only looks sees the same.
    for lease in (True, False):
        facts = look(third, lease)
        assert [ticket.since for ticket in facts.queue] == [NOW + 10, NOW + 20]
        assert all("promised" in each for each in busy(facts))
    assert facts.queue[1].uuids == ("GPU-a", "GPU-b")
    assert facts.queue[1].wants == 2

    assert busy(look(first, ["GPU-a"])) == ["", ""]
    first.send("keep", gpus=["GPU-a"])
    look(first)
    told = look(second, lease=True)
    assert "leased" in told.gpus[0].busy
    assert (told.gpus[1].busy, told.queue) == ("", ()), "the run that has its GPUs waits no more"


def test_equal_times_have_an_order_too(host: Host) -> None:
    here, there = another(host, "x1"), another(host, "x2")
    wait_for(there, NOW + 10, "GPU-a")
    wait_for(here, NOW + 10, "GPU-a")
    assert (bool(look(here).queue), bool(look(there).queue)) == (False, True)


def test_a_place_ends_with_its_holder(host: Host, shared: Path) -> None:
    waiting, looking = host.start(), another(host, "looking")
    wait_for(waiting, NOW + 10, "GPU-a")
    facts = until(lambda: (facts := look(looking)).queue and facts, "the ticket")
    assert "promised" in facts.gpus[0].busy
    ticket, until_file = sorted((shared / "queue").iterdir())
    assert ticket.name == f"{NOW + 10:017.6f}-{host.run}-h1"
    assert until_file.name == f"{ticket.name}.until"
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGKILL)
    until(lambda: busy(look(looking)) == ["", ""], "the GPU to be free")
    assert not ticket.exists(), "the next who looks clears it away"
    look(looking)
    assert until_file.exists(), "it may be that of a ticket which is just being written"
    os.utime(until_file, (1, 1))
    look(looking)
    assert not until_file.exists()


def test_the_place_of_an_agent_that_hangs_ends_with_its_lease(host: Host, shared: Path) -> None:
    waiting, looking = host.start(), another(host, "looking")
    waiting.send("renew", lease_s=10.0)
    wait_for(waiting, NOW + 10, "GPU-a")
    until(lambda: "promised" in busy(look(looking))[0], "the ticket")
    about = json.loads((host.directory / "agent.json").read_text())
    hung = about["guard"], about["pid"]  # a guard would end the agent just then, and its ticket with it
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: busy(look(looking)) == ["", ""], "its place to count no more")
        assert any(path.suffix != ".until" for path in (shared / "queue").iterdir()), "its ticket is there"
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)


def test_a_place_is_kept_by_an_agent_that_is_well(host: Host, shared: Path) -> None:
    """Its file stays as old as it was: an older tflaunch, too, takes the age of the file for the run's."""
    waiting, looking = host.start(), another(host, "looking")
    wait_for(waiting, NOW + 10, "GPU-a")
    ticket, counts_until = sorted((shared / "queue").iterdir())
    made, first = ticket.stat().st_ctime_ns, counts_until.stat().st_mtime
    until(lambda: counts_until.stat().st_mtime > first, "the time to be put off")
    assert ticket.stat().st_ctime_ns == made
    assert "promised" in busy(look(looking))[0]


@AS_ROOT
def test_another_users_lease_and_ticket(host: Host, shared: Path) -> None:
    channel = host.start()
    assert busy(look(channel)) == ["", ""]
    shared.mkdir()
    shared.chmod(0o1777)
    with other_user(shared, NOW + 10) as other:
        told = look(channel, lease=True)
        assert told.gpus[0].busy == "leased to nobody's run his-run"
        assert told.gpus[1].busy.startswith("promised to nobody's run his-run, which waits since ")
        assert told.queue[0].user == "nobody"
        wait_for(channel, NOW + 5, "GPU-b")
        assert busy(look(channel, lease=True))[1] == "", "earlier than his"
        channel.send("let_go")
        look(channel)
        other.kill()
        other.wait()
        until(lambda: busy(look(channel, lease=True)) == ["", ""], "the end of his lease")
    # Root's agent made nothing that he could not use now.
    channel.send("let_go")
    look(channel)
    with other_user(shared, NOW + 20):
        assert "leased to nobody" in busy(look(channel, lease=True))[0]


JUNK = {
    "no JSON": b"\xff\x00",
    "nested": b"[" * 50_000,
    "no ticket": b"{}",
    "another order": b'{"run": "r", "since": NaN, "wants": 1, "uuids": ["GPU-a"], "planning": false}',
    "before all": b'{"run": "r", "since": -1.0, "wants": 1, "uuids": ["GPU-a"], "planning": false}',
    "beyond time": b'{"run": "r", "since": 1e300, "wants": 1, "uuids": ["GPU-a"], "planning": false}',
    "another name": b'{"run": "r", "since": 1.0, "wants": 1, "uuids": ["GPU-a"], "planning": false}',
    "wrong kinds": b'{"run": 1, "since": "x", "wants": [], "uuids": 1, "planning": 0}',
    "huge": b'{"run": "' + b"r" * 10_000_000 + b'"}',
}


def test_what_is_no_ticket_is_passed_over_and_left_alone(host: Host, shared: Path, tmp_path: Path) -> None:
    queue = shared / "queue"
    queue.mkdir(parents=True)
    shared.chmod(0o1777)
    queue.chmod(0o1777)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (queue / "0000000001.000000-link-h1").symlink_to(precious)
    os.mkfifo(queue / "0000000001.000000-fifo-h1")
    (queue / "0000000001.000000-directory-h1").mkdir()
    # A dead ticket of mine that has another name elsewhere: not mine to remove.
    dead = {"run": "r", "since": 1.0, "wants": 1, "uuids": ["GPU-a"], "planning": False}
    precious.write_text(json.dumps(dead))
    os.link(precious, queue / "0000000001.000000-r-h1")
    with contextlib.ExitStack() as files:
        for name, content in JUNK.items():
            file = files.enter_context((queue / f"0000000001.000000-{name}").open("wb"))
            file.write(content)
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
        channel = host.start()
        told = look(channel, lease=True)
        assert (busy(told), told.queue, told.queue_error) == (["", ""], (), "")
        assert len(list(queue.iterdir())) == len(JUNK) + 4
        assert precious.exists()
        wait_for(channel, NOW + 10, "GPU-a")
        assert look(channel).queue_error == ""
        assert len(list(queue.iterdir())) == len(JUNK) + 6
    # A lease that somebody filled with the like of it.
    channel.send("let_go")
    look(channel)
    with (shared / "GPU-a").open("wb") as file:
        file.write(JUNK["nested"])
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert busy(look(channel, lease=True)) == [
            f"leased to pid {os.getpid()} of root, which is no run: it has locked the GPU".replace(
                "root", pwd.getpwuid(os.getuid()).pw_name
            ),
            "",
        ]


@pytest.mark.parametrize("plant", ["a link", "a file"])
def test_a_queue_that_is_none(host: Host, shared: Path, tmp_path: Path, plant: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    dead = {"run": "r", "since": 1.0, "wants": 1, "uuids": ["GPU-a"], "planning": False}
    victim = elsewhere / "0000000001.000000-r-h1"
    victim.write_text(json.dumps(dead))
    shared.mkdir()
    shared.chmod(0o1777)
    if plant == "a link":
        (shared / "queue").symlink_to(elsewhere)
    else:
        (shared / "queue").touch()
    channel = host.start()
    told = look(channel, lease=True)
    assert busy(told) == ["", ""], "GPUs can be had all the same"
    assert str(shared / "queue") in told.queue_error
    wait_for(channel, NOW + 10, "GPU-a")
    assert "link or a file" in look(channel).queue_error
    assert list(elsewhere.iterdir()) == [victim]


def test_many_tickets_come_and_go_and_none_is_lost(host: Host, shared: Path) -> None:
    """Whoever looks while a ticket is written must not clear it away as a dead one."""
    script = """\
import sys
from tflaunch.agent.gpus import tickets
place = tickets.QueuePlace(sys.argv[1], "h")
for number in range(400):
    place.take(float(number), 1, ["GPU-a"], False)
    assert place.error == "", place.error
    assert place._ticket and place._ticket.in_place()
    tickets.QueuePlace().ahead()
"""
    env = {**os.environ, "TFLAUNCH_LEASES": str(shared)}
    running = [
        subprocess.Popen([sys.executable, "-c", script, f"run{number}"], env=env, cwd=ROOT)
        for number in range(4)
    ]
    assert [process.wait(PATIENCE_S) for process in running] == [0] * 4
    channel = host.start()
    assert look(channel).queue == ()
    left = {path.suffix for path in (shared / "queue").iterdir()}
    assert left == {".until"}, "no ticket: those of processes that have ended are cleared away"


def test_many_who_only_look_are_not_in_each_others_way(shared: Path) -> None:
    """Each has a shared lock for an instant; nobody may take another for one who holds the GPU."""
    script = """\
from tflaunch.agent.gpus import leases
for number in range(400):
    found = leases.holder("GPU-a")
    assert found is None, found
"""
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "GPU-a").touch()
    env = {**os.environ, "TFLAUNCH_LEASES": str(shared)}
    running = [subprocess.Popen([sys.executable, "-c", script], env=env, cwd=ROOT) for _ in range(4)]
    assert [process.wait(PATIENCE_S) for process in running] == [0] * 4


def test_a_full_disk_is_told(host: Host, tmp_path: Path) -> None:
    """A file system without room for a ticket."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=1777", "tmpfs", str(small)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system")
    try:
        (small / "filler").write_bytes(b"x" * 4096)
        host.env["TFLAUNCH_LEASES"] = str(small)
        channel = host.start()
        assert busy(look(channel, lease=True)) == ["", ""], "a lock needs no room"
        wait_for(channel, NOW + 10, "GPU-a")
        assert "No space" in look(channel).queue_error or "no room" in look(channel).queue_error
    finally:
        host.close()
        subprocess.run(["umount", "-l", str(small)], check=True)
