"""Which processes of a task may see other GPUs than the task was given: `masks` of a look."""

from tflaunch.agent.host import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

PROCESSES = 4
CHARACTERS = 200
VARIABLE = b"CUDA_VISIBLE_DEVICES="


def other_masks(request: "Dict[str, Any]", shown: "List[List[Any]]") -> "List[List[Any]]":
    """[[pid, CUDA_VISIBLE_DEVICES]] of the first processes whose variable is not what the task was given.

    As it was when the process began: a change that a program makes for itself does not show.
    """
    given = str((request.get("env") or {}).get("CUDA_VISIBLE_DEVICES") or "")
    found = []
    for pid, _, _ in shown[:PROCESSES]:
        if not given or not processes.mine(pid):
            continue
        variables = processes.environment(pid)
        values = [each[len(VARIABLE) :] for each in variables if each.startswith(VARIABLE)]
        value = values[0].decode("utf-8", "replace")[:CHARACTERS] if values else ""
        if variables and value != given:
            found.append([pid, value])
    return found
