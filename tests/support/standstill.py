"""A run as its watchdog sees it, look by look: what each task uses and moves, and where its threads are when asked."""

from __future__ import annotations

from typing import Any

from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import TaskExit

LOOK_S = 5.0
SITE = "/venv/lib/python3.11/site-packages/tensorflow/python"
LIBRARY = "/usr/lib/python3.11"

# Stacks as TensorFlow 2.21 and Python 3.11 have them, the innermost frame first.
IN_FUNCTION = [
    [f"{SITE}/eager/execute.py", 53, "quick_execute"],
    [f"{SITE}/eager/context.py", 1688, "call_function"],
    [f"{SITE}/eager/polymorphic_function/polymorphic_function.py", 833, "__call__"],
    [f"{SITE}/util/traceback_utils.py", 164, "error_handler"],
]
IN_ITERATOR = [
    [f"{SITE}/ops/gen_dataset_ops.py", 3081, "iterator_get_next"],
    [f"{SITE}/data/ops/iterator_ops.py", 776, "_next_internal"],
    [f"{SITE}/data/ops/iterator_ops.py", 826, "__next__"],
]
IN_SESSION = [
    [f"{SITE}/client/session.py", 1483, "_call_tf_sessionrun"],
    [f"{SITE}/client/session.py", 977, "run"],
    [f"{SITE}/training/monitored_session.py", 778, "run"],
]
WAITS_FOR_CHIEF = [
    [f"{SITE}/training/session_manager.py", 478, "wait_for_session"],
    [f"{SITE}/training/monitored_session.py", 715, "create_session"],
]
IN_JOIN = [[f"{SITE}/training/server_lib.py", 185, "join"]]
IN_COORDINATOR = [
    [f"{LIBRARY}/threading.py", 327, "wait"],
    [f"{SITE}/distribute/coordinator/cluster_coordinator.py", 547, "wait"],
    [f"{SITE}/distribute/coordinator/cluster_coordinator.py", 1584, "join"],
]
FOR_CHECKPOINT = [
    [f"{SITE}/training/checkpoint_utils.py", 200, "wait_for_new_checkpoint"],
    [f"{SITE}/training/checkpoint_utils.py", 260, "checkpoints_iterator"],
]
BY_PY_FUNCTION = [
    [f"{SITE}/data/ops/from_generator_op.py", 198, "generator_py_func"],
    [f"{SITE}/ops/script_ops.py", 269, "__call__"],
]
IN_QUEUE = [[f"{LIBRARY}/threading.py", 327, "wait"], [f"{LIBRARY}/queue.py", 171, "get"]]
IN_SUBPROCESS = [
    [f"{LIBRARY}/subprocess.py", 2004, "_try_wait"],
    [f"{LIBRARY}/subprocess.py", 550, "run"],
]
IN_POOL = [
    [f"{LIBRARY}/threading.py", 327, "wait"],
    [f"{LIBRARY}/multiprocessing/pool.py", 768, "wait"],
    [f"{LIBRARY}/multiprocessing/pool.py", 367, "map"],
]
IN_URLOPEN = [
    [f"{LIBRARY}/socket.py", 706, "readinto"],
    [f"{LIBRARY}/http/client.py", 286, "_read_status"],
    [f"{LIBRARY}/urllib/request.py", 216, "urlopen"],
]
IN_GETADDRINFO = [
    [f"{LIBRARY}/socket.py", 962, "getaddrinfo"],
    [f"{LIBRARY}/socket.py", 827, "create_connection"],
    [f"{LIBRARY}/http/client.py", 941, "connect"],
]


def at(line: int, function: str, *inner: list[Any], file: str = "trainer.py") -> list[list[Any]]:
    """A stack that ends, inside, in `inner`, called from that line of the user's program."""
    return [*inner, [file, line, function], [file, 99, "<module>"]]


class Scene:
    """A run whose agents are asked every LOOK_S."""

    def __init__(self, *tasks: str, **settings: Any) -> None:
        hosts = "abcdefgh"
        self.places = {
            task: (hosts[number], f"10.0.0.{number + 1}", None if task.startswith("evaluator") else 2222)
            for number, task in enumerate(tasks)
        }
        self.watchdog = Watchdog(self.places, {}, {}, settings)
        self.now = 1000.0
        self.watchdog.begin(self.now)
        self.cores = dict.fromkeys(tasks, 0.9)
        self.waiting = dict.fromkeys(tasks, 0.0)  # for a processor, in each second
        self.bytes_s = dict.fromkeys(tasks, 50_000.0)  # to peers
        self.strange_bytes_s = dict.fromkeys(tasks, 0.0)  # to others
        self.io_s = dict.fromkeys(tasks, 0.0)
        self.logs_s = dict.fromkeys(tasks, 30.0)
        self.turns_s = dict.fromkeys(tasks, 50.0)
        self.says = dict.fromkeys(tasks, "step 7")
        self.facts: dict[str, dict[str, Any]] = {task: {} for task in tasks}  # of looks, changed
        self.looks = {
            task: {
                "cpu_s": 9.0,
                "waited_s": 1.0,
                "sent": 10**6,
                "strange": 0,
                "io": 10**7,
                "log_bytes": 100,
                "quiet_s": 0.0,
                "turns": 9.0,
            }
            for task in tasks
        }
        self.stacks: dict[str, list[Any]] = {}  # task -> the main thread's stack, then those of others
        self.channels: dict[
            str, list[str]
        ] = {}  # task -> the main thread's wait channel, then those of others
        self.children: dict[str, list[dict[str, Any]]] = {}
        self.inspections: list[tuple[str, bool]] = []
        self.native: dict[str, float] = {}  # task -> cores that native code uses, with Python's lock
        self.sees_bytes = True
        self.gpus = settings.get("gpus", {})
        self.use: dict[str, int | None] = {}  # task -> percent that NVML tells of each of its GPUs

    def still(self, *tasks: str) -> None:
        """From now on these use as much as TensorFlow does while it waits: measured with MultiWorkerMirrored."""
        for task in tasks:
            self.cores[task], self.bytes_s[task], self.logs_s[task] = 0.02, 1000.0, 0.0
            self.turns_s[task] = 0.0

    def spins(self, *tasks: str) -> None:
        """From now on these wait for a peer on GPUs: another thread uses a core, the main thread never wakes."""
        self.still(*tasks)
        for task in tasks:
            self.cores[task], self.use[task] = 1.0, 100

    def stands(self, task: str, *stacks: Any, channels: tuple[str, ...] = ("futex_do_wait",)) -> None:
        """`task` does nothing from now on, and its threads are there."""
        self.still(task)
        self.stacks[task], self.channels[task] = list(stacks), list(channels)

    def end(self, task: str, code: int = 0) -> None:
        """It ends."""
        del self.looks[task]
        self.watchdog.happened(TaskExit(TaskId.parse(task), self.places[task][0], code, None, 1.0), self.now)

    def on(self, seconds: float) -> list[str]:
        """Let time go on; what is said meanwhile."""
        said: list[str] = []
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            for task in self.looks:
                self._look(task)
            hosts = [place[0] for place in self.places.values()]
            for host, type, fields in self.watchdog.questions(hosts, self.now):
                if type == "inspect":
                    found = {task: self._inspect(task, fields["stacks"]) for task in fields["tasks"]}
                    # Slowness asks workers that go on where they stand.
                    if fields["asker"] != "slowness":
                        self.inspections += [(task, fields["stacks"]) for task in fields["tasks"]]
                    answer = {"tasks": found, "asker": fields["asker"]}
                    self.watchdog.said(host, "inspected", answer, self.now + 0.3)
            said += [each.text for each in self.watchdog.sentences(self.now + 0.5)]
        return said

    def _look(self, task: str) -> None:
        seen, logs = self.looks[task], self.logs_s[task] * LOOK_S
        seen["cpu_s"] += self.cores[task] * LOOK_S
        seen["waited_s"] += self.waiting[task] * LOOK_S
        seen["sent"] += int(self.bytes_s[task] * LOOK_S)
        seen["strange"] += int(self.strange_bytes_s[task] * LOOK_S)
        seen["io"] += int(self.io_s[task] * LOOK_S)
        seen["log_bytes"] += int(logs)
        seen["turns"] += self.turns_s[task] * LOOK_S
        seen["quiet_s"] = 0.0 if logs else seen["quiet_s"] + LOOK_S
        host, _, port = self.places[task]
        peer = next(place[1] for place in self.places.values() if place[0] != host or len(self.places) == 1)
        flows = [
            [peer, 2222, 40000, seen["sent"], 0, 0, 0, 1.0],
            ["203.0.113.9", 443, 40001, 0, seen["strange"], 0, 0, 9.0],
        ]
        look = {
            "listens": None if port is None else True,
            "listens_on": [] if port is None else [port],
            "connected": [[place[1], 2222] for place in self.places.values() if place[0] != host],
            "calling": [],
            "processes": [[4711, "python3", "S"]],
            "waits_in": self.channels.get(task, ["futex_do_wait"])[0],
            "cpu_s": seen["cpu_s"],
            "waited_s": seen["waited_s"],
            "io": int(seen["io"]),
            "wrote": int(seen["io"]),
            "turns": int(seen["turns"]),
            "quiet_s": seen["quiet_s"],
            "log_bytes": int(seen["log_bytes"]),
            "says": self.says[task],
            "signs": {},
            "flows": flows if self.sees_bytes else None,
            **self.facts[task],
        }
        message: dict[str, Any] = {"tasks": {task: look}}
        if task in self.use:
            load = {"use": self.use[task], "power_w": 90.0, "limit_w": 700.0, "error": ""}
            load.update(memory_bytes=70 << 30, pids=[4711])
            message["gpus"] = dict.fromkeys(self.gpus[task], load)
        self.watchdog.said(host, "looked", message, self.now)

    def _inspect(self, task: str, with_stacks: bool) -> list[dict[str, Any]]:
        channels = self.channels.get(task, ["futex_do_wait"])
        threads = [
            [4711 + number, "python3", "R" if channel == "" else "S", channel, 1.0]
            for number, channel in enumerate(channels)
        ]
        stacks = [
            {"main": not number, "frames": frames} for number, frames in enumerate(self.stacks.get(task, []))
        ]
        known = bool(with_stacks and stacks)
        program = {
            "pid": 4711,
            "name": "python3",
            "threads": threads,
            "stacks": stacks if known else None,
            "why_none": "" if known else "--no-stacks",
            **({"native": [(4711, self.native[task])]} if task in self.native else {}),
        }
        return [program, *self.children.get(task, [])]
