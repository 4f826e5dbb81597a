"""What an agent sees of its tasks, as it is shipped, with real sockets and processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from tests.support.agent_over_pipes import Channel, Host, shell, task
from tests.support.patience import until
from tflaunch.agent.tasks.look import LINE_BYTES

# A server as TensorFlow's: it joins a held port when it is told to, and calls whom it is told to.
SERVER = """
import os, socket, sys, time
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
print("bound to nothing yet", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
server.bind(("::", int(sys.argv[1])))
server.listen()
calls = []
for port in sys.argv[3:]:
    calls.append(socket.socket(socket.AF_INET6 if port[0] == "6" else socket.AF_INET))
    calls[-1].setblocking(False)
    calls[-1].connect_ex(("::1" if port[0] == "6" else "127.0.0.1", int(port[1:])))
print("listens", flush=True)
while True:
    calls.append(server.accept()[0])
"""


def start(channel: Channel, *tasks: dict[str, Any]) -> None:
    channel.send("stage", tasks=list(tasks), code=None, ports=[], gpus=[], door=False, attempt=0)
    channel.wait("staged")
    channel.send("release")
    channel.gather("started", len(tasks))


def look(channel: Channel, name: str = "worker/0") -> dict[str, Any]:
    tasks: dict[str, dict[str, Any]] = channel.ask("look", answer="looked")["tasks"]
    return tasks[name]


def await_look(channel: Channel, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first look of which `wanted` is true."""
    last: dict[str, Any] = {}

    def found() -> bool:
        last.update(look(channel))
        return wanted(last)

    try:
        until(found, "that look")
    except AssertionError:
        raise AssertionError(last) from None
    return last


def swept(channel: Channel) -> None:
    channel.ask("end", grace_s=0.0, answer="swept")


def test_ports_connections_and_output(any_host: Host) -> None:
    channel = any_host.start()
    facts = channel.ask("probe", lease=False, ports=None, count=2, answer="facts")
    mine, shut = facts["ports"]
    go = any_host.work_dir / "go"
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        peer6 = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # then the kernel drops what comes, as a firewall does
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        ports = [
            f"4{peer.getsockname()[1]}",
            f"6{peer6.getsockname()[1]}",
            f"4{deaf.getsockname()[1]}",
            f"4{shut}",
        ]
        channel.send(
            "stage",
            tasks=[
                task(sys.executable, "-c", SERVER, str(mine), str(go), *ports, port=mine),
                shell("sleep 600", id="worker/1"),
            ],
            code=None,
            ports=[mine, shut],
            gpus=[],
            door=False,
            attempt=0,
        )
        channel.wait("staged")
        assert channel.ask("look", answer="looked")["tasks"] == {}, "nothing runs yet"
        channel.send("release")
        pids = {said["task"]: said["pid"] for said in channel.gather("started", 2)}

        before = await_look(channel, lambda seen: seen["says"] == "bound to nothing yet")
        assert before["listens"] is False
        assert before["connected"] == before["calling"] == []
        go.touch()
        await_look(channel, lambda seen: seen["says"] == "listens")
        # What it says is read last, and all is done now; it may yet have to fall asleep.
        seen = await_look(channel, lambda seen: seen["processes"][0][2] == "S")
        assert seen["listens"] is True
        assert seen["listens_on"] == [mine]
        expected = [["127.0.0.1", peer.getsockname()[1]], ["::1", peer6.getsockname()[1]]]
        assert sorted(seen["connected"]) == sorted(expected)
        assert seen["calling"] == [["127.0.0.1", deaf.getsockname()[1]]], (
            "one that is refused leaves no trace"
        )
        peers = {tuple(flow[:2]) for flow in seen["flows"]}
        assert peers == {*map(tuple, expected), ("127.0.0.1", deaf.getsockname()[1])}
        with socket.create_connection(("127.0.0.1", mine)) as caller:
            caller.sendall(b"x" * 1000)
            seen = await_look(channel, lambda seen: len(seen["flows"]) == 4)
            assert sorted(seen["connected"]) == sorted(expected), "who calls it is not whom it calls"
            [flow] = [flow for flow in seen["flows"] if flow[2] == mine]
            assert flow[:2] == ["127.0.0.1", caller.getsockname()[1]]
            assert flow[4] == 1000
        seen = await_look(channel, lambda seen: seen["processes"][0][2] == "S")
        assert seen["processes"] == [[pids["worker/0"], seen["processes"][0][1], "S"]]
        assert seen["waits_in"]
        assert 0 <= seen["cpu_s"] < 60
        assert 0 <= seen["waited_s"] < 60
        assert seen["cores"] > 0
        assert seen["memory"][0] > 10**6
        assert [len(pace) for pace in seen["paces"]] == [4] * len(seen["flows"])
        assert 0 <= seen["quiet_s"] < 60
        assert seen["log_bytes"] == len("bound to nothing yet\nlistens\n")

        other = look(channel, "worker/1")
        assert other["listens"] is None, "it has no port"
        assert (other["listens_on"], other["flows"], other["signs"]) == ([], [], {})
        assert (other["log_bytes"], other["says"]) == (0, "")
        assert "step" not in other
        assert channel.ask("look", answer="looked")["machine"]["swapped"] >= 0
        swept(channel)


def test_what_a_task_has_started_belongs_to_it(host: Host) -> None:
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    with socket.create_server(("127.0.0.1", 0)) as peer:
        code = (
            f"import socket, time; s = socket.create_connection(('127.0.0.1', {peer.getsockname()[1]}))"
            "\nprint('there', flush=True)\nfor _ in range(10 ** 7): pass\ntime.sleep(600)"
        )
        start(channel, shell(f'"{sys.executable}" -c "{code}" & wait'))
        seen = await_look(channel, lambda seen: seen["says"] == "there" and seen["cpu_s"] > 0.05)
        assert seen["connected"] == [["127.0.0.1", peer.getsockname()[1]]]
        assert [state for _, _, state in seen["processes"]] in (["S", "S"], ["S", "R"])
        swept(channel)


def test_a_stopped_task_shows_as_one(host: Host) -> None:
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    start(channel, task("sleep", "600"))
    [[pid, name, _]] = await_look(channel, lambda seen: seen["processes"][0][1] == "sleep")["processes"]
    os.kill(pid, signal.SIGSTOP)
    assert await_look(channel, lambda seen: seen["processes"][0][2] == "T")["processes"] == [[pid, name, "T"]]
    os.kill(pid, signal.SIGCONT)
    await_look(channel, lambda seen: seen["processes"][0][2] == "S")
    swept(channel)


def test_silence_grows_and_output_ends_it(host: Host) -> None:
    go = host.work_dir / "go"
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    start(
        channel,
        shell(f"echo one; until test -e {go}; do sleep 0.05; done; echo; echo; printf '%0500d' 7; sleep 600"),
    )
    first = await_look(channel, lambda seen: seen["quiet_s"] > 0.3)
    assert first["says"] == "one"
    go.touch()
    then = await_look(channel, lambda seen: seen["log_bytes"] > 400)
    assert then["quiet_s"] < first["quiet_s"] + 60
    assert then["says"] == "0" * LINE_BYTES or then["says"].startswith("0")
    assert len(then["says"]) == LINE_BYTES
    swept(channel)


def test_signs_in_the_log_are_counted_of_each_attempt_on_its_own(host: Host) -> None:
    go = host.work_dir / "go"
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    start(
        channel,
        shell(f"echo loss: nan; until test -e {go}; do sleep 0.05; done; echo val_loss: nan; sleep 600"),
    )
    seen = await_look(channel, lambda seen: bool(seen["log_bytes"]))
    assert seen["signs"]["nan"][:2] == [1, "loss: nan"]
    go.touch()
    seen = await_look(channel, lambda seen: seen["says"].startswith("val"))
    assert look(channel)["signs"]["nan"][:2] == [2, "val_loss: nan"]
    go.unlink()
    channel.send("restart", tasks={"worker/0": 1})
    channel.wait("started")
    seen = await_look(channel, lambda seen: bool(seen["log_bytes"]))
    assert seen["signs"]["nan"][:2] == [1, "loss: nan"]
    swept(channel)


def test_a_task_that_has_ended_is_not_looked_at(host: Host) -> None:
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    start(channel, shell("exit 0", id="worker/0"), task("sleep", "600", id="worker/1"))
    channel.wait("exit")
    assert list(channel.ask("look", answer="looked")["tasks"]) == ["worker/1"]
    swept(channel)


# ---- stacks


HANGS = """
import os, signal, sys, threading
def here_it_hangs():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
for number in sys.argv[1:]:
    signal.signal(int(number), lambda *_: print("swallowed", flush=True))
print("hangs", flush=True)
here_it_hangs()
"""


def hangs(*signals: int, **fields: Any) -> dict[str, Any]:
    """A Python program that hangs and swallows these signals."""
    env = {"PYTHONFAULTHANDLER": "1", **fields.pop("env", {})}
    return task(sys.executable, "-c", HANGS, *map(str, map(int, signals)), env=env, **fields)


def ends(channel: Channel, grace_s: float, **fields: Any) -> tuple[int | None, str]:
    """End the run with stacks: what signal the task ended by, and the end of its log."""
    await_look(channel, lambda seen: seen["says"] in ("hangs", "waits"))
    channel.send("end", grace_s=grace_s, stacks=True)
    said = channel.wait("exit")
    assert channel.wait("swept")["survivors"] == []
    return said["signal"], said.body.decode()


def a_run(host: Host, one: dict[str, Any]) -> Channel:
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    start(channel, one)
    return channel


def test_a_stuck_python_writes_where_it_hangs_and_leaves_no_core(every_host: Host) -> None:
    number, log = ends(a_run(every_host, hangs()), 60.0)
    assert number == signal.SIGABRT
    assert "Fatal Python error: Aborted" in log
    assert "in here_it_hangs" in log
    assert not [path for path in every_host.work_dir.rglob("core*") if path.is_file()]


def test_one_that_catches_term_gets_its_grace_first(host: Host) -> None:
    number, log = ends(a_run(host, hangs(signal.SIGTERM)), 1.0)
    assert number == signal.SIGABRT
    # It hangs in C, so its handler never ran; the stacks came when the grace was over.
    assert "in here_it_hangs" in log
    saves = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(3)))\n"
        "print('waits', flush=True)\nwhile True: signal.pause()"
    )
    other = Host(host.work_dir / "other", sys.executable)
    try:
        channel = other.start()
        channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
        start(channel, task(sys.executable, "-c", saves, env={"PYTHONFAULTHANDLER": "1"}))
        await_look(channel, lambda seen: seen["says"] == "waits")
        channel.send("end", grace_s=60.0, stacks=True)
        said = channel.wait("exit")
        assert (said["code"], said.body) == (3, b"waits\nsaved\n")
        channel.wait("swept")
    finally:
        other.close()


def test_a_program_that_does_not_handle_the_signal_is_not_hit_by_it(host: Host) -> None:
    number, log = ends(a_run(host, hangs(env={"PYTHONFAULTHANDLER": ""})), 60.0)
    assert number == signal.SIGTERM
    assert log == "hangs\n"


def test_the_python_behind_a_shell_is_the_one_that_writes(host: Host) -> None:
    code = HANGS.replace('"', "'")
    one = shell(f'"{sys.executable}" -c "{code}"; echo the shell goes on', env={"PYTHONFAULTHANDLER": "1"})
    number, log = ends(a_run(host, one), 5.0)
    assert number in (None, signal.SIGKILL)
    assert "in here_it_hangs" in log


def test_a_stopped_program_writes_too(host: Host) -> None:
    channel = a_run(host, hangs())
    seen = await_look(channel, lambda seen: seen["says"] == "hangs")
    os.kill(seen["processes"][0][0], signal.SIGSTOP)
    number, log = ends(channel, 60.0)
    assert (number, "in here_it_hangs" in log) == (signal.SIGABRT, True)
