"""Log lines of several tasks on one screen: the prefix of each, and which lines are still visible."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping

from tflaunch.console.pen import PIPE_COLUMNS, Pen, task_colour
from tflaunch.console.safe_text import Text
from tflaunch.documents.log_tail import tail_lines
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import TaskExit
from tflaunch.text.safe import printable

_RECENT = 128  # lines of the screen that are remembered: more than `shows` ever needs


class Prefixes:
    """The prefixes of the tasks' lines: the same width for all tasks, a colour for each."""

    def __init__(self, pen: Pen, show_host: bool) -> None:
        self._pen, self._show_host = pen, show_host
        self._hosts: dict[TaskId, str] = {}
        self._made: dict[TaskId, str] = {}

    def expect(self, hosts: Mapping[TaskId, str]) -> None:
        """Make room for these tasks on these hosts."""
        if not hosts.items() <= self._hosts.items():
            self._hosts.update(hosts)
            self._made.clear()  # the width may have changed

    def of(self, task: TaskId, host: str) -> str:
        """Return the prefix of a task's lines."""
        prefix = self._made.get(task)
        if prefix is None:
            self.expect({task: host})
            text = Text(str(task).ljust(max(len(str(other)) for other in self._hosts)), task_colour(task))
            if self._show_host:
                text.append(" " + host.ljust(max(map(len, self._hosts.values()))), "dim")
            text.append(f" {self._pen.marks.bar}", "dim")
            prefix = self._made[task] = self._pen.render(text).rstrip("\n") + " "
        return prefix


class Recent:
    """The last lines on the screen that stdout and stderr share: of a task, or (None) of tflaunch."""

    def __init__(self) -> None:
        self._lines: deque[tuple[TaskId | None, str]] = deque(maxlen=_RECENT)

    def add(self, task: TaskId | None, lines: str) -> None:
        """Take whole lines that were printed."""
        last = lines.removesuffix("\n").rsplit("\n", _RECENT)[-_RECENT:]
        self._lines.extend(zip(itertools.repeat(task), last))

    def shows(self, exit: TaskExit, pen: Pen) -> bool:
        """Return whether a task's last lines are still visible, with few others between and below."""
        wanted, room, columns = tail_lines(exit.tail), pen.rows // 2, pen.columns or PIPE_COLUMNS
        for task, line in reversed(self._lines):
            if wanted and task == exit.task and printable(line) == wanted[-1]:
                wanted.pop()
            elif wanted:
                room -= 1 + len(line) // columns
        return not wanted and room >= 0
