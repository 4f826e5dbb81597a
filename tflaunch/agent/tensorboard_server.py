"""TensorBoard beside the tasks of a run: it listens on this host's loopback; a browser reaches it through the wire.

It runs as the run's chief or first worker does, with the same Python, setup and working directory, but sees no GPU.
If it fails, the run goes on.
"""

import os
import re
import select
import time

from tflaunch.agent.host import foreign, processes
from tflaunch.agent.host.rundir import HostError
from tflaunch.agent.tasks.logs import TAIL_BYTES
from tflaunch.agent.tasks.task import Task
from tflaunch.agent.viewer import Viewer
from tflaunch.protocol import messages, wire
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE, Selector
from tflaunch.protocol.tcp_streams import TYPES, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from tflaunch.agent.host.rundir import RunDirectory

NAME = "tensorboard/0"
LINES = 12  # of its log that the user sees when it fails
GRACE_S = 1.0
BEAT_S = 2.5
SILENCE_S = 30.0  # a launcher that has sent nothing for so long is gone
_SAYS = re.compile(rb" at http://[^ ]*?:(\d+)/")


class TensorBoardServer:
    """One TensorBoard, started when the first viewer wants it, and the connections of all viewers to it."""

    def __init__(self, directory: "RunDirectory", selector: Selector, own: bool = True) -> None:
        """If `own` is False, it belongs to the visit that started it, not to the run."""
        self._directory = directory
        self._selector = selector
        self._own = own
        self._task = None  # type: Any
        self._state = {"state": "starting", "why": "", "lines": []}  # type: Dict[str, Any]  # message `tensorboard`
        self._port = 0
        self._log_start = 0  # the offset in its log where it began
        self._streams = {}  # type: Dict[Viewer, Streams]

    @property
    def alive(self) -> bool:
        """Whether its process lives."""
        return self._task is not None and self._task.alive

    def want(self, viewer: Viewer, logdir: str) -> None:
        """Start TensorBoard if need be; from now on, messages `tensorboard` report its state to this viewer."""
        if viewer not in self._streams:
            self._streams[viewer] = Streams(self._selector, viewer.send)
        if self._task is None:
            try:
                self._start(logdir)
            except HostError as error:
                self._fail(error.reason)
                return
        if self._state["state"] != "starting":
            viewer.send("tensorboard", **self._state)

    def _start(self, logdir: str) -> None:
        tasks = self._directory.read("plan.json").get("tasks")
        if not tasks:
            raise HostError("no task of the run is on this host")
        like = min(tasks, key=lambda each: (not each["id"].startswith("chief"), each["id"].startswith("ps")))
        env = {
            name: value for name, value in like["env"].items() if name not in ("TF_CONFIG", *processes.MARKS)
        }
        env["CUDA_VISIBLE_DEVICES"] = ""
        words = ["-m", "tensorboard.main", "--host", "127.0.0.1", "--port", "0"]
        request = {
            "id": NAME,
            "argv": [like["argv"][0], *words, "--logdir", os.path.expanduser(logdir)],
            "env": env,
            "cwd": like["cwd"] or self._directory.outputs,
            "setup": [] if like.get("container") else like["setup"],  # a container's setup is for its image
            "decided": ["CUDA_VISIBLE_DEVICES"],
            "stacks": False,
        }
        # A number for each visit: several may look at one run at a time.
        attempt = 0 if self._own else os.getpid()
        self._task = Task(self._directory, request, attempt, marked=self._own)
        self._log_start = self._task.logs.size(attempt)  # an earlier agent of this run may have written there
        self._task.stage(foreign.LIMIT_S)
        assert self._task.gate is not None  # noqa: S101
        pipe = self._task.gate.pipe
        self._selector.register(pipe, EVENT_READ, lambda: self._read_gate(pipe))

    def _read_gate(self, pipe: int) -> None:
        ready = self._task.read_gate()
        if ready is not None:
            self._selector.unregister(pipe)
        if ready:
            self._task.release()

    def take(self, viewer: Viewer, message: wire.Message) -> None:
        """Handle a viewer's message about its connections, see `tflaunch.protocol.tcp_streams`."""
        streams = self._streams.get(viewer)
        if streams is None:
            return
        if message.type == "connect":
            streams.connect(message["stream"], self._port)
        else:
            streams.take(message)

    def leave(self, viewer: Viewer) -> None:
        """Close the connections of a viewer that has gone."""
        streams = self._streams.pop(viewer, None)
        if streams is not None:
            streams.close()

    def tick(self, now: float) -> None:
        """Check whether TensorBoard listens; kill it when its grace is over."""
        if self._task is None:
            return
        self._task.enforce(now)
        if self._state["state"] == "starting":
            logs = self._task.logs
            found = _SAYS.search(logs.read(logs.attempt, self._log_start, TAIL_BYTES))
            if found:
                self._port = int(found.group(1))
                self._change("up")

    def reaped(self, pid: int, status: int) -> bool:
        """Whether the child process that has ended was TensorBoard."""
        if not self.alive or self._task.process.pid != pid:
            return False
        self._task.ended(status)
        self._port = 0  # another program may listen there from now on
        if not self._task.stopped:
            code, number = self._task.code, self._task.signal
            self._fail("it ended with %s" % ("code %d" % code if number is None else "signal %d" % number))
        return True

    def _fail(self, why: str) -> None:
        lines = []  # type: List[str]
        if self._task is not None:
            text = self._task.logs.tail(self._task.logs.attempt).decode("utf-8", "replace")
            lines = text.splitlines()[-LINES:]
        self._change("failed", why, lines)

    def _change(self, state: str, why: str = "", lines: "List[str]" = []) -> None:  # noqa: B006 - never changed
        self._state = {"state": state, "why": why, "lines": lines}
        for viewer in self._streams:
            viewer.send("tensorboard", **self._state)

    def stop(self) -> None:
        """End TensorBoard with the run; see `alive`."""
        if self._task is not None:
            self._task.stop(GRACE_S)
            self._task.unwanted = False

    def end(self) -> None:
        """End TensorBoard with the visit: when this returns, it is dead and its log is removed."""
        if self._task is None:
            return
        self.stop()
        while self.alive:
            self._task.enforce(time.monotonic())
            for pid, status, _ in processes.reap():
                self.reaped(pid, status)
            time.sleep(0.02)
        try:
            os.unlink(self._directory.log_path(NAME, self._task.logs.attempt))
        except OSError:
            pass  # a `tflaunch clean` has already removed it


class _Pipe:
    """The channel as a Viewer's connection."""

    def __init__(self, channel_out: int) -> None:
        self._out = channel_out

    def send(self, data: "bytes | bytearray") -> int:
        return os.write(self._out, data)


def serve(
    directory: "RunDirectory", channel_in: int, channel_out: int, decoder: wire.Decoder, logdir: str
) -> None:
    """Serve TensorBoard for a visit to a run, alive or not, until the channel ends; then nothing of it remains.

    Like an agent, the process that serves it has a guard: this process, which only waits and then purges.
    """
    processes.become_subreaper()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _serve(directory, channel_in, channel_out, decoder, logdir)
        except Exception:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(0)
    while True:
        ended, _ = os.waitpid(-1, 0)
        if ended == pid:
            break
    processes.Purge(lambda: processes.descendants(guard, processes.every())).run()


def _serve(
    directory: "RunDirectory",
    channel_in: int,
    channel_out: int,
    decoder: wire.Decoder,
    logdir: str,
) -> None:
    processes.become_subreaper()
    guard = os.getppid()
    os.set_blocking(channel_out, False)
    selector = Selector()
    selector.register(channel_in, EVENT_READ, lambda: None)
    viewer = Viewer(_Pipe(channel_out))  # type: ignore[arg-type]
    viewer.send("hello", run=directory.run, host=directory.host, pid=0, directory=directory.path, alive=False)
    tensorboard = TensorBoardServer(directory, selector, own=False)
    heard = time.monotonic()
    try:
        tensorboard.want(viewer, logdir)
        while os.getppid() == guard and time.monotonic() - heard < SILENCE_S:
            for key, _ in selector.select(0.2):
                key.data()
            if select.select([channel_in], [], [], 0)[0]:
                data = os.read(channel_in, 65536)
                if not data:
                    return
                heard = time.monotonic()
                for message in decoder.feed(data):
                    messages.check(message, messages.TO_AGENT)
                    if message.type == "bye":
                        return
                    if message.type in TYPES:
                        tensorboard.take(viewer, message)
            for each, status, _ in processes.reap():
                tensorboard.reaped(each, status)
            tensorboard.tick(time.monotonic())
            if time.monotonic() - viewer.sent_at >= BEAT_S and not viewer.out:
                viewer.send("beat")
            try:
                viewer.flush()
            except OSError:
                return
            _watch(selector, channel_out, bool(viewer.out))
    finally:
        tensorboard.end()


def _watch(selector: Selector, channel_out: int, wanted: bool) -> None:
    registered = channel_out in selector.get_map()
    if wanted and not registered:
        selector.register(channel_out, EVENT_WRITE, lambda: None)
    elif registered and not wanted:
        selector.unregister(channel_out)
