"""A trace of a run that goes on: TensorFlow's servers take it, asked at the cluster's own ports, through the agents.

The agents lead to these ports from their own hosts, so it works wherever `tflaunch attach` does.  gRPC is spoken over
sockets in a directory that only this user may enter: a TensorFlow server does whatever who reaches it says.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tflaunch.inputs.patterns import Pattern, Wish
from tflaunch.protocol.errors import EXIT_CONNECT, RecordError, TflaunchError, UsageError
from tflaunch.protocol.job import CHIEF, WORKER, TaskId
from tflaunch.protocol.tcp_streams import TYPES
from tflaunch.protocol.wire import Message
from tflaunch.runs.fetch import Fetch
from tflaunch.runs.follow import Follower
from tflaunch.runs.profiler_messages import (
    METHOD,
    REPOSITORY,
    TROUBLE,
    is_empty,
    profile_request,
    trace_in,
    troubles_in,
)
from tflaunch.runs.record_files import sentence
from tflaunch.runs.run_states import RunState, TaskState
from tflaunch.runs.tunnel import BACKLOG, Tunnel
from tflaunch.sessions.group import Stopped, interruption
from tflaunch.sessions.session import Ended, Said
from tflaunch.sessions.watcher import Watcher
from tflaunch.text.extras import beside_tflaunch
from tflaunch.text.safe import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_TASKS = 8  # of which a trace is taken where none is named: more say little, and each trace is megabytes
ANSWER_BYTES = 1 << 30  # of one trace: those of seconds have some megabytes
ANSWER_S = 60.0  # for TensorFlow to send its trace, beyond the time that it takes
LOOK_S = 0.1
_PATH_BYTES = 80  # of the directory of a socket: its whole path has 107 at most


class ProfileError(TflaunchError):
    """No trace came of any task."""

    exit_code = EXIT_CONNECT


@dataclass
class Profiled:
    """The traces that are here, and why there is none of other tasks."""

    directory: Path  # the log directory, for TensorBoard
    files: dict[str, Path] = field(default_factory=dict)  # task -> its trace
    failed: dict[str, str] = field(default_factory=dict)  # task -> why there is none
    troubles: dict[str, list[str]] = field(default_factory=dict)  # task -> what its trace lacks


def tasks_to_profile(run: RunState, named: Sequence[str]) -> list[TaskState]:
    """The tasks of which a trace is wanted: those that are named, else the first ones that run.  Raises UsageError."""
    known = {task.task: task for task in run.tasks}
    if missing := [name for name in named if name not in known]:
        has = ", ".join([*known][:8]) or "none"
        raise UsageError(f"run {run.run_id} has no task {missing[0]}", f"it has {has}")
    running = {name: task for name, task in known.items() if task.state == "running"}
    if not running or not all(name in running for name in named):
        who = next((name for name in named if name not in running), f"no task of {run.run_id}")
        raise UsageError(
            f"{who} runs" if who not in known else f"{who} does not run",
            f"how they ended: tflaunch status {run.run_id}",
        )
    if named:
        return [running[name] for name in dict.fromkeys(named)]
    return sorted(running.values(), key=_first_ones)[:MOST_TASKS]


def _first_ones(task: TaskState) -> tuple[bool, bool, int, str]:
    """First the tasks with which a run begins, then each job's first, its second."""
    each = TaskId.parse(task.task)
    return each.job not in (CHIEF, "master"), each.job != WORKER and each.index > 0, each.index, each.job


class Profiler:
    """Takes traces of some tasks of a run, all at the same time."""

    def __init__(self, view: Follower, directory: Path, watcher: Watcher) -> None:
        """`directory`: where the traces go, in TensorBoard's layout.  Raises UsageError where there is no gRPC."""
        self._grpc = _grpc()
        self._view = view
        self._watcher = watcher
        self._session = time.strftime("%Y_%m_%d_%H_%M_%S")
        self._result = Profiled(directory)
        self._broken: set[str] = set()  # tasks of hosts whose connection broke before they had answered
        self._talked: set[str] = set()  # tasks of which some bytes have come

    def run(self, tasks: Sequence[TaskState], seconds: float) -> Profiled:
        """Take them.  Raises RecordError for a disk that refuses, FetchError, Stopped."""
        asked = {share.host: share.asked for share in self._view.run.shares}
        by_host: dict[str, list[TaskState]] = defaultdict(list)
        for task in tasks:
            if why := self._why_unasked(task, asked.get(task.host)):
                self._result.failed[task.task] = why
            else:
                by_host[asked[task.host]].append(task)
        answers = self._ask(by_host, seconds)
        ports = {task.task: task.port for task in tasks}
        written = []
        for name, call in answers.items():
            if (error := call.exception()) is not None:
                self._result.failed[name] = self._why(name, error, ports[name], seconds)
                continue
            trace = self._trace(name, call.result())
            if trace is not None:
                self._write(name, trace)
            elif name not in self._result.failed:
                written.append(name)
        if written:
            self._fetch(written, asked, tasks)
        return self._result

    def _why_unasked(self, task: TaskState, host: str | None) -> str:
        """Why that task cannot be asked; "" if it can."""
        if host not in self._view.hosts:
            return f"its host {task.host} cannot be asked"
        hello = self._view.hellos.get(host)
        if hello is None:
            return f"its host {task.host} has not answered: try again"
        if not hello.fields.get("ports"):  # such an agent would take it for a connection to its TensorBoard
            return f"an older tflaunch started its run, whose agent on {task.host} leads to no port of a task"
        return "" if task.port is not None else "it has no port in the cluster"

    def _ask(self, by_host: Mapping[str, Sequence[TaskState]], seconds: float) -> dict[str, Any]:
        """Task -> the call that is over by now.  Raises Stopped."""
        calls: dict[str, Any] = {}
        tunnels: dict[str, Tunnel] = {}
        sessions = self._view.sessions
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(_private_directory())
            for number, (host, tasks) in enumerate(by_host.items()):
                doors = {f"{place}/{number}.{task.port}": task for task in tasks}
                ways = {_listening(path): {"port": task.port} for path, task in doors.items()}
                tunnels[host] = stack.enter_context(contextlib.closing(Tunnel(ways)))
                tunnels[host].begin(sessions.by_host[host].send)
                for path, task in doors.items():
                    channel = self._channel(path)
                    stack.callback(channel.close)
                    call = channel.unary_unary(METHOD)
                    request = profile_request(seconds, self._session, _file_stem(task.task))
                    calls[task.task] = call.future(request, timeout=seconds + ANSWER_S)
            while not all(call.done() for call in calls.values()):
                match sessions.next(time.monotonic() + LOOK_S):
                    case Said(host, message) if message.type in TYPES and host in tunnels:
                        self._note(message, tunnels[host], by_host[host])
                        tunnels[host].take(message)
                    case Ended(host) if host in tunnels:
                        self._broken |= {task.task for task in by_host[host] if not calls[task.task].done()}
                        tunnels[host].pause()
                    case item if interrupted := interruption(item):
                        raise Stopped(interrupted)
        return calls

    def _note(self, message: Message, tunnel: Tunnel, tasks: Sequence[TaskState]) -> None:
        """Note of which task these bytes are."""
        if message.type == "bytes" and message.body:
            port = tunnel.way(message["stream"])["port"]
            self._talked |= {task.task for task in tasks if task.port == port}

    def _channel(self, path: str) -> Any:
        most = ("grpc.max_receive_message_length", ANSWER_BYTES)
        # How long it waits for a server that takes the connection and says nothing.
        patience = ("grpc.min_reconnect_backoff_ms", 10_000)
        return self._grpc.insecure_channel(f"unix:{quote(path)}", options=[most, patience])

    def _why(self, task: str, error: Any, port: int | None, seconds: float) -> str:
        """Why there is no trace, by gRPC's error."""
        codes = self._grpc.StatusCode
        code, details = error.code(), one_line(error.details() or "")[:TROUBLE]
        if task in self._broken:
            return "the connection to its host broke: try again"
        if code is codes.UNIMPLEMENTED:
            return f"what answers at its port {port} has no profiler: only TensorFlow's servers do"
        if code is codes.DEADLINE_EXCEEDED:
            return f"its TensorFlow has not answered within {seconds + ANSWER_S:g} s: try again"
        if "rofil" in details:
            return f"its TensorFlow says: {details}"
        if code is codes.UNAVAILABLE and task in self._talked:
            return "it closed the connection while the trace was taken: has it ended?"
        if code is codes.UNAVAILABLE:
            return (
                f"no TensorFlow server answers at its port {port}: the program has not started one (yet), or is of"
                " another framework"
            )
        return f"its TensorFlow says: {details or code}"

    def _trace(self, task: str, response: bytes) -> bytes | None:
        """The trace in that answer; None where it has none: TensorFlow has written it, or `failed` tells."""
        try:
            trace = trace_in(response)
            if trace is None and is_empty(response):
                self._result.failed[task] = "it did nothing in this time that TensorFlow would note"
            elif trace is not None and (troubles := troubles_in(trace)):
                self._result.troubles[task] = troubles
        except ValueError as error:
            self._result.failed[task] = f"what it sent is no trace: {error}"
            return None
        return trace

    def _path(self, task: str) -> Path:
        return self._result.directory / REPOSITORY / self._session / f"{_file_stem(task)}.xplane.pb"

    def _write(self, task: str, trace: bytes) -> None:
        path = self._path(task)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(trace)
        except OSError as error:
            raise RecordError(
                f"cannot write {path}: {sentence(error)}", "name another directory: --to"
            ) from None
        self._result.files[task] = path

    def _fetch(self, tasks: Sequence[str], asked: Mapping[str, str], states: Sequence[TaskState]) -> None:
        """Bring the traces that TensorFlow, before 2.21, has written into the tasks' working directories."""
        patterns = tuple(
            Pattern.parse(f"/{REPOSITORY}/{self._session}/{_file_stem(task)}.xplane.pb") for task in tasks
        )
        hosts = {asked[state.host] for state in states if state.task in tasks}
        wish = Wish(patterns, to=self._result.directory)
        view = self._view
        Fetch(view.run.run_id, view.sessions, sorted(hosts), view.dial, self._watcher, wish=wish).run()
        for task in tasks:
            if self._path(task).is_file():
                self._result.files[task] = self._path(task)
            else:
                self._result.failed[task] = (
                    f"its TensorFlow has written the trace into {REPOSITORY} of the directory that the program is in,"
                    " which is not the task's working directory any more"
                )


def _file_stem(task: str) -> str:
    return task.replace("/", "-")


def _grpc() -> Any:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would tell of each port that does not answer
    try:
        import grpc
    except ImportError:
        raise UsageError(
            "profile: tflaunch's Python has no grpcio, by which TensorFlow is asked",
            beside_tflaunch("grpcio", "profile"),
        ) from None
    return grpc


@contextlib.contextmanager
def _private_directory() -> Iterator[str]:
    """A directory for sockets, whose paths must be short."""
    usual = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(dir=usual if len(os.fsencode(usual)) < _PATH_BYTES else "/tmp") as path:  # noqa: S108
        yield path


def _listening(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(BACKLOG)
    return listener
