"""A short-lived agent for all runs of this user on this host, and for a look at its GPUs.

`tflaunch stop`, `ps`, `status`, `clean`, `gpus` and every command that attaches to a run talk to it.

It can end a run in any state: it asks the living agents, then kills every process that carries the run's mark.
"""

import os
import select
import time

from tflaunch.agent import facts, ledger, processes
from tflaunch.agent.files.rundir import HostError, RunDirectory, all_runs
from tflaunch.agent.gpus.driver import LOOK_S, Driver
from tflaunch.agent.gpus.tickets import Place
from tflaunch.agent.net.channel import pass_on, write_all
from tflaunch.agent.tasks import container
from tflaunch.protocol import messages, wire
from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from tflaunch.agent.gpus.driver import Answer

MARGIN_S = 25.0  # how long an agent may take, beyond the grace, to kill, sweep and look at its GPUs
AGENT_S = 5.0  # how long an agent may take to leave ...
GUARD_S = 15.0  # ... and its guard to sweep behind it, before the visit kills them
BEAT_S = 3.0


class Visit:
    """Serves the messages of one channel, one after another."""

    def __init__(self, parent: str, channel_in: int, channel_out: int) -> None:
        self._parent = parent
        self._in = channel_in
        self._out = channel_out
        self._driver = Driver()
        self._probe = {}  # type: Dict[str, Any]  # the last message of that type

    def run(self, early: bytes) -> None:
        """Returns when the channel ends; the bytes `early` have been read from it already."""
        decoder = wire.Decoder()
        self._send("hello", run="", host="", pid=os.getpid(), directory=self._parent)
        data = early or os.read(self._in, 65536)
        while data:
            came = decoder.feed(data)
            for number, message in enumerate(came, 1):
                try:
                    messages.check(message, messages.TO_VISIT)
                    if message.type == "list":
                        self._send("runs", **self._runs(message))
                    elif message.type == "finish":
                        self._send(
                            "finished",
                            **self._finish(message["run"], message["grace_s"], message.fields.get("by", "")),
                        )
                    elif message.type == "measure":
                        from tflaunch.agent.files import garbage

                        self._send("usage", **garbage.usage(self._parent))
                    elif message.type == "clean":
                        from tflaunch.agent.files import garbage

                        wanted = message["runs"], message["code_older_s"], message["dry_run"]
                        self._send("cleaned", **garbage.clean(self._parent, *wanted))
                    elif message.type == "probe":
                        self._probe = message.fields
                        self._send_facts()
                    elif message.type == "module":
                        self._driver.take_module(message.body)
                        self._send_facts()
                    elif message.type == "attach":
                        self._attach(message, decoder, came[number:])
                        return
                    elif message.type == "tensorboard":
                        from tflaunch.agent.net import tensorboard

                        place = self._place(message["run"], message["host"])
                        tensorboard.serve(place, self._in, self._out, decoder, message["logdir"])
                        return
                    elif message.type == "bye":
                        return
                except HostError as error:
                    self._send("failed", reason=error.reason, hint=error.hint)
                except (OSError, wire.WireError) as error:
                    self._send("failed", reason=str(error), hint="")
            data = os.read(self._in, 65536)

    def _attach(self, message: wire.Message, decoder: wire.Decoder, more: "List[wire.Message]") -> None:
        """Show a run: pass the channel to its agent, or show what a dead agent left; `more` came after the request."""
        directory = self._place(message["run"], message["host"])
        connection = directory.connect()
        if connection is not None:
            spoken = directory.read("agent.json").get("wire", wire.PROTOCOL)
            if spoken != wire.PROTOCOL:
                connection.close()
                raise HostError(
                    "run %s was started by another version of tflaunch, whose agents speak protocol %s, not %d"
                    % (message["run"], spoken, wire.PROTOCOL),
                    "attach with that version; `tflaunch stop` works with this one, too",
                )
            early = [wire.encode(each.type, each.body, **each.fields) for each in more]
            if pass_on(self._in, self._out, connection, b"".join(early) + decoder.rest):
                return
            connection.close()
        from tflaunch.agent.archive import Archive

        Archive(directory, self._in, self._out).run(decoder, more)

    def _place(self, run: str, host: str) -> RunDirectory:
        hosts = [each for known, each in all_runs(self._parent) if known == run]
        if not hosts:
            raise HostError("this host knows no run %s" % run)
        if host not in hosts:
            raise HostError("run %s has no host by the name %s on this machine" % (run, host))
        return RunDirectory(self._parent, run, host)

    def _send(self, type: str, **fields: "Any") -> None:
        write_all(self._out, wire.encode(type, **fields))

    def _send_facts(self) -> None:
        self._send("facts", **facts.collect([], self._parent, self._look(), Place()))

    def _look(self) -> "Dict[str, Any]":
        """What NVML says; this process ends with the channel, also while a sick driver says nothing."""
        answers = []  # type: List[Answer]
        question = {"ask": "probe", "topology": self._probe.get("topology", True)}
        self._driver.ask(question, self._probe.get("within_s", LOOK_S), answers.append)
        while not answers:
            waiting = select.poll()
            waiting.register(self._in, select.POLLRDHUP)
            waiting.register(self._driver.descriptor, select.POLLIN)
            if any(descriptor == self._in for descriptor, _ in waiting.poll(100)):
                self._driver.stop()
                os._exit(0)
            self._driver.tick(time.monotonic())
        return answers[0].gpus

    def _runs(self, message: wire.Message) -> "Dict[str, Any]":
        asked = message.fields
        return ledger.runs(
            self._parent, asked.get("all", False), asked.get("run", ""), asked.get("tail_bytes", 0)
        )

    def _finish(self, run: str, grace_s: float, by: str) -> "Dict[str, Any]":
        mine = [RunDirectory(self._parent, run, host) for each, host in all_runs(self._parent) if each == run]
        killed = []  # type: List[str]
        gpus = []  # type: List[Dict[str, Any]]
        records = [directory.read("agent.json") for directory in mine]
        agents = [connection for connection in (directory.connect() for directory in mine) if connection]
        for connection in agents:
            try:
                connection.sendall(wire.encode("end", grace_s=grace_s, by=by))
            except OSError:
                pass  # the agent is just leaving; the sweep by mark finds what is left
        deadline = time.monotonic() + grace_s + MARGIN_S
        for connection in agents:
            swept = self._await_swept(connection, deadline)
            killed += swept.get("killed", [])
            gpus += swept.get("gpus", [])
        survivors = self._await_guards(records)

        sweep = processes.Sweep(lambda: strays(run, agents=not mine))
        sweep.run()
        killed += sweep.killed
        survivors += [processes.describe(process) for process in sweep.survivors]
        for directory in mine:
            survivors += container.remove(directory)
        return {
            "known": bool(mine or agents or killed),
            "found": bool(agents or killed),
            "killed": killed,
            "survivors": survivors,
            "unsure": any(map(_unswept, mine)),
            "restarted": max(map(ledger.restarted, mine), default=0.0),
            "gpus": gpus,
        }

    def _await_swept(self, connection: socket.socket, deadline: float) -> "Dict[str, Any]":
        decoder = wire.Decoder()
        while time.monotonic() < deadline:
            connection.settimeout(BEAT_S)
            try:
                data = connection.recv(65536)
            except socket.timeout:
                self._send("beat")
                continue
            except OSError:
                break
            if not data:
                break  # the agent has ended; the sweep by mark finds what is left
            for message in decoder.feed(data):
                if message.type == "swept":
                    try:
                        connection.sendall(wire.encode("bye"))
                    except OSError:
                        pass
                    connection.close()
                    return message.fields
        connection.close()
        return {}

    def _await_guards(self, records: "List[Dict[str, Any]]") -> "List[str]":
        """Wait until agents and guards end by themselves, and kill those that do not; returns what survives.

        Agents first: a guard that is still alive then sweeps even processes that do not carry the mark.
        """
        survivors = []  # type: List[str]
        for name, name_start, patience_s in (("pid", "start", AGENT_S), ("guard", "guard_start", GUARD_S)):
            wanted = [(record.get(name, 0), record.get(name_start, 0)) for record in records]

            def left(wanted: "List[Tuple[int, int]]" = wanted) -> "List[processes.Process]":
                found = [
                    processes.read(pid) for pid, start in wanted if start and processes.alive(pid, start)
                ]
                return [process for process in found if process]

            deadline = time.monotonic() + patience_s
            while left() and time.monotonic() < deadline:
                time.sleep(0.02)
            sweep = processes.Sweep(left)
            sweep.run()
            survivors += [processes.describe(process) for process in sweep.survivors]
        return survivors


def strays(run: str, agents: bool) -> "List[processes.Process]":
    """The processes that carry the mark of `run`; with `agents` also its agents and all below them.

    Use `agents` for a run whose directory, which names the pids of its agents, is gone.
    """
    every = processes.every()
    found = {process.pid: process for process in processes.marked(every.values(), run)}
    for process in every.values() if agents else ():
        if run and processes.serves(processes.command(process.pid)) == run and processes.mine(process.pid):
            found[process.pid] = process
            found.update((each.pid, each) for each in processes.descendants(process.pid, every))
    found.pop(os.getpid(), None)
    return [process for process in found.values() if not processes.left_behind(process)]


def _unswept(directory: RunDirectory) -> bool:
    """Whether agent and guard were both killed, so that neither could sweep behind the tasks.

    Then nothing can find a process that has left its parents and cleared its environment.  After a restart of the
    machine there is no such process.
    """
    record = directory.read("agent.json")
    ended = record.get("over", False) or directory.read("guard.json").get("swept", False)
    return bool(record.get("tasks")) and not ended and not ledger.restarted(directory)
