"""The agent starts tasks again, and keeps what happened for those who come later: over pipes, with real processes."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from tests.support.agent_over_pipes import Channel, Host, descriptors, marked, running, shell, staged
from tests.support.patience import until
from tflaunch.agent.host import processes
from tflaunch.protocol import wire

# Says its number; the first attempt ends with 3, later ones stay.
FAILS_ONCE = 'echo "$TFLAUNCH_ATTEMPT"; test "$TFLAUNCH_ATTEMPT" -gt 0 || exit 3; exec sleep 600'
# Its first attempt leaves a process behind that no group or parent leads to and only KILL ends.
ESCAPES = (
    'test "$TFLAUNCH_ATTEMPT" -gt 0 && exec sleep 600; '
    "setsid sh -c \"trap '' TERM HUP INT; echo escaped \\$\\$; touch escaped; sleep 600\" & "
    "until test -e escaped; do sleep 0.05; done; exit 3"
)


def events(host: Host) -> list[tuple[Any, ...]]:
    """What the agent has noted: type, and attempt where there is one."""
    lines = (host.directory / "events.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert [each["n"] for each in told] == [*range(1, len(told) + 1)]
    return [(each["type"], *([each["attempt"]] if "attempt" in each else [])) for each in told]


def ends(channel: Channel) -> None:
    """The run ends, and nothing of it is alive."""
    assert channel.ask("end", grace_s=0.0, answer="swept")["survivors"] == []
    assert marked(channel.run) == []


# ---- under every Python


def test_it_starts_again_once_for_each_number(any_host: Host) -> None:
    channel = any_host.start()
    running(channel, shell(FAILS_ONCE))
    assert channel.wait("exit")["code"] == 3
    for _ in range(3):  # repeated after a reconnect: nothing
        channel.send("restart", tasks={"worker/0": 1})
    assert channel.wait("started")["attempt"] == 1
    channel.send("restart", tasks={"worker/0": 0})
    assert channel.read_log("worker/0.1", lambda log: log == b"1\n")
    channel.send("restart", tasks={"worker/0": 1})
    ends(channel)
    assert events(any_host) == [("started", 0), ("exit", 0), ("started", 1), ("exit", 1), ("swept",)]
    assert (any_host.directory / "logs" / "worker-0.log").read_bytes() == b"0\n"
    assert (any_host.directory / "logs" / "worker-0.1.log").read_bytes() == b"1\n"


def test_one_that_is_alive_is_killed_first(any_host: Host) -> None:
    channel = any_host.start()
    pids = running(channel, shell("trap '' TERM; while :; do sleep 0.1; done"))
    channel.send("restart", tasks={"worker/0": 1})
    killed = channel.wait("exit")
    assert (killed["attempt"], killed["signal"], killed["stopped"]) == (0, signal.SIGKILL, True)
    assert channel.wait("started")["attempt"] == 1
    assert not processes.read(pids["worker/0"])
    ends(channel)


def test_what_it_left_behind_is_gone_before_it_starts_again(any_host: Host) -> None:
    channel = any_host.start()
    running(channel, shell(ESCAPES))
    escaped = int(channel.wait("exit").body.split()[1])
    assert processes.read(escaped)
    channel.send("restart", tasks={"worker/0": 1})
    assert channel.wait("started")["attempt"] == 1
    assert not processes.read(escaped)
    ends(channel)


def test_a_dead_agents_run_can_still_be_read(any_host: Host) -> None:
    channel = any_host.start()
    running(channel, shell(FAILS_ONCE))
    channel.wait("exit")
    channel.send("restart", tasks={"worker/0": 3})  # numbers need not be in a row
    channel.wait("started")
    channel.read_log("worker/0.3", lambda log: log == b"3\n")
    agent = json.loads((any_host.directory / "agent.json").read_text())
    for pid in (agent["guard"], agent["pid"]):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(processes.read, (agent["pid"], agent["guard"]))), "both to be gone")
    visit = any_host.attach(logs={})
    seen: list[wire.Message] = []
    while not seen or seen[-1].type != "through":
        message = visit.next()
        assert message
        seen.append(message)
    told = [(each.type, each["n"]) for each in seen if "n" in each.fields]
    assert told == [("started", 1), ("exit", 2), ("started", 3), ("gone", 4)]
    assert next(each for each in seen if each.type == "exit").body == b"0\n"
    assert {name: log for name, log in visit.log.items() if log} == {"worker/0": b"0\n", "worker/0.3": b"3\n"}


# ---- the hard cases, under one


def test_an_attempt_that_is_stopped_before_it_has_started(host: Host) -> None:
    channel = host.start()
    running(channel, shell(FAILS_ONCE))
    channel.wait("exit")
    restart = wire.encode("restart", tasks={"worker/0": 1})
    channel.write(restart + wire.encode("stop", tasks=None, grace_s=60.0))
    stopped = channel.wait("exit")
    assert (stopped["attempt"], stopped["stopped"], stopped["code"]) == (1, True, None)
    assert marked(host.run) == []
    channel.send("restart", tasks={"worker/0": 2})
    assert channel.wait("started")["attempt"] == 2
    ends(channel)


def test_an_attempt_that_is_given_up_in_its_setup_leaves_no_descriptor(host: Host) -> None:
    home = host.work_dir / "home"
    home.mkdir()
    # It holds what tells that the task is ready, and has no mark.
    (home / ".bash_profile").write_text("setsid env -i sleep 600 &\necho $! >> ~/holders\n")
    host.env["HOME"] = str(home)
    setup = 'if [ "$TFLAUNCH_ATTEMPT" = 1 ]; then touch begun; sleep 600; fi'
    channel = host.start()
    running(channel, shell("sleep 600", setup=[setup]))
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]

    def pipes() -> int:
        return sum(name.startswith("pipe:") for name in descriptors(agent).values())

    before = pipes()
    channel.send("restart", tasks={"worker/0": 1})
    until((host.directory / "work/begun").exists, "its setup")
    assert pipes() > before
    channel.send("restart", tasks={"worker/0": 2})
    while channel.wait("started", "exit")["attempt"] != 2:
        pass
    for holder in (home / "holders").read_text().split():
        os.kill(int(holder), signal.SIGKILL)
    until(lambda: pipes() == before, "its pipes to be closed")
    ends(channel)


def test_an_end_is_the_end_whatever_was_to_start_again(host: Host) -> None:
    channel = host.start()
    running(channel, shell(FAILS_ONCE))
    channel.wait("exit")
    channel.write(wire.encode("restart", tasks={"worker/0": 1}) + wire.encode("end", grace_s=5.0))
    assert channel.wait("swept")["survivors"] == []
    channel.send("restart", tasks={"worker/0": 2})
    channel.send("bye")
    assert channel.wait_end() == 0
    assert [each for each in events(host) if each[0] == "started"] == [("started", 0)]


def test_a_place_that_has_vanished_is_told_as_code_70(host: Host) -> None:
    channel = host.start()
    place = host.work_dir / "place"
    place.mkdir()
    running(channel, shell(FAILS_ONCE, cwd=str(place)))
    channel.wait("exit")
    place.rmdir()
    channel.send("restart", tasks={"worker/0": 1})
    failed = channel.wait("exit")
    assert (failed["attempt"], failed["code"]) == (1, 70)
    assert failed.body.decode() == f"tflaunch: {place}: no such directory\n"
    place.mkdir()
    channel.send("restart", tasks={"worker/0": 2})
    assert channel.wait("started")["attempt"] == 2
    ends(channel)


def test_a_setup_that_fails_the_second_time(host: Host) -> None:
    channel = host.start()
    flag = host.work_dir / "flag"
    running(channel, shell(FAILS_ONCE, setup=[f"test ! -e {flag}"]))
    channel.wait("exit")
    flag.touch()
    channel.send("restart", tasks={"worker/0": 1})
    failed = channel.wait("exit")
    assert (failed["attempt"], failed["code"]) == (1, 1)
    assert b"setup failed with exit code 1" in failed.body
    flag.unlink()
    channel.send("restart", tasks={"worker/0": 2})
    assert channel.wait("started")["attempt"] == 2
    ends(channel)


def test_an_attempt_that_writes_nothing_has_a_log_all_the_same(host: Host) -> None:
    channel = host.start()
    running(channel, shell("test $TFLAUNCH_ATTEMPT -gt 0 || { echo once; exit 3; }"))
    seen = set()
    while (0, b"once\n") not in seen or (1, b"") not in seen:
        said = channel.wait("log", "exit")
        if said.type == "log":  # before its exit, or after it
            seen.add((said["attempt"], said.body))
        elif said["attempt"] == 0:
            channel.send("restart", tasks={"worker/0": 1})
    assert channel.ask("end", grace_s=0.0, answer="swept")["logs"] == {"worker/0": [1, 0]}


def test_a_task_that_nobody_has_staged_is_no_reason_to_end(host: Host) -> None:
    channel = host.start()
    running(channel, shell(FAILS_ONCE))
    channel.wait("exit")
    channel.send("restart", tasks={"worker/9": 1})
    until(lambda: (message := channel.next()) and message.type == "failed", "an answer")
    channel.send("restart", tasks={"worker/0": 1})
    assert channel.wait("started")["attempt"] == 1
    ends(channel)


def test_who_comes_back_misses_no_event(host: Host) -> None:
    first = host.start()
    running(first, shell(FAILS_ONCE), shell("sleep 600", id="ps/0"))
    assert first.wait("exit")["n"] == 3
    first.send("restart", tasks={"worker/0": 1})
    first.ask("probe", lease=False, ports=None, count=1, answer="facts")  # so the order has been heard
    first.kill()  # whether it has heard of the start is unknown
    until(lambda: ("started", 1) in events(host), "the second attempt, with nobody there")
    second = host.attach(after=3, logs=None)
    second.send("restart", tasks={"worker/0": 1})
    again = second.wait("started")
    assert (again["n"], again["task"], again["attempt"]) == (4, "worker/0", 1)
    second.send("watch", after=0, logs=None, client="other")  # from the beginning, and all once more
    assert [second.wait("started", "exit")["n"] for _ in range(4)] == [1, 2, 3, 4]
    second.send("stop", tasks=["worker/0"], grace_s=0.0)
    assert (second.wait("exit")["n"], events(host)[-1]) == (5, ("exit", 1))
    ends(second)


def test_a_new_watch_of_the_same_client_ends_the_old_one(host: Host) -> None:
    first = host.start()
    staged(first, shell("sleep 600"))  # watches as `test`
    first.send("release")
    first.wait("started")
    second = host.attach(client="test")
    assert second.wait("started")["n"] == 1
    while (message := first.next()) is not None:
        assert message.type in ("log", "through")
    ends(second)


def test_events_that_a_full_disk_did_not_take_do_not_hide_that_an_agent_is_gone(host: Host) -> None:
    channel = host.start()
    running(channel, shell("sleep 600"))
    agent = json.loads((host.directory / "agent.json").read_text())
    for pid in (agent["guard"], agent["pid"]):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(processes.read, (agent["pid"], agent["guard"]))), "both to be gone")
    visit = host.attach(after=7, logs=None)  # seven were seen, one is on the disk
    assert visit.wait("gone")["n"] == 8


def test_one_who_has_entrusted_a_run_may_take_it_back(host: Host) -> None:
    channel = host.start()
    channel.send("probe", lease=False, ports=None, count=2)
    port = channel.wait("facts")["ports"][0]
    tasks = [shell("sleep 600")]
    channel.ask("stage", tasks=tasks, code=None, ports=[port], gpus=[], door=True, attempt=0, answer="staged")
    channel.send("watch", after=0, logs=None, client="test")
    channel.send("release")
    channel.wait("started")
    channel.ask("entrust", secret="00" * 32, address="127.0.0.1", answer="entrusted")
    ends(channel)
    # A coordinator, if there is one by then, hears of it; nobody's word about the end is waited for.
    assert events(host) == [("started", 0), ("expired",), ("exit", 0), ("swept",)]
    channel.send("bye")
    agent = json.loads((host.directory / "agent.json").read_text())
    until(lambda: not processes.read(agent["pid"]), "the agent to leave")
