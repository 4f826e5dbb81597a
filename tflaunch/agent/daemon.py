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
import traceback
import zlib

from tflaunch import wire
from tflaunch.agent import facts, processes
from tflaunch.agent.guard import leftovers
from tflaunch.agent.leases import Leases
from tflaunch.agent.ports import HeldPorts
from tflaunch.agent.rundir import CodeStore, HostError, RunDirectory, explain
from tflaunch.agent.tasks import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

FIRST_LEASE_S = 60.0
BEAT_S = 3.0
LOG_POLL_S = 0.05
LOG_PIECE = 64 * 1024
OUT_LIMIT = 256 * 1024  # log bytes are read only while less than this waits to be sent
FAREWELL_S = 2.0  # how long the last messages may take to leave


def _allow_many_descriptors() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # what there is mostly suffices


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
    return "correct `setup:` in the hostfile" if "setup failed" in reason else ""


class Relay:
    """One attached relay: its bytes in both directions and what it follows."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.decoder = wire.Decoder()
        self.out = bytearray()
        self.offsets = None  # type: Optional[Dict[str, int]]
        self.credit = 0
        self.behind = False  # there is more log than was read
        self.sent_at = time.monotonic()

    def send(self, type: str, body: bytes = b"", **fields: "Any") -> None:
        self.out += wire.encode(type, body, **fields)

    def flush(self) -> None:
        """Send what the socket takes now; raises OSError when the relay is gone."""
        while self.out:
            try:
                sent = self.connection.send(self.out[: 1 << 20])
            except BlockingIOError:
                return
            del self.out[:sent]
            self.sent_at = time.monotonic()


class Daemon:
    """Holds the ports, the tasks and the run directory of one run on one host."""

    def __init__(self, directory: RunDirectory, first: socket.socket) -> None:
        self._directory = directory
        self._ports = HeldPorts()
        self._leases = Leases(directory.run)
        self._take_cards = False
        self._tasks = collections.OrderedDict()  # type: Dict[str, Task]
        self._relays = []  # type: List[Relay]
        self._selector = selectors.DefaultSelector()
        self._lease_end = time.monotonic() + FIRST_LEASE_S
        self._staging = False
        self._sweep = None  # type: Optional[processes.Sweep]
        self._ending = False
        self._end_by = 0.0
        self._over = False
        self._leave_at = None  # type: Optional[float]
        self._result = {}  # type: Dict[str, Any]
        self._term = False
        self._code = None  # type: Optional[CodeStore]
        self._turn = 0

        self._listener = directory.listen()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
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
        processes.become_subreaper()
        _allow_many_descriptors()  # each held port takes two
        self._record()
        self._attach(first)

    # -- the loop

    def run(self) -> None:
        """Until the run is over and the last word is said."""
        while True:
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            self._reap()
            self._tick(time.monotonic())
            self._pump_logs()
            for relay in list(self._relays):
                self._flush(relay)
            if self._leave_at is not None and (
                time.monotonic() >= self._leave_at or not any(relay.out for relay in self._relays)
            ):
                break
        if self._code is not None:
            self._code.discard()
        if not any(task.released_at is not None for task in self._tasks.values()):
            self._directory.remove()  # a dry run, or a launch that failed: nothing in it is worth keeping
        self._directory.remove_socket()

    def _timeout(self) -> float:
        if self._sweep is not None:
            return 0.02
        if any(relay.behind and relay.credit > 0 and not relay.out for relay in self._relays):
            return 0.0
        if any(relay.offsets is not None and relay.credit > 0 for relay in self._relays):
            return LOG_POLL_S
        return 0.5

    def _tick(self, now: float) -> None:
        if self._term and not self._ending:
            self._expire("the agent was told to end (SIGTERM)")
        if now >= self._lease_end and not self._ending:
            self._expire("no launcher has renewed the lease")
        for task in self._tasks.values():
            task.enforce(now)
        if self._ending and not self._over:
            self._end_further(now)
        if self._over and self._leave_at is None and (not self._relays or now >= self._lease_end):
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

    def _attach(self, connection: socket.socket) -> None:
        relay = Relay(connection)
        self._relays.append(relay)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._readable(relay))
        relay.send(
            "hello",
            run=self._directory.run,
            host=self._directory.host,
            pid=os.getpid(),
            directory=self._directory.path,
        )

    def _readable(self, relay: Relay) -> None:
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

    def _detach(self, relay: Relay) -> None:
        if relay in self._relays:
            self._relays.remove(relay)
            self._selector.unregister(relay.connection)
            relay.connection.close()
            released = any(task.released_at is not None for task in self._tasks.values())
            if not self._relays and not released and not self._ending:
                self._begin_end(0.0)  # nothing was started: nothing to wait for

    def _flush(self, relay: Relay) -> None:
        try:
            relay.flush()
        except OSError:
            self._detach(relay)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if relay.out else 0)
        if self._selector.get_key(relay.connection).events != events:
            self._selector.modify(relay.connection, events, self._selector.get_key(relay.connection).data)

    def _tell(self, type: str, body: bytes = b"", **fields: "Any") -> None:
        for relay in self._relays:
            relay.send(type, body, **fields)

    # -- requests

    def _handle(self, relay: Relay, message: wire.Message) -> None:
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
            _note(traceback.format_exc())
            relay.send(
                "failed", reason="a defect of tflaunch's agent: %r" % error, hint="see agent.log there"
            )

    def _on_probe(self, relay: Relay, message: wire.Message) -> None:
        wanted = message["ports"]
        seed = zlib.crc32(self._directory.run.encode())
        self._ports.hold(message["count"], tuple(wanted) if wanted else None, seed)
        self._take_cards = message["lease"]
        self._send_facts(relay)

    def _on_let_go(self, relay: Relay, message: wire.Message) -> None:
        self._leases.keep([])

    def _on_module(self, relay: Relay, message: wire.Message) -> None:
        facts.take_module(message["name"], message.body)
        self._send_facts(relay)

    def _send_facts(self, relay: Relay) -> None:
        taken_by = self._leases if self._take_cards else None
        relay.send("facts", **facts.collect(self._ports.held, self._directory.path, taken_by=taken_by))

    def _on_code(self, relay: Relay, message: wire.Message) -> None:
        self._code = CodeStore(self._directory.parent, message["digest"])
        relay.send("code", digest=message["digest"], have=self._code.here)

    def _on_blob(self, relay: Relay, message: wire.Message) -> None:
        if self._code is None:
            raise HostError("code came that nobody announced")
        self._code.add(message.body, message["last"])
        if message["last"]:
            relay.send("code", digest="", have=True)

    def _on_stage(self, relay: Relay, message: wire.Message) -> None:
        if self._tasks or self._ending:
            raise HostError("this run has been staged on this host before")
        self._ports.keep(message["ports"])
        self._leases.keep(message["gpus"])
        self._directory.write("plan.json", message.fields)
        if message["code"] is not None:
            CodeStore(self._directory.parent, message["code"]).unpack(self._directory.work)
        for request in message["tasks"]:
            task = Task(self._directory, request)
            task.stage()
            self._tasks[task.id] = task
            self._selector.register(
                task.ready_pipe, selectors.EVENT_READ, lambda task=task: self._heard(task)
            )
        self._staging = True
        self._record()
        self._staged()

    def _heard(self, task: Task) -> None:
        pipe = task.ready_pipe
        if task.hear() is not None:
            self._selector.unregister(pipe)
            self._staged()

    def _staged(self) -> None:
        if self._staging and all(task.ready for task in self._tasks.values()):
            self._staging = False
            self._tell("staged")

    def _on_release(self, relay: Relay, message: wire.Message) -> None:
        for task in self._tasks.values():
            if task.released_at is None and not self._ending:
                task.release()
                self._tell("started", task=task.id, pid=task.process.pid if task.process else 0)
                if not task.alive:
                    self._tell_exit(task)

    def _on_follow(self, relay: Relay, message: wire.Message) -> None:
        relay.offsets = {str(task): int(offset) for task, offset in message["offsets"].items()}
        relay.credit = message["window"]

    def _on_credit(self, relay: Relay, message: wire.Message) -> None:
        relay.credit += message["bytes"]

    def _on_renew(self, relay: Relay, message: wire.Message) -> None:
        self._lease_end = time.monotonic() + message["lease_s"]

    def _on_stop(self, relay: Relay, message: wire.Message) -> None:
        wanted = message["tasks"]
        for task in self._tasks.values():
            if wanted is None or task.id in wanted:
                task.stop(message["grace_s"])

    def _on_end(self, relay: Relay, message: wire.Message) -> None:
        if self._over:
            relay.send("swept", **self._result)
            return
        if not self._ending:
            for other in self._relays:
                if other is not relay:
                    other.send("expired", reason="tflaunch stop ends the run", asked=True)
        self._begin_end(message["grace_s"])

    def _on_bye(self, relay: Relay, message: wire.Message) -> None:
        if self._over:
            self._leave_at = time.monotonic() + FAREWELL_S

    # -- tasks and their end

    def _reap(self) -> None:
        by_pid = {task.process.pid: task for task in self._tasks.values() if task.process and task.alive}
        for pid, status in processes.reap():
            task = by_pid.get(pid)
            if task is None:
                continue  # a process that some task left behind
            task.ended(status)
            if task.released_at is not None:
                self._tell_exit(task)
            elif self._staging:
                self._staging = False
                # Without the task's name: it is the same for all tasks here, and hosts with one cause fold.
                lines = task.tail().decode("utf-8", "replace").strip().splitlines()[-10:]
                how = "code %d" % task.code if task.code is not None else "signal %d" % (task.signal or 0)
                reason = "\n".join(lines) or "the shell of a task ended with %s" % how
                self._tell("failed", reason=reason.replace("tflaunch: ", ""), hint=_remedy(reason))

    def _tell_exit(self, task: Task) -> None:
        result = {
            "task": task.id,
            "code": task.code,
            "signal": task.signal,
            "signal_name": _signal_name(task.signal),
            "seconds": round(task.seconds, 3),
            "stopped": task.stopped,
        }
        try:
            self._directory.append("exits.jsonl", dict(result, time=time.time()))
        except OSError:
            pass  # a full disk must not hide how the task ended
        self._tell("exit", task.tail(), **result)

    def _terminated(self, *_: object) -> None:
        self._term = True

    def _expire(self, reason: str) -> None:
        self._tell("expired", reason=reason, asked=False)
        self._begin_end(5.0)

    def _begin_end(self, grace_s: float) -> None:
        self._ending = True
        self._staging = False
        end_by = time.monotonic() + grace_s + 3.0
        self._end_by = end_by if not self._end_by else min(self._end_by, end_by)
        for task in self._tasks.values():
            task.stop(grace_s if task.released_at is not None else 0.0)

    def _end_further(self, now: float) -> None:
        if now < self._end_by and any(task.alive or task.lingers(now) for task in self._tasks.values()):
            return
        if self._sweep is None:
            me = os.getpid()
            self._sweep = processes.Sweep(lambda: leftovers(self._directory, me, [me, os.getppid()]))
        if not self._sweep.step():
            return
        self._reap()
        self._over = True
        self._result = {
            "killed": self._sweep.killed,
            "survivors": [processes.describe(process) for process in self._sweep.survivors],
            "logs": {task.id: task.log_size() for task in self._tasks.values()},
        }
        self._sweep = None
        self._ports.keep([])
        self._leases.keep([])
        self._record()
        self._tell("swept", **self._result)
        if not self._tasks or all(relay.offsets is None for relay in self._relays):
            self._leave_at = now + FAREWELL_S  # nobody reads the logs to their end

    # -- logs

    def _pump_logs(self) -> None:
        tasks = list(self._tasks.values())
        if not tasks:
            return
        self._turn += 1  # no task is always first
        for relay in self._relays:
            if relay.offsets is None:
                continue
            relay.behind = False
            for number in range(len(tasks)):
                if relay.credit <= 0 or len(relay.out) >= OUT_LIMIT:
                    relay.behind = True
                    break
                task = tasks[(number + self._turn) % len(tasks)]
                offset = relay.offsets.get(task.id, 0)
                data = task.read_log(offset, min(LOG_PIECE, relay.credit))
                if data:
                    relay.send("log", data, task=task.id, offset=offset)
                    relay.offsets[task.id] = offset + len(data)
                    relay.credit -= len(data)
                    relay.behind |= len(data) == LOG_PIECE

    def _record(self) -> None:
        """agent.json: who and where, for whoever comes later."""
        guard = processes.read(os.getppid())
        me = processes.read(os.getpid())
        try:
            self._directory.write(
                "agent.json",
                {
                    "run": self._directory.run,
                    "host": self._directory.host,
                    "pid": os.getpid(),
                    "start": me.start if me else 0,
                    "guard": os.getppid(),
                    "guard_start": guard.start if guard else 0,
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
