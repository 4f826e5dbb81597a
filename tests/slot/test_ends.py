"""How a slot ends: taken back, left, or idle; who hears of it, and what is left: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slot.conftest import Hold
from tests.support.agent_over_pipes import ESCAPE, IS_ROOT
from tests.support.patience import PATIENCE_S, until, written
from tests.support.slots import Held
from tests.support.wires import everything, read
from tflaunch.agent.host import processes
from tflaunch.protocol.errors import ConnectError

SAYS = {
    signal.SIGTERM: (20.0, "the engine ends this slot (SIGTERM)"),
    signal.SIGHUP: (20.0, "the engine ends this slot (SIGHUP)"),
    signal.SIGINT: (20.0, "the engine ends this slot (SIGINT)"),
    signal.SIGUSR1: (90.0, "the engine says that this slot ends soon (SIGUSR1)"),
    signal.SIGURG: (90.0, "the engine says that this slot ends soon (SIGURG)"),
}


def nothing_left(held: Held) -> None:
    assert not held.directory.exists()
    assert not list(held.directory.parent.glob("tflaunch-slot-*"))


@pytest.mark.parametrize("number", list(SAYS))
def test_a_signal_takes_the_slot_back(hold: Hold, number: signal.Signals) -> None:
    held = hold(grace_s=20.0, warn_s=90.0)
    agent = held.agent()
    held.signal(number)
    seconds, why = SAYS[number]
    said = agent.hear()
    assert said is not None
    assert said["why"] == why
    assert 0 < said["ends_in"] <= seconds
    assert seconds - said["ends_in"] < 10, "it counts from the signal"
    assert held.door.look(PATIENCE_S).why == why
    late = held.call()
    late.say(agent=1)
    said = late.hear()
    assert said is not None, "one that comes later hears it at once"
    assert said["why"] == why
    refused = held.relayed("echo in")
    assert (refused.returncode, refused.stdout) == (75, b"")
    assert refused.stderr.startswith(b"slot: no new command: the slot ends in ")
    assert refused.stderr.endswith(b"s, because %s\n" % why.encode())
    with pytest.raises(ConnectError, match=r"no new command: the slot ends in .* s, because the engine"):
        held.door.open("echo in", timeout_s=PATIENCE_S)
    agent.close()
    late.close()
    assert held.end() == 75
    nothing_left(held)


def test_less_time_is_told_and_more_is_not(hold: Hold) -> None:
    held = hold(grace_s=20.0, warn_s=90.0)
    agent = held.agent()
    said = []
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        held.signal(number)
        until(
            lambda n=number: SAYS[n][1] == held.door.look(PATIENCE_S).why or len(said) == 2, "it to be heard"
        )
        if len(said) < 2:
            said.append(agent.hear())
    assert [each and each["why"] for each in said] == [SAYS[signal.SIGUSR1][1], SAYS[signal.SIGTERM][1]]
    held.door.leave("enough", PATIENCE_S)
    agent.say(over=True)
    agent.close()
    assert held.end() == 75, "the engine was first"


def test_the_lifeline(every: Hold) -> None:
    held = every(lifeline=True, grace_s=20.0)
    agent = held.agent()
    held.let_go()
    said = agent.hear()
    assert said is not None
    assert said["why"] == "the engine has let go of this slot"
    agent.close()
    assert held.end() == 75
    nothing_left(held)


def test_without_a_lifeline_stdin_says_nothing(hold: Hold) -> None:
    held = hold()
    held.let_go()
    assert read(held.open("echo in"), 3) == b"in\n"


@pytest.mark.parametrize("by", ["door", "socket"])
def test_leaving(hold: Hold, by: str) -> None:
    held = hold(grace_s=20.0)
    agent = held.agent()
    if by == "door":
        held.door.leave("the run is over", PATIENCE_S)
    else:
        caller = held.call()
        caller.say(leave="the run is over")
        assert caller.hear() == {"left": True}
    said = agent.hear()
    assert said is not None
    assert said["why"] == "the run is over"
    held.signal(signal.SIGTERM)  # as engines do when they are told
    agent.close()
    assert held.end() == 0
    nothing_left(held)


def test_what_still_runs_is_killed_when_time_is_over(hold: Hold, tmp_path: Path) -> None:
    """Also what has a session of its own, ignores signals, has lost its parents, or forks all the time."""
    held = hold(grace_s=0.5)
    mark = f"mark{os.getpid()}x"
    hop = "import os\nwhile True:\n    if os.fork(): os._exit(0)\n"
    hop_away = f"{hop}    os.setsid()\n"
    below = [
        held.open(f"trap '' TERM HUP INT; echo up; while :; do sleep 1; done # {mark}"),
        held.open(f"{sys.executable} -c '{ESCAPE}' {mark}"),
        held.open(f"setsid sh -c 'echo up; sleep 600; :' {mark} & setsid setsid sleep 600"),
        held.open(f"echo up; exec {sys.executable} -S -c '{hop}' {mark}"),
        held.open(f"echo up; exec {sys.executable} -S -c '{hop_away}' {mark}"),
    ]
    for wire in below:
        assert wire.recv(1) in (b"u", b"e")
    relay = held.relay(f"echo up > {tmp_path}/up; sleep 600", stdin=subprocess.DEVNULL)
    written(tmp_path / "up", "the relay's command to run")
    held.signal(signal.SIGTERM)
    assert held.end() == 75
    assert relay.wait(PATIENCE_S) == 137, "it still hears how its command has ended"
    words = [Path(f"/proc/{pid}/cmdline") for pid in processes.every()]
    assert not [path for path in words if mark.encode() in (path.read_bytes() if path.exists() else b"")]
    nothing_left(held)


def test_last_lines_still_come(hold: Hold) -> None:
    held = hold(grace_s=60.0)
    agent = held.agent()
    wire = held.open("read line; seq 50000; exit 4")
    held.signal(signal.SIGTERM)
    assert agent.hear() is not None
    agent.close()
    wire.send(b"go\n")
    assert everything(wire) == b"".join(b"%d\n" % number for number in range(1, 50_001))
    assert held.end() == 75


# ---- by itself


@pytest.mark.parametrize(
    "settings", [{"first_s": 0.2}, {"idle_s": 0.2}, {"after_s": 0.2}], ids=lambda each: next(iter(each))
)
def test_an_idle_slot_ends(hold: Hold, settings: dict[str, float]) -> None:
    held = hold(**settings)
    if "first_s" not in settings:
        assert everything(held.open("echo done")) == b"done\n"
    if "after_s" in settings:
        agent = held.agent()
        agent.say(over=True)
        agent.close()
    # 76: an agent was there, and did not say how its run has ended.
    assert held.end() == (76 if "after_s" in settings else 0)
    assert held.said == "slot: ends: nothing has run here for 0.2 s\n"
    nothing_left(held)


def test_whatever_runs_below_or_calls_keeps_it(hold: Hold, tmp_path: Path) -> None:
    """A detached run has no caller; what it has left in other sessions counts."""
    held = hold(idle_s=0.2, after_s=0.2)
    daemon = f"(setsid setsid sh -c 'sleep 1; echo late > {tmp_path}/late' &)"
    assert held.relayed(f"exec >&- 2>&-; {daemon}").returncode == 0
    assert held.end() == 0
    assert (tmp_path / "late").read_text() == "late\n"
    held = hold(idle_s=0.2, after_s=0.2)
    agent = held.agent()
    subprocess.run(["sleep", "1"], check=True)
    assert held.door.look(PATIENCE_S).ends_in is None
    agent.say(ended=3)
    agent.close()
    assert held.end() == 3, "it ends as the run there has"


def test_one_that_was_never_used_ends_as_its_engine_wants(hold: Hold) -> None:
    assert hold(first_s=0.2, unused=75).end() == 75
    given_back = hold(unused=75)
    given_back.door.leave("the run is over", PATIENCE_S)
    assert given_back.end() == 0


def test_strangers_do_not_keep_it(hold: Hold) -> None:
    import socket

    held = hold(first_s=0.2)
    stranger = socket.create_connection(("127.0.0.1", held.told["port"]))
    assert held.end() == 0
    stranger.close()


# ---- as the first process of a container


@pytest.mark.skipif(not IS_ROOT, reason="only root can make a namespace of pids")
def test_as_the_first_process_of_a_container(hold: Hold, tmp_path: Path) -> None:
    held = hold(under=["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"], grace_s=0.5)
    assert held.pid == 1
    assert everything(held.open("(sh -c 'exit 3' &); sh -c 'sleep 0.1 & exit' ; echo done")) == b"done\n"
    look = f"sed -n 's/^State:.//p' /proc/[0-9]*/status | sort > {tmp_path}/states; cat {tmp_path}/states"
    until(lambda: b"Z (zombie)" not in held.relayed(look).stdout, "orphans to be reaped")
    (holder,) = Path(f"/proc/{held.process.pid}/task/{held.process.pid}/children").read_text().split()
    os.kill(int(holder), signal.SIGTERM)  # one without a handler, the kernel drops
    assert held.end() == 75
    nothing_left(held)


# ---- what an engine's own log of the slot has


def test_the_lines_of_tasks_are_on_stdout(hold: Hold, tmp_path: Path) -> None:
    """As they come, and what is left at the end; who reads nothing keeps nobody waiting."""
    held = hold(logs=True)
    logs = tmp_path / "logs"
    logs.mkdir()
    agent = held.call()
    agent.say(agent=os.getpid(), logs=str(logs))
    (logs / "worker-0.log").write_text("one\ntw")
    stdout = held.process.stdout
    assert stdout is not None
    assert stdout.readline() == b"worker/0 | one\n"
    with (logs / "worker-0.log").open("a") as log:
        log.write("o\n")
    assert stdout.readline() == b"worker/0 | two\n"
    (logs / "worker-0.1.log").write_text("again\n")
    assert stdout.readline() == b"worker/0 | again\n"
    (logs / "big-trial-12.log").write_text("x" * 99 + "\n" + "y" * 5_000_000 + "\nlast\nno end")
    agent.close()
    held.signal(signal.SIGTERM)
    rest = stdout.read().splitlines()
    assert rest[0].startswith(b"big-trial/12 | ... ")
    assert b"big-trial/12 | last" in rest
    assert rest[-1] == b"big-trial/12 | no end"
    assert held.end() == 75


def test_a_log_that_nobody_reads_holds_nothing_up(hold: Hold, tmp_path: Path) -> None:
    held = hold(logs=True, grace_s=0.2)
    agent = held.call()
    agent.say(agent=os.getpid(), logs=str(tmp_path))
    for number in range(8):
        (tmp_path / f"worker-{number}.log").write_text("line\n" * 100_000)
    assert everything(held.open("echo here")) == b"here\n"
    agent.close()
    held.signal(signal.SIGTERM)
    assert held.end() == 75
