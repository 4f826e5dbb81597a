"""A short-lived agent for all runs of this user on this host, and for a look at its GPUs.

`tflaunch stop`, `ps`, `status`, `clean`, `gpus` and every command that attaches to a run talk to it.

It can end a run in any state: it asks the living agents, then kills every process that carries the run's mark.
"""

import os
import select
import time

from tflaunch.agent import host_facts, ledger
from tflaunch.agent.gpus.gpu_driver import LOOK_S, GpuDriver
from tflaunch.agent.gpus.tickets import QueuePlace
from tflaunch.agent.host import container, processes, strays
from tflaunch.agent.host.guard import GUARD, unswept
from tflaunch.agent.host.rundir import NOWHERE, HostError, RunDirectory, all_runs, is_there
from tflaunch.agent.net.channel import SILENCE_S, pass_on, write_all
from tflaunch.protocol import messages, wire
from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from tflaunch.agent.gpus.gpu_driver import DeviceAnswer

MARGIN_S = 25.0  # how long an agent may take, beyond the grace, to kill, purge and look at its GPUs
AGENT_S = 5.0  # how long an agent may take to leave ...
GUARD_S = 15.0  # ... and its guard to purge behind it, before the visit kills them
HANGS_S = 10.0  # an agent of which nothing has come for so long hangs: one that lives says so every 2.5 s
BEAT_S = 3.0
LEVELS = -3  # of the calls that a defect ended, the innermost


class Visit:
    """Serves the messages of one channel, one after another."""

    def __init__(self, parent: str, channel_in: int, channel_out: int) -> None:
        self._named = parent  # what users are told of
        self._parent = NOWHERE
        self._in = channel_in
        self._out = channel_out
        self._driver = GpuDriver()
        self._probe = {}  # type: Dict[str, Any]  # the last message of that type

    def run(self, early: bytes) -> None:
        """Returns when the channel ends, or nothing has come by it for SILENCE_S.

        The bytes `early` have been read from it already.
        """
        decoder = wire.Decoder()
        self._send("hello", run="", host="", pid=os.getpid(), directory=self._named)
        data = early or self._read()
        while data:
            came = decoder.feed(data)
            for number, message in enumerate(came, 1):
                try:
                    messages.check(message, messages.TO_VISIT)
                    if message.type == "bye":
                        return
                    self._parent = self._named if is_there(self._named) else NOWHERE
                    if message.type == "list":
                        self._send("runs", **self._runs(message))
                    elif message.type == "finish":
                        self._send(
                            "finished",
                            **self._finish(message["run"], message["grace_s"], message.fields.get("by", "")),
                        )
                    elif message.type == "measure":
                        from tflaunch.agent import garbage

                        self._tidy(message)
                        self._send("usage", **dict(garbage.usage(self._parent), directory=self._named))
                    elif message.type == "samples":
                        from tflaunch.agent import tally_file

                        data = tally_file.piece(self._parent, message["run"], message["offset"])
                        write_all(self._out, wire.encode("samples", data))
                    elif message.type == "clean":
                        from tflaunch.agent import garbage

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
                        from tflaunch.agent import tensorboard_server

                        place = self._place(message["run"], message["host"])
                        tensorboard_server.serve(place, self._in, self._out, decoder, message["logdir"])
                        return
                except HostError as error:
                    self._send("failed", reason=error.reason, hint=error.hint)
                except (OSError, wire.WireError) as error:
                    self._send("failed", reason=str(error), hint="")
                except Exception:  # a defect in one request must not end the others
                    import traceback

                    why = "a defect of tflaunch's agent:\n" + traceback.format_exc(LEVELS)
                    self._send("failed", reason=why, hint="")
            data = self._read()

    def _read(self) -> bytes:
        """What comes next by the channel; b"" at its end, or where it has died without a word, as a cut link does."""
        channel = select.poll()
        channel.register(self._in, select.POLLIN)
        return os.read(self._in, 65536) if channel.poll(SILENCE_S * 1000) else b""

    def _attach(self, message: wire.Message, decoder: wire.Decoder, more: "List[wire.Message]") -> None:
        """Show a run: pass the channel to its agent, or show what a dead agent left; `more` came after the request."""
        directory = self._place(message["run"], message["host"])
        connection = directory.connect()
        given_up = bool(directory.read(GUARD).get("why"))  # it hangs so that not even its guard could kill it
        if connection is not None and given_up:
            connection.close()
        elif connection is not None:
            spoken = directory.agent().get("wire", wire.PROTOCOL)
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
        else:
            agent = directory.agent()
            # So many wait for it that there is no room for one more.
            if not (given_up or agent.get("over", False)) and ledger.lives(agent):
                raise HostError(
                    "the agent of run %s does not answer (pid %d)" % (message["run"], agent["pid"]),
                    "if it hangs, its guard ends it when the lease is over; try again then",
                )
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
        found = strays.leases(self._parent)
        self._send("facts", **host_facts.collect([], self._named, self._look(), QueuePlace(), strays=found))

    def _look(self) -> "Dict[str, Any]":
        """What NVML says; this process ends with the channel, also while a sick driver says nothing."""
        answers = []  # type: List[DeviceAnswer]
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
        ended = self._tidy(message)
        found = ledger.runs(
            self._parent,
            asked.get("all", False),
            asked.get("run", ""),
            asked.get("tail_bytes", 0),
            asked.get("running_tails", False),
        )
        return dict(found, ended=ended)

    def _tidy(self, message: wire.Message) -> "List[Dict[str, Any]]":
        """End the strays of all runs, if the command does more than look."""
        return strays.end_all(self._parent) if message.fields.get("tidy") else []

    def _finish(self, run: str, grace_s: float, by: str) -> "Dict[str, Any]":
        strays.end_all(self._parent, but=run)
        mine = [RunDirectory(self._parent, run, host) for each, host in all_runs(self._parent) if each == run]
        killed = []  # type: List[str]
        gpus = []  # type: List[Dict[str, Any]]
        records = [directory.agent() for directory in mine]
        agents = [connection for connection in (directory.connect() for directory in mine) if connection]
        for connection in agents:
            try:
                connection.sendall(wire.encode("end", grace_s=grace_s, by=by))
            except OSError:
                pass  # the agent is just leaving; the purge by mark finds what is left
        deadline = time.monotonic() + grace_s + MARGIN_S
        hangs = False
        for connection in agents:
            swept = self._await_swept(connection, deadline)
            hangs |= swept is None
            killed += (swept or {}).get("killed", [])
            gpus += (swept or {}).get("gpus", [])
        survivors = self._await_guards(records, 0.0 if hangs else AGENT_S)

        # The run's agents, too: all that were to end in order have ended.
        hosts = [directory.host for directory in mine] or None
        purge = processes.Purge(lambda: strays.of_run(run, hosts))
        purge.run()
        killed += purge.killed
        survivors += [processes.describe(process) for process in purge.survivors]
        for directory in mine:
            containers = container.remove(directory)
            survivors += containers
            if not containers:
                strays.forget(directory)
        unsure = next(filter(None, map(_unswept, mine)), "")
        return {
            "known": bool(mine or agents or killed),
            "found": bool(agents or killed),
            "killed": killed,
            "survivors": list(dict.fromkeys(survivors)),  # a guard is among those of the run, too
            "unsure": bool(unsure),
            "unsure_why": unsure,
            "restarted": max(map(ledger.restarted, mine), default=0.0),
            "gpus": gpus,
        }

    def _await_swept(self, connection: socket.socket, deadline: float) -> "Optional[Dict[str, Any]]":
        """What the agent says once it has swept, {} where it ends before; None where it hangs."""
        decoder = wire.Decoder()
        heard = time.monotonic()
        while time.monotonic() < min(deadline, heard + HANGS_S):
            connection.settimeout(BEAT_S)
            try:
                data = connection.recv(65536)
            except socket.timeout:
                self._send("beat")
                continue
            except OSError:
                data = b""
            heard = time.monotonic()
            if not data:
                connection.close()
                return {}  # the agent has ended; the purge by mark finds what is left
            for message in decoder.feed(data):
                if message.type == "swept":
                    try:
                        connection.sendall(wire.encode("bye"))
                    except OSError:
                        pass
                    connection.close()
                    return message.fields
        connection.close()
        return None

    def _await_guards(self, records: "List[Dict[str, Any]]", agents_s: float) -> "List[str]":
        """Wait until agents and guards end by themselves, and kill those that do not; returns what survives.

        `agents_s`: how long the agents may take to leave.

        Agents first: a guard that is still alive then purges even processes that do not carry the mark.
        """
        survivors = []  # type: List[str]
        for name, name_start, patience_s in (("pid", "start", agents_s), ("guard", "guard_start", GUARD_S)):
            wanted = [(record.get(name, 0), record.get(name_start, 0)) for record in records]

            def left(wanted: "List[Tuple[int, int]]" = wanted) -> "List[processes.Process]":
                found = [
                    processes.read(pid) for pid, start in wanted if start and processes.alive(pid, start)
                ]
                return [process for process in found if process]

            deadline = time.monotonic() + patience_s
            while left() and time.monotonic() < deadline:
                time.sleep(0.02)
            purge = processes.Purge(left)
            purge.run()
            survivors += [processes.describe(process) for process in purge.survivors]
        return survivors


def _unswept(directory: RunDirectory) -> str:
    """Why neither agent nor guard has swept behind the tasks; "" where one has.

    Then nothing can find a process that has left its parents and cleared its environment.  After a restart of the
    machine there is no such process.
    """
    record = directory.agent()
    ended = record.get("over", False) or directory.read(GUARD).get("swept", False)
    return unswept(directory) if record.get("tasks") and not ended and not ledger.restarted(directory) else ""
