"""Tasks that truncate their own logs, through a real agent."""

from __future__ import annotations

import shutil

import pytest

from tests.support.agent_over_pipes import Channel, Host, running, task
from tests.support.patience import until
from tflaunch.protocol import wire

# Writes, waits for a line of input (a fifo), truncates its log in its own way, writes on.
TRUNCATES = """
import os, sys
os.write(1, b"one\\n" * 100)
os.mkfifo("go")
open("go").read()
if sys.argv[1] == "open":
    out = open("/proc/self/fd/1", "w")
elif sys.argv[1] == "truncate":
    os.system("truncate -s 0 /proc/self/fd/1")
    out = sys.stdout
else:
    os.ftruncate(1, 0)
    out = sys.stdout
out.write("two\\n")
out.flush()
open("went", "w").close()
open("go").read()
out.write("three\\n" * 100)
out.close()
os._exit(0)
"""


def go(host: Host) -> None:
    fifo = host.directory / "work" / "go"
    until(fifo.exists, "the task to wait")
    fifo.write_text("")


@pytest.mark.parametrize("how", ["open", "truncate", "ftruncate"])
def test_what_a_task_writes_after_it_has_truncated_its_log_comes(host: Host, how: str) -> None:
    if how == "truncate" and not shutil.which("truncate"):
        pytest.skip("no truncate(1)")
    channel = host.start()
    running(channel, task("python3", "-c", TRUNCATES, how))
    first = b"one\n" * 100
    assert channel.read_log("worker/0", lambda log: len(log) >= len(first)) == first
    go(host)
    cut = next_cut(channel)
    assert (cut["task"], cut["attempt"], cut["offset"], cut.body) == ("worker/0", 0, len(first), b"")
    second = first + b"two\n"
    assert channel.read_log("worker/0", lambda log: len(log) >= len(second)) == second
    until((host.directory / "work" / "went").exists, "the task to go on")
    late = host.attach(after=0, logs={}, client="late")  # who comes later sees what is there, and hears of it
    assert next_cut(late)["offset"] == len(first)
    go(host)
    whole = second + b"three\n" * 100
    exit = None
    while exit is None or len(channel.log["worker/0"]) < len(whole):
        message = channel.next()
        assert message is not None
        exit = message if message.type == "exit" else exit
    assert channel.log["worker/0"] == whole
    assert exit["log_bytes"] == len(whole)
    assert exit.body == whole[len(first) :]
    resume(host, second, whole)  # one that had lost its connection
    channel.send("end", grace_s=0.0)
    swept = channel.wait("swept")
    assert swept["logs"] == {"worker/0": [0, len(whole)]}
    channel.leave()
    until(lambda: not (host.directory / "agent.sock").exists(), "the end of the agent")
    resume(host, second, whole)  # from what the agent has left


def resume(host: Host, known: bytes, whole: bytes) -> None:
    """Attach with that much of the log, and get the rest."""
    channel = host.open("visit", run="", host="")
    channel.wait("hello")
    channel.ask("attach", run=host.run, host="h1", answer="hello")
    channel.log["worker/0"] = known
    channel.send("watch", after=0, logs={"worker/0": [0, len(known)]}, window=1 << 20, client="again")
    assert channel.read_log("worker/0", lambda log: len(log) >= len(whole)) == whole


def next_cut(channel: Channel) -> wire.Message:
    """The next message that tells of a truncation."""
    while True:
        message = channel.next_raw()
        assert message is not None
        if message.type == "log" and message.fields.get("cut"):
            return message
