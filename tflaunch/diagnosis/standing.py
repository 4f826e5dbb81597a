"""Where a task stands, and what that means: from the frames and the wait channels of its threads (`inspected`).

Of a stack the user wants to read the frame of the user's own code; the frames below it, of TensorFlow and of Python's
library, tell what the task does there.  Calls into C leave no frame: what such a thread waits in shows only in the
kernel's wait channel.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.frames import own_frame, owned, place
from tflaunch.diagnosis.rule import WRAPPERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    Frames = Sequence[Sequence[Any]]  # file, line, function; the innermost first

# Library frames that say what a thread does, and the kind of that; of all lines that match a stack the first counts.
# (end of the file's path or a directory in it, functions or none, kind)
SIGNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("training/session_manager.py", ("wait_for_session",), "chief"),
    ("training/checkpoint_utils.py", ("wait_for_new_checkpoint", "checkpoints_iterator"), "checkpoint"),
    ("checkpoint/checkpoint_utils.py", (), "checkpoint"),
    ("training/server_lib.py", ("join",), "serves"),
    ("service/server_lib.py", ("join",), "serves"),  # of tf.data
    ("distribute/coordinator/", (), "coordinator"),
    ("ops/gen_dataset_ops.py", ("reduce_dataset",), "op"),  # it may train, or evaluate
    ("ops/gen_dataset_ops.py", (), "data"),
    ("ops/iterator_ops.py", (), "data"),
    ("data/ops/multi_device_iterator_ops.py", (), "data"),
    ("client/session.py", (), "session"),
    ("eager/execute.py", (), "op"),
    ("ops/gen_", (), "op"),
    ("eager/context.py", ("barrier", "wait_at_barrier", "get_config_key_value", "sync_executors"), "barrier"),
    ("eager/context.py", ("ensure_initialized", "connect_to_cluster", "configure_collective_ops"), "meet"),
    ("torch/distributed/elastic/", (), "children"),
    ("torch/distributed/rendezvous.py", (), "meet"),
    ("torch/distributed/distributed_c10d.py", ("init_process_group",), "meet"),
    ("torch/distributed/", (), "collective"),
    ("torch/autograd/", (), "collective"),  # DistributedDataParallel reduces the gradients there
    ("jax/_src/distributed.py", (), "meet"),
    ("jax/_src/array.py", (), "collective"),
    ("jax/_src/interpreters/pxla.py", (), "collective"),
    ("jax/_src/api.py", ("block_until_ready", "effects_barrier"), "collective"),
    ("horovod/", (), "collective"),
    ("training/coordinator.py", ("join", "wait_for_stop"), "join"),
    ("multiprocessing/", (), "children"),
    ("concurrent/futures/process.py", (), "children"),
    ("subprocess.py", (), "child"),
    ("concurrent/futures/", (), "future"),
    ("queue.py", (), "queue"),
    ("threading.py", ("join", "_wait_for_tstate_lock"), "join"),
    ("threading.py", ("wait", "wait_for", "acquire"), "event"),
    ("socket.py", ("getaddrinfo", "gethostbyname", "getfqdn"), "dns"),
    ("urllib3/util/connection.py", ("create_connection",), "dial"),
    ("socket.py", ("create_connection",), "dial"),
    ("socket.py", ("accept",), "accept"),
    ("socket.py", (), "net"),
    ("ssl.py", (), "net"),
    ("http/client.py", (), "net"),
    ("selectors.py", (), "poll"),
    ("asyncio/", (), "poll"),
    ("importlib._bootstrap", (), "import"),
)
OF_TENSORFLOW = (
    "/tensorflow/",
    "/keras/",
    "/tf_keras/",
    "/tensorflow_estimator/",
    "/tensorflow_probability/",
)
INSTALLED = ("site-packages/", "dist-packages/")

# What the kernel's function that a thread waits in means: the beginning of its name.
CHANNELS: tuple[tuple[str, str], ...] = (
    ("hrtimer_nanosleep", "sleep"),
    ("do_nanosleep", "sleep"),
    ("common_nsleep", "sleep"),
    ("locks_lock_inode", "file_lock"),
    ("flock_lock_inode", "file_lock"),
    ("posix_lock", "file_lock"),
    ("fcntl_setlk", "file_lock"),
    ("nlmclnt", "file_lock"),
    ("wait_for_partner", "fifo"),
    ("fifo_open", "fifo"),
    ("anon_pipe_read", "pipe"),
    ("pipe_read", "pipe"),
    ("pipe_wait", "pipe"),
    ("anon_pipe_write", "pipe_full"),
    ("pipe_write", "pipe_full"),
    ("inet_csk_accept", "accept"),
    ("inet_csk_wait", "accept"),
    ("inet_wait_for_connect", "dial"),
    ("inet_stream_connect", "dial"),
    ("__inet_stream_connect", "dial"),
    ("unix_wait_for_peer", "dial"),
    ("wait_woken", "net"),
    ("sk_wait_data", "net"),
    ("tcp_recvmsg", "net"),
    ("__skb_wait_for_more", "net"),
    ("skb_wait_for_more", "net"),
    ("unix_stream", "net"),
    ("poll_schedule", "poll"),
    ("do_sys_poll", "poll"),
    ("do_poll", "poll"),
    ("do_select", "poll"),
    ("ep_poll", "poll"),
    ("do_epoll", "poll"),
    ("do_wait", "child"),
    ("kernel_wait", "child"),
    ("n_tty_read", "input"),
    ("wait_for_tty", "input"),
    ("do_sigtimedwait", "signal"),
    ("sigsuspend", "signal"),
    ("do_pause", "signal"),
    ("__do_sys_pause", "signal"),
    ("rpc_wait", "disk"),
    ("nfs", "disk"),
    ("folio_wait", "disk"),
    ("io_schedule", "disk"),
    ("jbd2", "disk"),
    ("__iomap_dio", "disk"),
    ("request_wait", "disk"),
    ("fuse", "disk"),
    ("futex", "lock"),
    ("do_semtimedop", "lock"),
)

WORDS = {
    "sleep": "sleeps",
    "file_lock": "waits for a file lock that another process holds",
    "fifo": "opens a FIFO that nobody has opened at its other end",
    "pipe": "reads from a pipe or its stdin, which brings nothing",
    "pipe_full": "writes into a pipe that nobody reads",
    "input": "waits for input at a terminal",
    "accept": "waits for somebody to connect to it",
    "dial": "connects to a server that does not answer",
    "dns": "looks up a host name (DNS)",
    "net": "waits for data from a connection",
    "poll": "waits for a connection or a file (poll)",
    "signal": "waits for a signal",
    "disk": "waits for a disk or a file server",
    "lock": "waits for a lock",
    "queue": "waits for a queue",
    "event": "waits for another thread (a condition or an event)",
    "join": "waits for a thread to end",
    "future": "waits for a result of another thread (a future)",
    "child": "waits for a process that it has started",
    "children": "waits for a process of multiprocessing",
    "import": "imports a module",
    "data": "waits for its input pipeline (tf.data)",
    "op": "waits in an operation of TensorFlow",
    "collective": "waits in a collective",
    "wait": "waits",
    "session": "waits in session.run",
    "barrier": "waits at a barrier of TensorFlow",
    "meet": "waits for its peers to connect",
    "chief": "waits for the chief to initialise the variables",
    "coordinator": "waits for what it has scheduled on the workers",
    "serves": "serves",
    "checkpoint": "waits for a new checkpoint",
    "busy": "computes",
    "native": "runs in native code, {percent:.0f} % of a core, and keeps Python's lock (the GIL)",
    "": "does nothing",
}
# It waits for other tasks; `wait`: its stack is unknown, and it waits in the kernel as these do.
FOR_PEERS = {"op", "collective", "wait", "session", "barrier", "meet", "chief", "coordinator", "serves"}
FOR_OWN_THREADS = {
    "data",
    "collective",
    "wait",
    "op",
    "session",
    "queue",
    "event",
    "join",
    "future",
    "lock",
    "serves",
    "coordinator",
}
# It waits for something that no peer brings, and neither moves bytes nor computes as it waits.
PAUSES = {
    *("sleep", "file_lock", "fifo", "pipe", "input", "dns", "dial"),
    *("queue", "event", "join", "lock"),
}
OWN_THREADS = {"queue", "event", "join", "future", "lock"}
FOR_CHILDREN = {"child", "children"}
FOR_LOADER = {"queue", "event", "future", "lock", "children", "poll", "pipe"}
LOADERS = (  # of data, in their own threads and processes
    "torch/utils/data/",
    "keras/utils/data_utils.py",
    "keras/src/utils/data_utils.py",
    "keras/src/trainers/data_adapters/",
)
CALLED_BY_TENSORFLOW = ("ops/script_ops.py", "data/ops/from_generator_op.py", "ops/from_generator_op.py")


class Stand(NamedTuple):
    """Where a thread stands."""

    kind: str  # a key of WORDS
    place: str  # `mwms.py:26 in batches()`; "" where the stack is unknown
    own: bool  # the place is in the user's own code, no library's
    direct: bool  # nothing but C was called from there
    deep: bool  # ... within TensorFlow or another installed library
    main: bool
    feeds: bool = False  # TensorFlow has called it: a function of the input pipeline
    pid: int = 0
    channel: str = ""
    cores: float = 0.0  # that a thread uses which keeps Python's lock
    loads: bool = False  # it waits in one of LOADERS

    @property
    def words(self) -> str:
        """What it does, in words."""
        if self.kind:
            return WORDS[self.kind].format(percent=100 * self.cores)
        return f"waits in the kernel ({self.channel})" if self.channel else WORDS[""]


def kind_of_frames(frames: Frames) -> str:
    """What a thread does in the libraries that the user's code has called; "" for what the frames do not show."""
    best = len(SIGNS)
    for path, _, function in _called(frames):
        for number, (part, functions, _) in enumerate(SIGNS[:best]):
            if part in path and (not functions or function in functions):
                best = number
                break
    return SIGNS[best][2] if best < len(SIGNS) else ""


def _called(frames: Frames) -> Frames:
    """The frames of the libraries that the user's code has called."""
    own = owned(frames)
    return frames[: own.index(True)] if True in own else frames


def kind_of_channel(channel: str, state: str = "S") -> str:
    """What the kernel's function that a thread waits in means; "" for an unknown one."""
    if state == "R":
        return "busy"
    known = next((kind for start, kind in CHANNELS if channel.startswith(start)), "")
    return known or ("disk" if state == "D" else "")  # file systems have functions of many names


def place_of(frames: Frames) -> tuple[str, bool]:
    """(`mwms.py:26 in batches()`, whether that is the user's own code).

    It is the innermost frame of the user's own code, else the innermost one outside TensorFlow and Python's library.
    """
    own = own_frame(frames)
    if own is not None:
        return place(own), True
    for frame in frames:
        if any(part in frame[0] for part in INSTALLED) and not any(
            part in frame[0] for part in OF_TENSORFLOW
        ):
            return place(frame), False
    return (place(frames[0]), False) if frames else ("", False)


def stands(process: Mapping[str, Any]) -> list[Stand]:
    """Where the threads of a process stand whose stack is known, the main thread first."""
    threads = process["threads"]
    main = next(
        (thread for thread in threads if thread[0] == process["pid"]), threads[0] if threads else None
    )
    channel, state = (main[3], main[2]) if main else ("", "S")
    stacks = sorted(process["stacks"] or (), key=lambda stack: not stack["main"])
    if not stacks or not stacks[0]["main"]:
        kind = kind_of_channel(channel, state)
        kind = "wait" if kind == "lock" else kind
        for _, cores in (process.get("native") or ())[:1]:
            return [
                Stand("native", "", False, False, False, True, pid=process["pid"], cores=cores),
                *_others(process, stacks),
            ]
        first = Stand(kind, "", False, False, False, True, pid=process["pid"], channel=channel)
        return [first, *_others(process, stacks)]
    frames = stacks[0]["frames"]
    where, own = place_of(frames)
    direct = owned(frames)[:1] == [True]
    kind = kind_of_frames(frames)
    by_channel = kind_of_channel(channel, state)
    if not kind or (kind in ("net", "event") and by_channel in ("dial", "sleep")):
        kind = by_channel
    if state == "R" and kind not in FOR_PEERS:
        kind = "busy"
    deep = bool(frames) and any(part in frames[0][0] for part in INSTALLED)
    loads = kind in FOR_LOADER and any(part in frame[0] for frame in _called(frames) for part in LOADERS)
    first = Stand(kind, where, own, direct, deep, True, pid=process["pid"], channel=channel, loads=loads)
    return [first, *_others(process, stacks[1:])]


def _others(process: Mapping[str, Any], stacks: Iterable[Mapping[str, Any]]) -> list[Stand]:
    """Of the other threads, those that run the user's code; which wait channel is whose is not known."""
    channels = {
        kind_of_channel(thread[3], thread[2]) for thread in process["threads"] if thread[0] != process["pid"]
    } - {"lock", "poll", ""}
    found = []
    for stack in stacks:
        frames = stack["frames"]
        where, own = place_of(frames)
        if not own:
            continue
        kind = kind_of_frames(frames)
        if not kind:
            kind = next((each for each in RANK if each in channels), "lock")
        feeds = any(part in frame[0] for frame in frames for part in CALLED_BY_TENSORFLOW)
        direct = owned(frames)[0]
        found.append(Stand(kind, where, True, direct, False, False, feeds, process["pid"]))
    return found


# The wait channel that a thread has which runs C code, where several threads have one: the most telling first.
RANK = ("file_lock", "fifo", "pipe", "dial", "net", "accept", "input", "child", "disk", "sleep", "busy")


def from_the_trainer_on(processes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The processes without the shells and launchers (torchrun) that have started the trainer and wait for it."""
    while len(processes) > 1:
        first, second = stands(processes[0])[0], processes[1]
        seen = any(stack["main"] for stack in second["stacks"] or ())
        waits = first.kind in FOR_CHILDREN and not first.own
        if processes[0]["name"] not in WRAPPERS and not (waits and seen):
            break
        processes = processes[1:]
    return processes


STUCK_SERVERS = ("file_lock", "fifo", "disk")


def stand_of(processes: Sequence[Mapping[str, Any]]) -> Stand:
    """Where a task stands: its main thread, or the thread that this one waits for."""
    main, *threads = stands(processes[0])
    feeding = [each for each in threads if each.feeds]
    if feeding and main.kind in FOR_OWN_THREADS:
        return feeding[0]
    if main.kind == "serves":
        # TensorFlow's own threads have no Python stack; what one of them waits in may tell why no answer comes.
        channels = {
            kind_of_channel(thread[3], thread[2])
            for thread in processes[0]["threads"]
            if thread[0] != processes[0]["pid"]
        }
        stuck = next((kind for kind in STUCK_SERVERS if kind in channels), "")
        return main._replace(kind=stuck, place="", own=False) if stuck else main
    if main.kind in OWN_THREADS - {"lock"}:
        active = [each for each in threads if each.kind not in OWN_THREADS | FOR_PEERS]
        waiting = [each for each in threads if each.kind in FOR_PEERS and each.own]
        if active or waiting:
            return (active or waiting)[0]
    return main


def step_of(processes: Sequence[Mapping[str, Any]]) -> Stand:
    """Where a task stands that trains: its main thread; where that waits for others, one of them that is at its peers.

    The place of one that waits for tf.data tells also where the user's code is that TensorFlow has called for it.
    """
    main, *threads = stands(processes[0])
    if main.kind == "data":
        fed_at = next((f" (its Python is at {each.place})" for each in threads if each.feeds), "")
        return main._replace(place=main.place + fed_at)
    if main.kind in OWN_THREADS:
        return next((each for each in threads if each.kind in FOR_PEERS), main)
    return main


def forked_after_tensorflow(processes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the program waits for a child that stands within TensorFlow, or with all its threads in a lock."""
    if not processes or stands(processes[0])[0].kind not in {*FOR_CHILDREN, *OWN_THREADS, "wait"}:
        return False
    for child in processes[1:]:
        if child["name"] != processes[0]["name"]:
            continue
        stack = next((each["frames"] for each in child["stacks"] or () if each["main"]), ())
        if any("/tensorflow/" in path for path, _, _ in stack):
            return True
    return False


def child_of(processes: Sequence[Mapping[str, Any]]) -> str:
    """The process that the program waits for, if it is clear which: `pid 4712, sleep`."""
    return f"pid {processes[1]['pid']}, {processes[1]['name']}" if len(processes) == 2 else ""
