"""Shows a viewer a run whose agent has ended: its events, logs and outputs, from the run directory."""

import os
import select
import time

from tflaunch.agent import host_facts
from tflaunch.agent.files.outputs import Outputs
from tflaunch.agent.host import journal
from tflaunch.agent.host.guard import GUARD
from tflaunch.agent.net.channel import SILENCE_S, write_all
from tflaunch.agent.tasks.logs import TaskLogs
from tflaunch.agent.viewer import Viewer
from tflaunch.protocol import messages, wire
from tflaunch.protocol.machine import this_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from tflaunch.agent.host.rundir import RunDirectory

BEAT_S = 2.5
KILLED = "its agent is gone: it was killed"
GONE = "its agent is gone (killed, or the host was started again)"


class _Channel:
    """The channel as a Viewer's connection; `send` waits until the channel has taken everything."""

    def __init__(self, channel_out: int) -> None:
        self._out = channel_out

    def send(self, data: "bytes | bytearray") -> int:
        write_all(self._out, bytes(data))
        return len(data)


class Archive:
    """Serves one viewer, until its channel ends."""

    def __init__(self, directory: "RunDirectory", channel_in: int, channel_out: int) -> None:
        self._directory = directory
        self._in = channel_in
        self._outputs = Outputs(directory)
        self._viewer = Viewer(_Channel(channel_out))  # type: ignore[arg-type]

    def _why_gone(self) -> str:
        from tflaunch.agent.ledger import restarted

        booted = restarted(self._directory)
        if not booted:
            here = self._directory.agent().get("machine") == this_machine()
            return KILLED if here else GONE
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(booted))
        return "the host was restarted (booted at %s)" % at

    def run(self, decoder: wire.Decoder, pending: "List[wire.Message]") -> None:
        """Answer `watch`, `find` and `read`; the messages `pending` were read already."""
        about = self._directory.agent()
        events = journal.read(self._directory, last_plan=True)
        sound = filter(messages.is_event, events.events)  # the file may be damaged, or another version's
        events.events = [dict(event, n=number) for number, event in enumerate(sound, 1)]
        if not events.has("swept"):
            reason = about.get("lost") or self._directory.read(GUARD).get("why") or self._why_gone()
            events.events.append({"type": "gone", "n": len(events.events) + 1, "reason": reason})
        staged = self._directory.read("plan.json").get("tasks") or []
        logs = [TaskLogs(self._directory, task["id"]).find() for task in staged]
        self._viewer.send(
            "hello",
            run=self._directory.run,
            host=self._directory.host,
            pid=0,
            directory=self._directory.path,
            alive=False,
        )
        heard = time.monotonic()
        while True:
            while pending:
                message = messages.check(pending.pop(0), messages.TO_AGENT)
                if message.type == "watch":
                    self._viewer.watch(message)
                    last = events.events[-1]
                    if last["type"] == "gone" and message["after"] >= last["n"]:
                        # The viewer has seen events that a full disk did not take: this one comes after those.
                        last["n"] = message["after"] + 1
                        self._viewer.events_sent = len(events.events) - 1
                elif message.type == "credit":
                    self._viewer.credit += message["bytes"]
                elif message.type == "find":
                    found = self._outputs.find(message["patterns"], message["roots"])
                    while self._viewer.find(found):
                        if time.monotonic() - self._viewer.sent_at >= BEAT_S:
                            self._viewer.send("beat")
                        self._viewer.flush()
                elif message.type == "read":
                    self._viewer.read(self._outputs, message)
                elif message.type == "bye":
                    return
            self._viewer.send_events(events, {each.task: each for each in logs})
            self._viewer.send_logs(logs)
            self._viewer.flush()
            if self._viewer.behind and self._viewer.credit > 0:
                continue
            if not select.select([self._in], [], [], BEAT_S)[0]:
                if time.monotonic() - heard > SILENCE_S:
                    return  # the connection has died without a word
                self._viewer.send("beat")
                continue
            heard = time.monotonic()
            data = os.read(self._in, 65536)
            if not data:
                return
            pending += decoder.feed(data)
