"""Shows where a Python program hangs: Python's own faulthandler writes the stacks of all threads into the task's log.

Every task starts with PYTHONFAULTHANDLER=1.  So at SIGABRT Python prints the stacks, whatever C++ code the program
hangs in and whichever thread holds the interpreter's lock; then the program ends.  tflaunch injects no code, reads no
memory.  It sends SIGABRT only to a process that catches it, since any other would die without a message.  A process
that catches SIGTERM (to write a last checkpoint, say) first gets SIGTERM and its grace.
"""

from tflaunch.agent.host import processes
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List


def abort(root: int, even_if_term_is_caught: bool) -> bool:
    """Have the process `root`, or the first processes below it that can, write their stacks and end.

    Returns whether any of them does.
    """
    every = processes.every()
    if root not in every:
        return False
    children = {}  # type: Dict[int, List[processes.Process]]
    for process in every.values():
        children.setdefault(process.parent, []).append(process)
    found = False
    pending = [every[root]]
    while pending:
        process = pending.pop()
        if not catches(process.pid, signal.SIGABRT):
            pending += children.get(process.pid, [])  # a shell around the program
        elif even_if_term_is_caught or not catches(process.pid, signal.SIGTERM):
            _leave_no_core(process.pid)
            processes.send(process, signal.SIGABRT)
            processes.send(process, signal.SIGCONT)  # a stopped process takes no other signal
            found = True
    return found


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for that signal."""
    try:
        return bool(int(processes.status(pid, b"SigCgt"), 16) >> (number - 1) & 1)
    except (OSError, IndexError):
        return False


def _leave_no_core(pid: int) -> None:
    """Prevent a core dump, tens of gigabytes of a training; a limit of 1 byte also prevents a piped one (core(5))."""
    import resource

    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        if hard != 0:
            resource.prlimit(pid, resource.RLIMIT_CORE, (1, hard))
    except (OSError, ValueError, AttributeError):
        pass
