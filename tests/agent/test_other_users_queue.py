"""Another user of a host, really another uid, in the queue for GPUs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Host
from tests.support.leases import another, busy, look, wait_for
from tests.support.other_users import BECOME, LOCK, NOBODY, NOW, WAIT, done_by_nobody, nobody
from tests.support.patience import until
from tflaunch.agent.gpus import locks, ticket_files
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol import messages, wire

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


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


def test_a_ticket_of_long_ago_that_was_made_just_now_is_not_the_first(gpus: Host, queue: Path) -> None:
    forged = {"run": "his", "since": 1.0, "wants": 1, "uuids": ["GPU-a"], "planning": False}
    channel = gpus.start()
    with nobody(TICKET, queue / "0000000001.000000-his-h1", json.dumps(forged)):
        wait_for(channel, time.time() - 60, "GPU-a")
        facts = look(channel, lease=["GPU-a"])
        assert (busy(facts), facts.queue) == (["", ""], ())
        channel.send("let_go")
        other = another(gpus, "late")
        told = [(ticket.user, ticket.run) for ticket in look(other).queue]
        assert told == [("root", gpus.run), ("nobody", "his")], "he comes after those who were there"


def test_a_dead_ticket_that_another_user_keeps_locked_is_dead(gpus: Host, queue: Path) -> None:
    name = queue / f"{NOW:017.6f}-dead-h1"
    name.write_text(
        json.dumps({"run": "dead", "since": NOW, "wants": 1, "uuids": ["GPU-a"], "planning": False})
    )
    name.chmod(0o644)
    with nobody(LOCK, name, fcntl.LOCK_EX):
        assert look(gpus.start()).queue == ()


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
    ids=["a list of lists", "long", "escapes in a GPU", "negative", "huge", "escapes", "right to left"],
)
def test_a_ticket_that_no_tflaunch_writes_is_none(gpus: Host, queue: Path, wrong: dict[str, object]) -> None:
    ticket = {"run": "his", "since": NOW, "wants": 1, "uuids": ["GPU-a"], "planning": False, **wrong}
    with nobody(TICKET, queue / f"{NOW:017.6f}-{ticket['run']}-h1", json.dumps(ticket)):
        assert look(gpus.start()).queue == ()


def test_a_queue_that_somebody_fills_is_told_with_his_name(gpus: Host, queue: Path) -> None:
    fill = "for number in range(2500): os.close(os.open(f'{sys.argv[1]}/{number}', os.O_CREAT))"
    done_by_nobody(fill, queue)
    facts = look(gpus.start(), lease=True)
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
for number in range(30):
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


def test_long_tickets_make_no_message_that_a_launcher_would_not_believe(gpus: Host, queue: Path) -> None:
    with nobody(TICKETS, queue, NOW):
        told = gpus.start().ask("probe", lease=False, ports=None, count=0, answer="facts")
        head = wire.dumps({"type": told.type, **told.fields})
        assert len(head) < wire.ANSWER_LIMIT
        facts = HostFacts.from_wire("h1", messages.check(told, messages.FROM_AGENT).fields)
        assert len(facts.queue) == 30
        assert {ticket.uuids for ticket in facts.queue} == {("GPU-a",)}
        assert busy(facts)[0].startswith("promised to nobody's run 000r")


def test_a_ticket_that_is_removed_is_written_again(gpus: Host, queue: Path) -> None:
    waiting, other = gpus.start(), another(gpus, "other")
    wait_for(waiting, NOW, "GPU-a")
    for name in sorted(queue.iterdir()):  # the ticket, and what says until when it counts
        name.unlink()
        until(lambda: len(list(queue.iterdir())) == 2, "both to be there again")
    assert [each.run for each in look(other).queue] == [gpus.run]
    wait_for(waiting, NOW, "GPU-a")
    assert [each.run for each in look(other).queue] == [gpus.run]


# Holds as many tickets as an agent looks at, each as long as that word says.
MANY = (
    BECOME
    + """\
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
files = []
for number in range(int(sys.argv[3])):
    run = "%04d" % number
    name = "%017.6f-%s-h1" % (float(sys.argv[2]), run)
    files.append(open(sys.argv[1] + "/" + name, "w"))
    ticket = {"run": run, "since": float(sys.argv[2]), "wants": 1, "uuids": ["GPU-a"], "planning": False}
    ticket["more"] = [[]] * int(sys.argv[4])
    files[-1].write(json.dumps(ticket, separators=(",", ":")))
    files[-1].flush()
    os.chmod(files[-1].name, 0o644)
    fcntl.flock(files[-1], fcntl.LOCK_EX)
"""
    + WAIT
)


def test_a_queue_that_somebody_fills_with_long_tickets_is_told_with_his_name(gpus: Host, queue: Path) -> None:
    with nobody(MANY, queue, NOW, 200, 20000):
        facts = look(gpus.start(), lease=True)
    assert (busy(facts), facts.queue) == (["", ""], ())
    assert re.search(
        rf"queue holds more than 2097152 bytes, \d+ of the first are of nobody \(uid {NOBODY.pw_uid}\)",
        facts.queue_error,
    )


def test_thousands_of_tickets_cost_one_look_at_the_locks(
    queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    real = locks._table
    monkeypatch.setattr(locks, "_table", lambda part: looks.append(part) or real(part))
    directory = os.open(queue, os.O_RDONLY)
    try:
        with nobody(MANY, queue, NOW, 500, 0):
            assert len(ticket_files.live(directory, sorted(each.name for each in queue.iterdir()))) == 500
    finally:
        os.close(directory)
    assert looks == [b""]
