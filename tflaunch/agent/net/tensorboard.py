"""TensorBoard beside the tasks of a run: started on this host's loopback, reached through the wire.

It is a process like a task, of the run's chief or first worker in python, setup and working directory, but sees no
GPU; what comes of it is nothing to the run.
"""

import os
import re
import select
import time

from tflaunch.agent import processes
from tflaunch.agent.files.rundir import HostError
from tflaunch.agent.tasks.logs import TAIL_BYTES
from tflaunch.agent.tasks.task import Task
from tflaunch.agent.viewer import Viewer
from tflaunch.protocol import messages, wire
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE, Selector
from tflaunch.protocol.tcp_streams import TYPES, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from tflaunch.agent.files.rundir import RunDirectory

NAME = "tensorboard/0"
LINES = 12
GRACE_S = 1.0
BEAT_S = 2.5
SILENCE_S = 30.0  # a launcher that is not heard of for so long is gone
_SAYS = re.compile(rb" at http://[^ ]*?:(\d+)/")


class Board:
    """The one of this agent; started when the first viewer wants it."""

    def __init__(self, directory: "RunDirectory", selector: Selector, own: bool = True) -> None:
        """Without `own` it does not belong to the run, but to whoever looks at it."""
        self._directory = directory
        self._selector = selector
        self._own = own
        self._task = None  # type: Any
        self._told = {"state": "starting", "why": "", "lines": []}  # type: Dict[str, Any]
        self._port = 0
        self._said = 0  # where in its log
        self._streams = {}  # type: Dict[Viewer, Streams]

    @property
    def alive(self) -> bool:
        """Whether its process is."""
        return self._task is not None and self._task.alive

    def want(self, viewer: Viewer, logdir: str) -> None:
        """This viewer wants it, and hears what becomes of it."""
        if viewer not in self._streams:
            self._streams[viewer] = Streams(self._selector, viewer.send)
        if self._task is None:
            try:
                self._start(logdir)
            except HostError as error:
                self._fail(error.reason)
                return
        if self._told["state"] != "starting":
            viewer.send("board", **self._told)

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
            "setup": [] if like.get("container") else like["setup"],  # there it means what is in the image
            "decided": ["CUDA_VISIBLE_DEVICES"],
        }
        # One for each visit: several may look at one run.
        attempt = 0 if self._own else os.getpid()
        self._task = Task(self._directory, request, attempt, marked=self._own)
        self._said = self._task.logs.size(attempt)  # of another agent of the run on this host
        self._task.stage()
        self._selector.register(self._task.ready_pipe, EVENT_READ, self._hear)

    def _hear(self) -> None:
        pipe = self._task.ready_pipe
        ready = self._task.hear()
        if ready is not None:
            self._selector.unregister(pipe)
        if ready:
            self._task.release()

    def take(self, viewer: Viewer, message: wire.Message) -> None:
        """What a viewer says of its connections."""
        streams = self._streams.get(viewer)
        if streams is None:
            return
        if message.type == "connect":
            streams.connect(message["stream"], self._port)
        else:
            streams.take(message)

    def leave(self, viewer: Viewer) -> None:
        """That viewer is gone."""
        streams = self._streams.pop(viewer, None)
        if streams is not None:
            streams.close()

    def tick(self, now: float) -> None:
        """Look whether it listens, and end it in time."""
        if self._task is None:
            return
        self._task.enforce(now)
        if self._told["state"] == "starting":
            logs = self._task.logs
            found = _SAYS.search(logs.read(logs.attempt, self._said, TAIL_BYTES))
            if found:
                self._port = int(found.group(1))
                self._tell("up")

    def reaped(self, pid: int, status: int) -> bool:
        """Whether it was this process that has ended."""
        if not self.alive or self._task.process.pid != pid:
            return False
        self._task.ended(status)
        self._port = 0  # somebody else may listen there from now on
        if not self._task.stopped:
            code, number = self._task.code, self._task.signal
            self._fail("it ended with %s" % ("code %d" % code if number is None else "signal %d" % number))
        return True

    def _fail(self, why: str) -> None:
        lines = []  # type: List[str]
        if self._task is not None:
            text = self._task.logs.tail(self._task.logs.attempt).decode("utf-8", "replace")
            lines = text.splitlines()[-LINES:]
        self._tell("failed", why, lines)

    def _tell(self, state: str, why: str = "", lines: "List[str]" = []) -> None:  # noqa: B006 - never changed
        self._told = {"state": state, "why": why, "lines": lines}
        for viewer in self._streams:
            viewer.send("board", **self._told)

    def stop(self) -> None:
        """Its end, with the run's."""
        if self._task is not None:
            self._task.stop(GRACE_S)
            self._task.unwanted = False

    def end(self) -> None:
        """Its end, with the visit's: when this returns it is dead, and its log is gone."""
        if self._task is None:
            return
        self.stop()
        while self.alive:
            self._task.enforce(time.monotonic())
            for pid, status in processes.reap():
                self.reaped(pid, status)
            time.sleep(0.02)
        try:
            os.unlink(self._directory.log_path(NAME, self._task.logs.attempt))
        except OSError:
            pass  # tflaunch clean was quicker


class _Pipe:
    """The channel as a Viewer's connection."""

    def __init__(self, channel_out: int) -> None:
        self._out = channel_out

    def send(self, data: "bytes | bytearray") -> int:
        return os.write(self._out, data)


def serve(
    directory: "RunDirectory", channel_in: int, channel_out: int, decoder: wire.Decoder, logdir: str
) -> None:
    """Show a run, alive or not, to who is at the channel, until that ends; then nothing of it is left.

    The process that does it has a guard, as an agent has: this one, which only waits, and sweeps.
    """
    processes.become_subreaper()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _serve(directory, channel_in, channel_out, decoder, logdir)
        finally:
            os._exit(0)
    while True:
        ended, _ = os.waitpid(-1, 0)
        if ended == pid:
            break
    processes.Sweep(lambda: processes.descendants(guard, processes.every())).run()


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
    board = Board(directory, selector, own=False)
    heard = time.monotonic()
    try:
        board.want(viewer, logdir)
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
                        board.take(viewer, message)
            for each, status in processes.reap():
                board.reaped(each, status)
            board.tick(time.monotonic())
            if time.monotonic() - viewer.sent_at >= BEAT_S and not viewer.out:
                viewer.send("beat")
            try:
                viewer.flush()
            except OSError:
                return
            _watch(selector, channel_out, bool(viewer.out))
    finally:
        board.end()


def _watch(selector: Selector, channel_out: int, wanted: bool) -> None:
    registered = channel_out in selector.get_map()
    if wanted and not registered:
        selector.register(channel_out, EVENT_WRITE, lambda: None)
    elif registered and not wanted:
        selector.unregister(channel_out)
