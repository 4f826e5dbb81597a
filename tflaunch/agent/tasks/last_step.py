"""Whether a task that has ended with 0 had nothing left to train: its checkpoint was at its last step, or epoch.

Only its log and its arguments tell.  TensorFlow's Estimator and Saver write "Restoring parameters from
model.ckpt-1000"; Keras and PyTorch write nothing of their own, so the program's words count: "Resuming from epoch 5".
Where the log has neither, nothing is told.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from tflaunch.agent.tasks.task import Task

TRAINERS = ("chief", "master", "worker")
# Of arguments: it restores, and need not train.
NO_TRAINING = ("eval", "test", "predict", "infer", "export", "serv")
LOG_BYTES, LINE = 65536, 400
OF_TENSORFLOW = "restoring parameters from"
COUNT = r"(?<![a-z])(step|epoch|iter)(?:ation)?s?[ =:]{1,3}(\d{1,12})\b"
# The argument that names the last one: not --save_steps, nor --steps_per_epoch.
LAST = r"--(?:(?:num|max|total|train|training|last|final|n)[-_])*(step|epoch|iter)(?:ation)?s?$"


def nothing_left(task: "Task") -> "Dict[str, Any]":
    """The fact `nothing_left` of that task (exit_facts.py), or {}."""
    words = task.request["argv"]
    if task.id.partition("/")[0] not in TRAINERS or any(
        part in word for word in words for part in NO_TRAINING
    ):
        return {}
    size = task.logs.size(task.logs.attempt)
    log = task.logs.tail(task.logs.attempt, LOG_BYTES).decode("utf-8", "replace") if size <= LOG_BYTES else ""
    if not any(word in log for word in ("estor", "esum", "oad")):
        return {}
    import re

    from tflaunch.diagnosis.signs import LOSS, signs_in

    restored = {}  # type: Dict[str, int]
    for line in log.splitlines():
        lowered = line[:LINE].lower()
        if not restored and "saving checkpoint" in lowered:
            return {}
        counts = {unit: int(number) for unit, number in re.findall(COUNT, lowered)}
        if any(restored.get(unit, number) != number for unit, number in counts.items()):
            # It has gone on to another one.
            return {}
        restored.update(_restored(lowered, counts))
    if not restored or LOSS in signs_in(log):
        return {}
    for word, following in zip(words, [*words[1:], ""]):  # noqa: B905  Python 3.8
        flag, equals, last = word.partition("=")
        last = last if equals else following
        named = re.match(LAST, flag)
        number = restored.get(named.group(1), -1) if named else -1
        if last.isdecimal() and int(last[:12]) <= number:
            return {"nothing_left": [number, "%s %s" % (flag[:40], last[:12])]}
    return {}


def _restored(line: str, counts: "Dict[str, int]") -> "Dict[str, int]":
    """The steps, epochs or iterations that this line, in small letters, says it goes on from; `counts` stand in it."""
    import re

    if OF_TENSORFLOW in line:
        saved = re.findall(r"-(\d{1,12})\b", line.partition(OF_TENSORFLOW)[2])
        return {"step": int(saved[-1])} if saved else {}
    if "pretrain" in line:
        return {}
    loads = "load" in line and any(word in line for word in ("checkpoint", "ckpt", ".pt"))
    return counts if loads or "restor" in line or "resum" in line else {}
