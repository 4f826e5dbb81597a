"""What a Python writes of its threads, read into the `stacks` of an `inspected` message (agent/tasks/inspection.py).

Any text gives what a message may hold: the task may have written it.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

    Frames = List[List[Any]]  # file, line, function; the innermost first

PATH_CHARACTERS = 1000  # of a file or function: Python writes 500, but the task may write anything there


def parsed(text: str, main: int, shown: "Callable[[str], str]") -> "List[Dict[str, Any]]":
    """The stacks of all threads; `shown` says how to write the path of a file.

    `main` is the first thread's number.  A thread without a Python frame is left out, unless it is the first.
    """
    threads = []  # type: List[Tuple[int, Frames]]
    frames = []  # type: Frames
    for line in text.split("\n"):
        if line.startswith("Thread 0x"):
            frames = []
            threads.append((_number(line.split()[1]), frames))
        else:
            _add_frame(line, frames, shown)
    first = next((frames for number, frames in threads if number == main), None)
    return grouped(first, (frames for _, frames in threads if frames is not first))


def one_stack(text: str, shown: "Callable[[str], str]") -> "Frames":
    """The frames of the one thread that has written the text; [] if it runs no Python."""
    frames = []  # type: Frames
    for line in text.split("\n"):
        _add_frame(line, frames, shown)
    return frames


def grouped(main: "Optional[Frames]", others: "Iterable[Frames]") -> "List[Dict[str, Any]]":
    """The first thread, if it is known, before all others, and equal ones of these together."""
    found = [] if main is None else [{"main": True, "frames": main, "count": 1}]  # type: List[Dict[str, Any]]
    known = {}  # type: Dict[Any, Dict[str, Any]]  # by their frames
    for frames in filter(None, others):
        key = tuple(map(tuple, frames))
        if key in known:
            known[key]["count"] += 1
        else:
            known[key] = {"main": False, "frames": frames, "count": 1}
    return found + list(known.values())


def _number(word: str) -> int:
    try:
        return int(word, 16)
    except ValueError:
        return 0


def _add_frame(line: str, frames: "Frames", shown: "Callable[[str], str]") -> None:
    if not line.startswith('  File "'):
        return
    path, _, rest = line[8:].rpartition('", line ')
    number_text, _, function = rest.partition(" in ")
    if path and number_text.isdigit() and len(number_text) < 10:
        frames.append([shown(path[:PATH_CHARACTERS]), int(number_text), function[:PATH_CHARACTERS]])
