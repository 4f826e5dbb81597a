"""Whether a task that failed as its connection was reset could have reached its peers: `dialled` of its exit facts."""

import time

from tflaunch.agent.net.name_lookup import NameLookup
from tflaunch.protocol import wire
from tflaunch.protocol.dialling import NARROW, STRANGER, Dialling
from tflaunch.protocol.selector import Selector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

    from tflaunch.agent.tasks.task import Task

WORDS = (b"Connection reset by peer", b"Errno 104", b"ECONNRESET")
LOG_BYTES = 16384
MOST = 8
CONNECT_S = 0.7
LIMIT_S = 3.0  # the agent does nothing else meanwhile
OPEN = "open"


def dialled(task: "Task") -> "List[List[Any]]":
    """[address, port, verdict] of the endpoints of its cluster that its log names, else of the first ones.

    [] where the log tells of no reset.
    """
    log = task.logs.tail(task.logs.attempt, LOG_BYTES)
    if not any(words in log for words in WORDS):
        return []
    peers = _peers(task)
    named = [peer for peer in peers if b":%d" % peer[1] in log]
    targets = [[address, port, ""] for address, port in (named or peers)[:MOST]]
    selector = Selector()
    dialling = Dialling(selector, "", targets, CONNECT_S, look_up=NameLookup)
    deadline = time.monotonic() + LIMIT_S
    try:
        while not dialling.step(time.monotonic()) and time.monotonic() < deadline:
            for key, _ in selector.select(0.05):
                key.data()
    finally:
        dialling.close()
        selector.close()
    found = []
    for (address, port, _), result in zip(targets, dialling.results):  # noqa: B905  Python 3.8
        if result is not None:
            answers = not isinstance(result, list) or result[0] in (STRANGER, NARROW)
            found.append([address, port, OPEN if answers else result[0]])  # type: ignore[index]
    return found


def _peers(task: "Task") -> "List[List[Any]]":
    try:
        config = wire.loads(task.request["env"].get("TF_CONFIG") or "{}")
        endpoints = [each for job in config.get("cluster", {}).values() for each in job]
        mine = config["cluster"][config["task"]["type"]][config["task"]["index"]]
        split = [each.rpartition(":") for each in endpoints if each != mine]
        return [[address.strip("[]"), int(port)] for address, _, port in split]
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        return []
