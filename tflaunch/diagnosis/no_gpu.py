"""Tasks that were given a GPU and use none: told within seconds where the program says so; --require-gpu ends them.

A process that a task has started, such as a data loader, may say rightly that it sees no GPU.  So a line counts at once
only if the task's own process wrote it, or the task has one process; else NVML must show, for longer, that nothing is
on the GPU.  A task that NVML, or TensorFlow itself, has shown on its GPU once is never reported.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tflaunch.diagnosis.rule import WRAPPERS, Rule, Sentence, Stop
from tflaunch.protocol.errors import EXIT_PLAN
from tflaunch.text.numbers import agreeing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched

MiB = 1 << 20
LINE_CHARACTERS = 120
# What a line has -> why there is no GPU, and what to do.
REASONS = (
    (
        "Cannot dlopen some GPU libraries",
        "TensorFlow does not find all CUDA libraries",
        "install tensorflow[and-cuda] by --requirements, or have `setup:` put them on LD_LIBRARY_PATH",
    ),
    (
        "Could not find cuda drivers",
        "TensorFlow finds no CUDA driver (libcuda.so.1)",
        "in a container, give it the GPUs; on the host, nvidia-smi must work",
    ),
    (
        "CUDA_ERROR_NO_DEVICE",
        "CUDA shows it no device",
        "does the program, or `setup:`, change CUDA_VISIBLE_DEVICES?",
    ),
    (
        "no CUDA-capable device",
        "CUDA shows it no device",
        "does the program, or `setup:`, change CUDA_VISIBLE_DEVICES?",
    ),
    (
        "driver version is insufficient",
        "the driver is too old for this CUDA",
        "tflaunch gpus shows the driver; take a newer driver or an older TensorFlow",
    ),
    (
        "SYSTEM_DRIVER_MISMATCH",
        "the driver and its library have different versions",
        "restart that host: its driver was changed",
    ),
    ("cuInit", "the CUDA driver does not start", "run nvidia-smi there; modprobe nvidia-uvm often mends it"),
)


@dataclass
class _Gpu:
    """What is known of a task's use of its GPUs."""

    begun: float = -1.0  # when it was first seen; -1: not yet
    said: float = -1.0  # when the line was first seen
    line: str = ""
    library: str = ""  # the line about a library that cannot be loaded
    sure: bool = False  # its own process wrote the line
    alone: bool = True  # it has never had another process
    used: bool = False  # it was on a GPU
    empty: float = -1.0  # since when NVML shows nothing on its GPUs
    cpu_s: float = 0.0
    mask: str | None = None  # its CUDA_VISIBLE_DEVICES, where it is not the one that it was given
    trains: bool = False  # it has written a loss: it does not prepare its data any more
    told: bool = False


class NoGpu(Rule):
    """Tells which tasks do not use their GPUs, and why as far as they say so."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._limits = watched.thresholds
        self._tasks = {task: _Gpu() for task in watched.gpus if task in watched.places}
        self._seen: set[str] = set()  # hosts that show which processes are on a GPU
        self._shown: dict[str, str] = {}  # task -> the sentence that was told
        self._over: list[str] = []

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        gpus = fields.get("gpus") or {}
        if gpus:
            self._seen.add(host)
        for name, look in fields["tasks"].items():
            task = self._tasks.get(name)
            if task is None:
                continue
            if task.begun < 0:
                task.begun = now
            task.cpu_s = max(task.cpu_s, look["cpu_s"])
            self._note_line(task, look, now)
            masks = look.get("masks") or []
            own = _own_process(look)
            task.mask = next((value for pid, value in masks if pid == own), None)
            mine = [gpus[uuid] for uuid in self._watched.gpus[name] if uuid in gpus]
            self._note_use(task, mine, {pid for pid, _, _ in look["processes"]}, now)
            if (look.get("signs") or {}).get("gpu_seen", (0,))[0]:
                task.used = True
            if task.used and task.told:
                task.told = False
                self._over.append(name)

    def _note_line(self, task: _Gpu, look: Mapping[str, Any], now: float) -> None:
        programs = [pid for pid, name, _ in look["processes"] if name not in WRAPPERS]
        task.alone = task.alone and len(programs) <= 1
        signs = look.get("signs") or {}
        if signs.get("no_library", (0,))[0]:
            task.library = _message(signs["no_library"][1])[:LINE_CHARACTERS]
        task.trains = task.trains or any(signs.get(each, (0,))[0] for each in ("loss", "nan"))
        sign = signs.get("no_gpu")
        if not sign or not sign[0]:
            return
        if task.said < 0:
            task.said = now
        writer = _writer(sign[1])
        if not task.line or writer == _own_process(look):
            task.line = _message(sign[1])[:LINE_CHARACTERS]
        task.sure = task.sure or (writer != 0 and writer == _own_process(look))
        if writer and not task.sure:
            task.alone = False  # a process that may have ended meanwhile

    @staticmethod
    def _note_use(task: _Gpu, mine: list[Mapping[str, Any]], pids: set[int], now: float) -> None:
        if not mine or any(gpu["error"] for gpu in mine):
            return
        if any(pids.intersection(gpu["pids"] or ()) for gpu in mine):
            task.used = True
        if all(gpu["pids"] == [] for gpu in mine):
            task.empty = now if task.empty < 0 else task.empty
        else:  # another's, or hidden ones: nothing is known
            task.empty = -1.0

    def exited(self, exit: Any, now: float) -> None:
        self._forget(str(exit.task))

    def lost(self, task: str, now: float) -> None:
        self._forget(task)

    def _forget(self, task: str) -> None:
        self._tasks.pop(task, None)
        self._shown.pop(task, None)

    def started(self, task: str, now: float) -> None:
        if task in self._watched.gpus:
            self._tasks[task] = _Gpu()
            self._shown.pop(task, None)

    # -- what it means

    def _found(self, now: float, *, certain: bool = False) -> list[str]:
        """The tasks that use no GPU; with `certain`, so surely that the run may end for it."""
        return [name for name, task in self._tasks.items() if self._uses_none(task, now, certain)]

    def _uses_none(self, task: _Gpu, now: float, certain: bool) -> bool:
        if task.used or task.begun < 0:
            return False
        limits = self._limits
        longest = limits.no_gpu_end_s if certain else limits.no_gpu_child_s
        empty_s = now - max(task.empty, task.begun) if task.empty >= 0 else 0.0
        if task.said >= 0:
            said_s = now - task.said
            if said_s >= limits.no_gpu_s and (task.sure or (task.alone and not certain)):
                return True
            if min(said_s, empty_s) >= (limits.no_gpu_alone_s if task.alone else longest):
                return True
        if not task.trains:
            longest = limits.no_gpu_end_s
        return empty_s >= longest and task.cpu_s >= limits.no_gpu_cores * longest

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        groups: dict[str, list[str]] = {}
        for name in self._found(now):
            task = self._tasks[name]
            if not task.told:
                task.told = True
                groups.setdefault(self._why(task), []).append(name)
        said = []
        for why, names in groups.items():
            text = self._text(names, why)
            self._shown.update(dict.fromkeys(names, text))
            said.append(Sentence(text, False))
        over, self._over = self._over, []
        for name in over:
            if self._shown.pop(name, None):
                said.append(Sentence(f"{self._watched.who([name])} uses its GPU now", True))
        return said

    def _text(self, names: list[str], why: str) -> str:
        uses = agreeing(len(names), "uses no GPU, although it was given one", "use none of their GPUs")
        return f"{self._watched.who(names)} {uses}: {why}"

    def _why(self, task: _Gpu) -> str:
        mask = ""
        if task.mask is not None:
            value = repr(task.mask) if task.mask else "empty"
            mask = f"CUDA_VISIBLE_DEVICES is {value} there: leave it to tflaunch, in `env:`, `setup:` and the program"
        if task.said < 0:
            return mask or (
                f"it has used {task.cpu_s:.0f} s of CPU, and NVML shows no process on it;"
                " has it a TensorFlow, PyTorch or JAX for CPUs only, or does it still prepare its data?"
            )
        reason, step = next(
            ((reason, step) for words, reason, step in REASONS if words in task.line), ("", "see its log")
        )
        line = task.library if task.library and "dlopen" in task.line else task.line
        said = f"{reason} ({line!r})" if reason else repr(line)
        return f"{said}; {mask or step}"

    def stop(self, now: float) -> Stop | None:
        found = self._found(now, certain=True) if self._watched.require_gpu else []
        if not found:
            return None
        reason = f"{self._text(found, self._why(self._tasks[found[0]]))} (--require-gpu)"
        return Stop(reason, tuple(found), EXIT_PLAN)

    def holds(self) -> list[str]:
        return list(dict.fromkeys(self._shown.values()))

    def blind(self) -> list[str]:
        hosts = {self._watched.places[task].host for task in self._tasks}
        begun = {self._watched.places[name].host for name, task in self._tasks.items() if task.begun >= 0}
        unseen = sorted((hosts & begun) - self._seen)
        if not unseen:
            return []
        return [
            f"whether the tasks on {', '.join(unseen[:4])} use their GPUs: the NVIDIA driver there has not answered yet"
        ]

    def memory(self) -> dict[str, Any]:
        return {"tasks": {name: asdict(task) for name, task in self._tasks.items()}, "shown": self._shown}

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import Each, a_flag, a_number, a_text, check, of_the_run, or_null

        a_task = of_the_run("a task", self._watched.gpus)
        of_task = {
            **dict.fromkeys(("begun", "said", "empty", "cpu_s"), a_number),
            **dict.fromkeys(("sure", "alone", "used", "trains", "told"), a_flag),
            **dict.fromkeys(("line", "library"), a_text),
            "mask": or_null(a_text),
        }
        check({"tasks": Each(a_task, of_task), "shown": Each(a_task, a_text)}, memory)
        self._tasks = {name: _Gpu(**task) for name, task in memory["tasks"].items()}
        self._shown = dict(memory["shown"])


def _own_process(look: Mapping[str, Any]) -> int:
    """The pid of the trainer: the first process that is no wrapper; 0 where none is seen."""
    return next((pid for pid, name, _ in look["processes"] if name not in WRAPPERS), 0)


def _message(line: str) -> str:
    """A line of TensorFlow's log without when and where it was written: `... cuda_driver.cc:266] failed call`."""
    before, bracket, message = line.partition("] ")
    return message if bracket and ".cc:" in before else line


def _writer(line: str) -> int:
    """The thread that wrote a line of TensorFlow's log, which names it since 2.18; 0 where it does not.

    `E0000 00:00:1795262334.973198   20749 cuda_driver.cc:266] failed call to cuInit`
    """
    words = line[:200].split()
    if len(words) > 3 and len(words[0]) == 5 and words[0][0] in "IWEF" and words[3].endswith("]"):
        return int(words[2]) if words[2].isascii() and words[2].isdigit() and len(words[2]) < 12 else 0
    return 0
