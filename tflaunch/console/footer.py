"""The last line of the terminal while the tasks run: for how long, how many are up, what they have printed last.

⠹ 3m 12s  4 of 4 tasks up  output 2 s ago  worker/0: step 402, loss 0.0442
"""

from __future__ import annotations

from rich.spinner import Spinner

from tflaunch.console.pen import Pen
from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import cut
from tflaunch.protocol.job import TaskId
from tflaunch.sessions.printed_numbers import number_of, step_in
from tflaunch.text.numbers import counted
from tflaunch.text.times import duration

_SEARCHED = 500  # characters of a line


class Footer:
    """Knows what the last line shows; only the writer's thread calls it."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self._spinner: Spinner | None = None
        self._began: float | None = None  # None: nothing is shown
        self._tasks = 0
        self._up: set[TaskId] = set()
        self._output_at: float | None = None
        self._unread: tuple[TaskId, str] | None = None  # the last lines, not searched yet
        self._progress = ""  # `worker/0: step 402, loss 0.0442`

    def begin(self, tasks: int, now: float) -> None:
        """The tasks are released; a run that is planned anew goes on counting from its first release."""
        self._tasks = tasks
        self._up.clear()
        if self._began is None:
            self._began = now

    def join(self, tasks: int, began: float, output_at: float | None) -> None:
        """Somebody watches a run that goes on: it began then, and what it has printed so far it printed by then."""
        self._tasks, self._output_at = tasks, output_at
        if self._began is None:
            self._began = began

    def end(self) -> None:
        """Show no last line any more."""
        self._began = None

    def started(self, task: TaskId) -> None:
        """A task runs."""
        self._up.add(task)

    def exited(self, task: TaskId) -> None:
        """A task has ended."""
        self._up.discard(task)

    def heard(self, now: float) -> None:
        """A task has printed something, whether it is shown or not."""
        self._output_at = now

    def output(self, task: TaskId, lines: str, now: float) -> None:
        """A task has printed these lines."""
        self._output_at = now
        self._unread = (task, lines)

    def line(self, now: float) -> Text | None:
        """Return the line, as wide as the terminal less one column; None before `begin` and after `end`."""
        if self._began is None:
            return None
        if self._spinner is None:
            self._spinner = Spinner(self._pen.marks.spinner, style="cyan")
        parts = [_whole(now - self._began)]
        parts.append(f"{len(self._up)} of {counted(self._tasks, 'task')} up")
        if self._output_at is None:
            parts.append("no output yet")
        else:
            parts.append(f"output {_whole(now - self._output_at)} ago")
        self._search()
        line = Text.assemble(self._pen.text(self._spinner.render(now)), " ", ("  ".join(parts), "dim"))
        if self._progress:
            line.append(f"  {self._progress}")
        line = cut(line, (self._pen.columns or 0) - 1, self._pen.marks.more)
        line.no_wrap = True
        return line

    def _search(self) -> None:
        """Find the last step and the last loss in the lines that came last."""
        if self._unread is None:
            return
        task, lines = self._unread
        self._unread = None
        for line in reversed(lines.rstrip("\n").rsplit("\n", 8)):
            step, loss = step_in(line[:_SEARCHED]), number_of(line[:_SEARCHED], "loss")
            if step or loss is not None:
                found = [" ".join(step)] if step else []
                found += [f"loss {loss:.6g}"] if loss is not None else []
                self._progress = f"{task}: {', '.join(found)}"
                return


def _whole(seconds: float) -> str:
    """`7 s`, `3 min 12 s`: without a fraction, which would change at each drawing."""
    return f"{int(seconds)} s" if seconds < 60 else duration(seconds)
