"""The agent itself: one loop over relays, tasks and clocks; no threads, no blocking writes.

It belongs to its run, not to a channel: relays come and go.  What ends it without a launcher is the lease.
"""

import collections
import os
import selectors
import signal
import socket
import sys
import time
import zlib

from tflaunch import gpu_probe, wire
from tflaunch.agent import container, facts, leases, processes, stacks
from tflaunch.agent.cards import Cards
from tflaunch.agent.guard import leftovers
from tflaunch.agent.journal import NAME, Journal
from tflaunch.agent.leases import Leases
from tflaunch.agent.notice import Notice
from tflaunch.agent.outputs import Outputs
from tflaunch.agent.ports import HeldPorts
from tflaunch.agent.rundir import CodeStore, HostError, RunDirectory, explain
from tflaunch.agent.tasks import Task
from tflaunch.agent.tickets import Place
from tflaunch.agent.viewer import COORDINATOR, Viewer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Union

    from tflaunch.agent.aside import Aside
    from tflaunch.agent.board import Board
    from tflaunch.agent.dial import Answering, Dialling
    from tflaunch.agent.entrusted import Entrusted
    from tflaunch.agent.peers import SealedStream
    from tflaunch.agent.prepare import Preparing

FIRST_LEASE_S = 60.0
BEAT_S = 2.5
LOG_POLL_S = 0.05  # where nothing tells that a log has grown
FAREWELL_S = 2.0  # how long the last messages may take to leave


def _signal_name(number: "Optional[int]") -> str:
    """This system's name for it: the launcher may run on another one, with other numbers."""
    try:
        return signal.Signals(number).name if number is not None else ""
    except ValueError:
        return "signal %d" % number if number is not None else ""


def _remedy(reason: str) -> str:
    """The next step when a task cannot be made ready."""
    if "no program" in reason:
        return "name the interpreter of the tasks there by `python:` in the hostfile"
    if "container-init" in reason:
        return "install catatonit on that host"
    return "correct `setup:` in the hostfile" if "setup failed" in reason else ""


class Daemon:
    """Holds the ports, the tasks and the run directory of one run on one host."""

    def __init__(self, directory: RunDirectory, first: socket.socket) -> None:
        self._directory = directory
        self._ports = HeldPorts()
        self._leases = Leases(directory.run)
        self._place = Place(directory.run, directory.host)
        self._cards = Cards(directory.run)
        self._look = gpu_probe.Look()
        self._to_lease = []  # type: Union[bool, List[str]]
        self._tasks = collections.OrderedDict()  # type: Dict[str, Task]
        self._ran = []  # type: List[processes.Process]
        self._known = os.path.exists(os.path.join(directory.path, NAME))  # the run has been here before
        self._journal = Journal(directory)
        self._entrusted = None  # type: Optional[Entrusted]
        self._door_port = 0
        self._relays = []  # type: List[Viewer]
        self._selector = selectors.DefaultSelector()
        self._lease_s = FIRST_LEASE_S
        self._lease_end = time.monotonic() + FIRST_LEASE_S
        self._staging = False
        self._passing = False  # a check: it ends with its launcher, and leaves nothing
        self._sweep = None  # type: Optional[processes.Sweep]
        self._swept = False
        self._ending = False
        self._end_by = 0.0
        self._over = False
        self._leave_at = None  # type: Optional[float]
        self._term = False
        self._code = None  # type: Optional[CodeStore]
        self._preparing = None  # type: Optional[Preparing]
        self._removal = None  # type: Optional[Aside]  # of containers
        self._turn = 0
        self._answering = None  # type: Optional[Answering]
        self._dialling = []  # type: List[tuple[Viewer, Dialling]]
        self._board = None  # type: Optional[Board]
        self._outputs = Outputs(directory)
        self._finding = []  # type: List[tuple[Viewer, Iterator[Dict[str, Any]]]]

        self._listener = directory.listen()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._notice = Notice(directory.logs, self._selector)
        self._hear_signals()
        processes.become_subreaper()
        processes.allow_many_descriptors()  # each held port takes two
        self._record()
        launcher = self._attach(first)
        launcher.launches, launcher.told = True, 0

    def _hear_signals(self) -> None:
        # A signal's arrival wakes the loop through this pair.
        wakeup, self._wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self._wakeup.setblocking(False)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: wakeup.recv(4096))
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminated)
        # Not SIG_IGN: tasks would inherit that, and a shell cannot even trap what it was started to ignore.
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(each, lambda *_: None)

    # -- the loop

    def run(self) -> None:
        """Until the run is over and the last word is said."""
        while True:
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            self._reap()
            self._tick(time.monotonic())
            self._pump()
            for relay in list(self._relays):
                self._flush(relay)
            if self._leave_at is not None and (
                time.monotonic() >= self._leave_at or not any(relay.out for relay in self._relays)
            ):
                break
        if self._code is not None:
            self._code.discard()
        if self._passing or not (self._journal.has("started") or self._known):
            self._directory.remove()  # a check, a dry run, or a launch that failed: nothing is worth keeping
        self._directory.remove_socket()

    def _timeout(self) -> float:
        hungry = any(relay.hungry for relay in self._relays)
        rest_s = self._notice.wanted(hungry, time.monotonic())
        if any(not relay.out for relay, _ in self._finding):
            return 0.0
        if any(relay.behind and relay.hungry for relay in self._relays):
            return 0.0
        tasks = self._tasks.values()
        if self._sweep is not None or any(task.untold or task.wanted > task.logs.attempt for task in tasks):
            return 0.02
        if rest_s is not None:
            return rest_s
        return LOG_POLL_S if hungry and not self._notice.works else 0.5

    def _tick(self, now: float) -> None:
        if self._term and not self._ending:
            self._expire("the agent was told to end (SIGTERM)")
        if now >= self._lease_end and not self._ending:
            self._expire(
                "no launcher has renewed the lease for %g s: its agent ended the tasks" % self._lease_s
            )
        for task in self._tasks.values():
            task.enforce(now)
            task.logs.note_time(now)
            if task.untold and (self._ending or task.left_nothing()):
                self._tell_exit(task)
            if not (self._ending or task.untold) and task.again():
                self._stage_again(task)
        if self._ending and not self._over:
            self._end_further(now)
        if self._entrusted is not None and (self._awaits_outcome or not self._over):
            self._entrusted.tick(now)
        for relay, dialling in list(self._dialling):
            if dialling.step(now):
                self._dialling.remove((relay, dialling))
                if relay in self._relays:
                    relay.send("dialled", results=dialling.results, addresses=dialling.addresses)
        self._find_further()
        if self._board is not None:
            self._board.tick(now)
        nobody_comes = not self._relays and not self._awaits_outcome
        if self._over and self._leave_at is None and (nobody_comes or now >= self._lease_end):
            self._leave_at = now + FAREWELL_S
        for relay in self._relays:
            if now - relay.sent_at >= BEAT_S and not relay.out:
                relay.send("beat")

    # -- relays

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._attach(connection)

    def _attach(self, connection: "Union[socket.socket, SealedStream]", private: bool = True) -> Viewer:
        connection.setblocking(False)
        relay = Viewer(connection)
        relay.private = private
        self._relays.append(relay)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._readable(relay))
        relay.send(
            "hello",
            run=self._directory.run,
            host=self._directory.host,
            pid=os.getpid(),
            directory=self._directory.path,
            alive=True,
        )
        return relay

    def _readable(self, relay: Viewer) -> None:
        # Writability is handled by trying: the selector says here only that something is worth trying.
        try:
            data = relay.connection.recv(256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._detach(relay)
            return
        try:
            for message in relay.decoder.feed(data):
                self._handle(relay, message)
        except wire.WireError as error:
            _note(str(error))
            self._detach(relay)

    def _detach(self, relay: Viewer) -> None:
        if relay in self._relays:
            self._relays.remove(relay)
            self._selector.unregister(relay.connection)
            relay.connection.close()
            if self._board is not None:
                self._board.leave(relay)
            lasting = self._journal.has("started") and not self._passing
            if relay.launches and not lasting and not self._ending:
                # Nothing was started, or nothing that lasts: nothing to wait for.
                self._journal.add("expired", reason="its launcher left before the start", asked=True)
                self._begin_end(0.0)

    def _flush(self, relay: Viewer) -> None:
        try:
            relay.flush()
        except OSError:
            self._detach(relay)
            return
        waiting = relay.out or getattr(relay.connection, "pending", False)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
        if self._selector.get_key(relay.connection).events != events:
            self._selector.modify(relay.connection, events, self._selector.get_key(relay.connection).data)

    def _tell_launcher(self, type: str, **fields: "Any") -> None:
        for relay in self._relays:
            if relay.launches:
                relay.send(type, **fields)

    # -- requests

    def _handle(self, relay: Viewer, message: wire.Message) -> None:
        handler = getattr(self, "_on_" + message.type, None)
        if handler is None:
            raise wire.WireError("an unknown message: %r" % message.type)
        try:
            handler(relay, message)
        except HostError as error:
            relay.send("failed", reason=error.reason, hint=error.hint)
        except OSError as error:
            told = explain(error, self._directory.path)
            relay.send("failed", reason=told.reason, hint=told.hint)
        except wire.WireError:
            raise
        except Exception as error:  # what one request gets wrong must not end the tasks
            import traceback

            _note(traceback.format_exc())
            relay.send(
                "failed", reason="a defect of tflaunch's agent: %r" % error, hint="see agent.log there"
            )

    def _on_probe(self, relay: Viewer, message: wire.Message) -> None:
        wanted = message["ports"]
        seed = zlib.crc32(self._directory.run.encode())
        self._ports.hold(message["count"], tuple(wanted) if wanted else None, seed)
        self._to_lease = message["lease"]
        self._send_facts(relay)

    def _on_clock(self, relay: Viewer, message: wire.Message) -> None:
        relay.send("clock", sent=message["sent"], time=time.time())

    def _on_check(self, relay: Viewer, message: wire.Message) -> None:
        from tflaunch.agent import check

        relay.send("checked", **check.look([self._directory.path, *message["directories"]]))

    def _on_queue(self, relay: Viewer, message: wire.Message) -> None:
        self._place.take(message["since"], message["wants"], message["gpus"], message["planning"])

    def _on_let_go(self, relay: Viewer, message: wire.Message) -> None:
        self._leases.keep([])

    def _on_keep(self, relay: Viewer, message: wire.Message) -> None:
        self._leases.keep(message["gpus"])
        self._cards.keep(message["gpus"])
        self._place.leave()
        self._look.close()

    def _on_module(self, relay: Viewer, message: wire.Message) -> None:
        facts.take_module(message["name"], message.body)
        self._send_facts(relay)

    def _send_facts(self, relay: Viewer) -> None:
        probed = facts.ask(self._look)
        if not self._place.taken:  # while it waits there will be another look, else NVML is left alone
            self._look.close()
        told = facts.collect(self._ports.held, self._directory.path, probed, self._place, self._lease)
        self._cards.seen(told["gpus"])
        relay.send("facts", **told)

    def _lease(self, uuid: str) -> "Optional[Dict[str, Any]]":
        if self._to_lease is True or (self._to_lease and uuid in self._to_lease):
            return self._leases.take(uuid)
        return leases.holder(uuid)

    def _on_code(self, relay: Viewer, message: wire.Message) -> None:
        self._code = CodeStore(self._directory.parent, message["digest"])
        relay.send("code", digest=message["digest"], have=self._code.here)

    def _on_blob(self, relay: Viewer, message: wire.Message) -> None:
        if self._code is None:
            raise HostError("code came that nobody announced")
        self._code.add(message.body, message["last"])
        if message["last"]:
            relay.send("code", digest="", have=True)

    def _on_prepare(self, relay: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.prepare import Preparing

        if self._preparing is not None or self._ending:
            raise HostError("this run has been prepared on this host before")
        self._preparing = Preparing(self._directory, relay, message.fields)

    def _on_stage(self, relay: Viewer, message: wire.Message) -> None:
        if self._tasks or self._ending:
            raise HostError("this run has been staged on this host before")
        self._passing = message.fields.get("passing", False)
        self._door_port = next((port for port in self._ports.held if port not in message["ports"]), 0)
        self._ports.keep([*message["ports"], self._door_port] if message["door"] else message["ports"])
        self._on_keep(relay, message)
        if message.fields.get("dial_key"):
            from tflaunch.agent.dial import Answering

            self._answering = Answering(self._selector, message["dial_key"], self._directory.host)
            self._answering.listen(message["ports"])
        requests = self._prepared(message["tasks"])
        self._directory.write("plan.json", dict(message.fields, tasks=requests))
        if message["code"] is not None:
            came = CodeStore(self._directory.parent, message["code"]).unpack(self._directory.work)
            self._directory.write("shipped.json", came)
        for request in requests:
            task = Task(self._directory, request, message["attempt"])
            task.stage()
            self._tasks[task.id] = task
            self._listen_to(task)
        self._staging = True
        self._record()
        self._staged()

    def _prepared(self, requests: "List[Dict[str, Any]]") -> "List[Dict[str, Any]]":
        more = self._preparing.setup if self._preparing is not None else []
        return [dict(request, setup=request["setup"] + more) for request in requests]

    def _listen_to(self, task: Task) -> None:
        pipe = task.ready_pipe
        self._selector.register(pipe, selectors.EVENT_READ, lambda: self._heard(task, pipe))

    def _heard(self, task: Task, pipe: int) -> None:
        if pipe != task.ready_pipe:  # of an attempt that was given up before it was ready
            self._selector.unregister(pipe)
            os.close(pipe)
            return
        ready = task.hear()
        if ready is not None:
            self._selector.unregister(pipe)
            self._staged()
        if ready and not task.waits:
            self._release(task)

    def _staged(self) -> None:
        if self._staging and all(task.ready for task in self._tasks.values()):
            self._staging = False
            self._tell_launcher("staged")

    def _stage_again(self, task: Task) -> None:
        try:
            task.stage()
            self._listen_to(task)
            if task.unwanted:
                task.stop(0.0)
        except HostError as error:
            task.cannot_start(error.reason)
            self._tell_exit(task)

    def _release(self, task: Task) -> None:
        task.release()
        if task.process:
            self._ran.append(task.process)
        pid = task.process.pid if task.process else 0
        self._journal.add("started", task=task.id, attempt=task.logs.attempt, pid=pid)
        if not task.alive:
            self._tell_exit(task)

    def _on_entrust(self, relay: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.entrusted import Entrusted

        if not self._door_port:
            raise HostError("no port is left for the run's agents", "widen `ports:` of this host by one")
        self._entrusted = Entrusted(
            self._directory, self._selector, message, self._door_port, self._attach_peer
        )
        relay.send("entrusted", port=self._door_port, wide=self._entrusted.wide)

    def _attach_peer(self, stream: "SealedStream") -> None:
        self._attach(stream, private=False)

    def _on_coordinate(self, relay: Viewer, message: wire.Message) -> None:
        if self._entrusted is None:
            raise HostError("this host has not been entrusted with the run")
        self._entrusted.coordinate(message.fields)

    def _on_coordinating(self, relay: Viewer, message: wire.Message) -> None:
        for other in self._relays:  # the launcher may have come back by another connection
            if (other.drives or other.launches) and other is not relay:
                other.send(message.type, **message.fields)

    def _on_memory(self, relay: Viewer, message: wire.Message) -> None:
        if self._entrusted is not None and relay.private:  # it is of this host
            self._entrusted.remember(message.body, message["offset"], message["last"])

    def _on_said(self, relay: Viewer, message: wire.Message) -> None:
        self._journal.add("said", text=message["text"], replanned=message.fields.get("replanned", False))

    def _on_outcome(self, relay: Viewer, message: wire.Message) -> None:
        if not self._journal.has("outcome"):
            self._journal.add("outcome", outcome=message["outcome"])

    def _on_dial(self, relay: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.dial import Dialling

        dialling = Dialling(self._selector, message["key"], message["targets"], message["patience_s"])
        self._dialling.append((relay, dialling))

    def _stop_dialling(self) -> None:
        if self._answering is not None:
            self._answering.close()
        for _, dialling in self._dialling:
            dialling.close()
        self._dialling = []

    def _on_look(self, relay: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.look import look

        relay.send("looked", tasks=look(self._tasks.values()))

    def _on_find(self, relay: Viewer, message: wire.Message) -> None:
        if relay.private:  # nobody else reads what the tasks have written
            self._finding.append((relay, self._outputs.find(message["patterns"], message["roots"])))

    def _find_further(self) -> None:
        for relay, found in list(self._finding):
            if relay not in self._relays or not relay.find(found):
                self._finding.remove((relay, found))

    def _on_read(self, relay: Viewer, message: wire.Message) -> None:
        if relay.private:
            relay.read(self._outputs, message)

    def _on_board(self, relay: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.board import Board

        if self._board is None and relay.private and not self._ending:
            self._board = Board(self._directory, self._selector)
        if self._board is not None and relay.private:
            self._board.want(relay, message["logdir"])

    def _on_connect(self, relay: Viewer, message: wire.Message) -> None:
        if self._board is not None:
            self._board.take(relay, message)

    _on_bytes = _on_taken = _on_cut = _on_connect

    def _on_release(self, relay: Viewer, message: wire.Message) -> None:
        self._stop_dialling()
        for task in self._tasks.values():
            if task.released_at is None and not self._ending:
                self._release(task)

    def _on_add(self, relay: Viewer, message: wire.Message) -> None:
        if self._ending:
            return
        added = []
        for request in self._prepared(message["tasks"]):
            task = self._tasks.get(request["id"])
            if task is None:
                task = self._tasks[request["id"]] = Task(self._directory, request, message["attempt"])
                task.waits, task.alone = False, True
                added.append(task)
            elif message["attempt"] > task.wanted:
                task.request = request
                task.start_again(message["attempt"])
        plan = self._directory.read("plan.json")
        requests = [each.request for each in self._tasks.values()]
        try:
            self._directory.write("plan.json", dict(plan, tasks=requests))  # for those who ask what runs here
        except OSError as error:
            _note("plan.json: %s" % error)
        self._record()
        for task in added:
            self._stage_again(task)

    def _on_restart(self, relay: Viewer, message: wire.Message) -> None:
        for name, attempt in message["tasks"].items():
            self._tasks[name].start_again(attempt)

    def _on_watch(self, relay: Viewer, message: wire.Message) -> None:
        for other in list(self._relays):
            if message["client"] and other.client == message["client"] and other is not relay:
                self._detach(other)  # what it had before its connection was cut
        relay.watch(message)

    def _on_credit(self, relay: Viewer, message: wire.Message) -> None:
        relay.credit += message["bytes"]

    def _on_renew(self, relay: Viewer, message: wire.Message) -> None:
        relay.drives = True
        self._lease_s = message["lease_s"]
        self._lease_end = time.monotonic() + self._lease_s

    def _on_stop(self, relay: Viewer, message: wire.Message) -> None:
        wanted = message["tasks"]
        for task in self._tasks.values():
            if wanted is None or task.id in wanted:
                task.stop(message["grace_s"])

    def _on_end(self, relay: Viewer, message: wire.Message) -> None:
        launcher = relay.drives or relay.launches
        # Of an entrusted run it is the coordinator that decides, and that has to hear of all who end it.
        decides = launcher if self._entrusted is None else relay.client == COORDINATOR
        if not (self._ending or decides):
            who = "its launcher" if launcher else "tflaunch stop"
            self._journal.add("expired", reason="%s ends the run" % who, asked=True)
        if relay.told is None:
            relay.told = len(self._journal.events)  # it waits for `swept`
            if self._over:
                relay.told = next(e["n"] - 1 for e in self._journal.events if e["type"] == "swept")
        if not self._over:
            self._begin_end(message["grace_s"], message.fields.get("stacks", False))

    def _on_bye(self, relay: Viewer, message: wire.Message) -> None:
        if self._over and (relay.drives or relay.launches):
            self._leave_at = time.monotonic() + FAREWELL_S

    # -- tasks and their end

    def _reap(self) -> None:
        by_pid = {task.process.pid: task for task in self._tasks.values() if task.process and task.alive}
        for pid, status in processes.reap():
            for aside in (self._preparing, self._removal):
                if aside is not None:
                    aside.reaped(pid)
            task = by_pid.get(pid)
            if self._board is not None and self._board.reaped(pid, status):
                continue
            if task is None:  # a process that some task left behind, or the coordinator
                if self._entrusted is not None:
                    self._entrusted.reaped(pid)
                continue
            task.ended(status)
            if task.alone and not self._ending:
                task.untold = True
            elif task.released_at is not None or not task.waits:
                self._tell_exit(task)
            elif self._staging:
                self._staging = False
                # Without the task's name: it is the same for all tasks here, and hosts with one cause fold.
                lines = task.logs.tail(0).decode("utf-8", "replace").strip().splitlines()[-10:]
                how = "code %d" % task.code if task.code is not None else "signal %d" % (task.signal or 0)
                reason = "\n".join(lines) or "the shell of a task ended with %s" % how
                self._tell_launcher("failed", reason=reason.replace("tflaunch: ", ""), hint=_remedy(reason))

    def _tell_exit(self, task: Task) -> None:
        if task.alone and not self._ending:  # it left nothing that could write more
            task.logs.end()
        task.untold = False
        self._journal.add(
            "exit",
            task=task.id,
            attempt=task.logs.attempt,
            code=task.code,
            signal=task.signal,
            signal_name=_signal_name(task.signal),
            seconds=round(task.seconds, 3),
            stopped=task.stopped,
            log_bytes=task.logs.size(task.logs.attempt),
        )

    def _terminated(self, *_: object) -> None:
        self._term = True

    def _expire(self, reason: str) -> None:
        self._journal.add("expired", reason=reason, asked=False)
        self._begin_end(5.0)

    def _begin_end(self, grace_s: float, with_stacks: bool = False) -> None:
        self._ending = True
        self._staging = False
        self._stop_dialling()
        if self._preparing is not None:
            self._preparing.stop()
        end_by = time.monotonic() + grace_s + 3.0 + (stacks.DUMP_S if with_stacks else 0.0)
        self._end_by = end_by if not self._end_by else min(self._end_by, end_by)
        for task in self._tasks.values():
            task.stop(grace_s if task.released_at is not None else 0.0, with_stacks)
        if self._board is not None:
            self._board.stop()

    def _end_further(self, now: float) -> None:
        waits = any(task.alive or task.lingers(now) for task in self._tasks.values())
        beside = (self._preparing, self._board)
        if now < self._end_by and (waits or any(each is not None and each.alive for each in beside)):
            return
        if self._removal is None and any(task.request.get("container") for task in self._tasks.values()):
            from tflaunch.agent.aside import Aside

            try:
                self._removal = Aside(lambda: container.remove_all(self._directory))
            except (
                OSError
            ) as error:  # the tasks have filled the process table: once they are swept, or by the guard
                _note("containers: %s" % error)
        if self._removal is not None and self._removal.alive and now < self._end_by + container.REMOVAL_S:
            return  # what monitors a container is not to be killed while it clears up
        if self._sweep is None:
            me = os.getpid()
            keep = [me, os.getppid(), *([self._entrusted.coordinator] if self._entrusted else [])]
            self._sweep = processes.Sweep(lambda: leftovers(self._directory, me, keep))
        if not self._swept:
            if not self._sweep.step():
                return
            self._reap()
            self._swept = True
            if self._ran:
                self._cards.begin([*self._sweep.met, *self._ran])
        cards = self._cards.result()
        if cards is None:
            return
        self._over = True
        self._ports.keep([])
        self._leases.keep([])
        self._place.leave()
        self._record()
        logs = [task.logs for task in self._tasks.values()]
        self._journal.add(
            "swept",
            killed=self._sweep.killed,
            survivors=[
                *(processes.describe(process) for process in self._sweep.survivors),
                *container.left(self._directory),
            ],
            cards=cards,
            logs={each.task: [each.attempt, each.size(each.attempt)] for each in logs},
        )
        self._sweep = None
        if self._awaits_outcome:
            return
        if not self._tasks or not any(relay.follows or relay.drives for relay in self._relays):
            self._leave_at = now + FAREWELL_S  # nobody reads the logs to their end

    @property
    def _awaits_outcome(self) -> bool:
        """Whether a coordinator, this one or the next, has still to hear how it ended here, and to say how all did."""
        started, told = self._journal.has("started"), self._journal.has("outcome")
        return self._entrusted is not None and started and not told

    def _pump(self) -> None:
        """Bring every relay up to date, as far as it takes it."""
        self._turn += 1  # no task is always first
        by_task = {name: task.logs for name, task in self._tasks.items()}
        for relay in self._relays:
            relay.tell(self._journal, by_task)
            relay.pump(list(by_task.values()), self._turn)

    def _record(self) -> None:
        """agent.json: who and where, for whoever comes later."""
        guard = processes.read(os.getppid())
        me = processes.read(os.getpid())
        try:
            self._directory.write(
                "agent.json",
                {
                    "wire": wire.PROTOCOL,
                    "run": self._directory.run,
                    "host": self._directory.host,
                    "pid": os.getpid(),
                    "start": me.start if me else 0,
                    "guard": os.getppid(),
                    "guard_start": guard.start if guard else 0,
                    "machine": facts.machine(),
                    "user": os.environ.get("USER") or str(os.getuid()),
                    "started": os.stat(self._directory.logs).st_mtime,
                    "tasks": list(self._tasks),
                    "over": self._over,
                },
            )
        except OSError as error:
            _note("agent.json: %s" % error)


def _note(text: str) -> None:
    """A line for agent.log."""
    try:
        print("tflaunch agent: %s" % text, file=sys.stderr)
    except OSError:
        pass  # the disk is full: the tasks must not pay for that
