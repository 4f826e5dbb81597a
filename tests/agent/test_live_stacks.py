"""The stacks of tasks that go on, asked of the agent as it is shipped, for every Python."""

from __future__ import annotations

import sys
from typing import Any

from tests.support.agent_over_pipes import Channel, Host, task

PROGRAM = """
import sys, threading, time

def deeper(seconds):
    time.sleep(seconds)

def batches():
    deeper(600)

def pool():
    threading.Event().wait()

for _ in range(3):
    threading.Thread(target=pool, daemon=True).start()
print("ready", flush=True)
batches()
"""


def start(channel: Channel, *tasks: dict[str, Any]) -> None:
    channel.send("stage", tasks=list(tasks), code=None, ports=[], gpus=[], door=False, attempt=0)
    channel.wait("staged")
    channel.send("release")
    channel.gather("started", len(tasks))


def follow(channel: Channel) -> None:
    channel.send("watch", after=0, logs={}, window=1 << 20, client="test")


def inspect(channel: Channel, name: str = "worker/0", **more: Any) -> list[dict[str, Any]]:
    answer = channel.ask("inspect", tasks=[name], stacks=True, answer="inspected", **more)
    processes: list[dict[str, Any]] = answer["tasks"][name]
    return processes


def python(program: str, *options: str, executable: str = sys.executable) -> list[str]:
    return [executable, *options, "-c", program]


def functions(frames: list[list[Any]]) -> list[str]:
    return [frame[2] for frame in frames]


def test_where_each_thread_is_and_the_program_goes_on(any_host: Host) -> None:
    channel = any_host.start()
    follow(channel)
    start(channel, task(*python(PROGRAM)))
    channel.read_log("worker/0", lambda log: b"ready" in log)
    (program,) = inspect(channel)
    main, *others = program["stacks"]
    assert main["main"]
    assert functions(main["frames"]) == ["deeper", "batches", "<module>"]
    assert main["frames"][1][:2] == ["<string>", 8]
    assert [each["count"] for each in others] == [3]
    assert "pool" in functions(others[0]["frames"])
    assert program["why_none"] == ""
    again = inspect(channel)[0]
    assert again["stacks"] == program["stacks"], "asked again soon, it is the same answer"
    assert again["pid"] == program["pid"], "and the program lives"
    assert channel.log["worker/0"] == b"ready\n", "nothing of it is in the log"
    channel.ask("end", grace_s=0.0, answer="swept")
