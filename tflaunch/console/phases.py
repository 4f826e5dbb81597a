"""The steps of a run before and after the training (connecting, fetching): a line for each that is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.progress_bar import ProgressBar
from rich.spinner import Spinner

from tflaunch.console.pen import Pen
from tflaunch.console.phase_words import going_on, over
from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import cut
from tflaunch.text.numbers import amount, counted
from tflaunch.text.times import duration

_ROOMY_COLUMNS = 60  # room for a bar of full length
_BAR_COLUMNS = (24, 4)  # where there is room, and where not
_DETAILS = 6  # lines at most below that of a wait
_SLOW_S = 20.0  # then, and each time that it has lasted twice as long, a pipe is told that a step goes on
# What keeps a step so long, as far as this machine can know.
_SLOW = {
    "staging": "their profile and `setup:` have not ended; what waits for input there gets none",
    "setting up": "their profile and `setup:` have not ended; what waits for input there gets none",
}


@dataclass
class _Phase:
    name: str
    began: float
    done: int = 0
    total: int = 0
    note: str = ""
    moved: tuple[int, int] | None = None  # how many bytes of how many
    first_moved: tuple[float, int] | None = None  # when how many bytes had been moved at first
    line: str = ""  # the last one of the program on a host that does the work
    details: Sequence[str] = ()  # of a wait: what it waits for
    over: bool = False
    told_at_s: float = 0.0  # after how many seconds it was told last that it goes on


class Phases:
    """Prints a line for each phase that is over; only the writer's thread calls it.

    print: prints a line on stderr.
    """

    def __init__(self, pen: Pen, print: Callable[[Text], None]) -> None:
        self._pen, self._print = pen, print
        self._phase: _Phase | None = None
        self._spinner: Spinner | None = None
        self.training = False  # log lines may come at any moment, so no live line is drawn

    @property
    def active(self) -> bool:
        """Whether a phase has begun and is not over."""
        return self._phase is not None and not self._phase.over

    def take(
        self,
        name: str,
        done: int,
        total: int,
        note: str,
        now: float,
        *,
        moved: tuple[int, int] | None = None,
    ) -> None:
        """Note that phase `name` has reached `done` of `total`; end an earlier phase that is not over.

        moved: how many bytes have been sent or fetched, and how many there are.
        """
        phase = self._phase
        if phase is None or phase.name != name or (phase.over and done < total):
            self.leave(now)
            phase = self._phase = _Phase(name, now)
            self.training &= name != "fetching"  # no log comes any more
            if name == "training":
                self.training = True
                tasks = (f" {counted(total, 'task')}", "dim")
                self._print(Text.assemble(("training", "bold"), tasks, (_behind(note), "dim")))
        if phase.over:
            return
        phase.done, phase.total, phase.note, phase.moved = done, total, note, moved
        if moved is not None and phase.first_moved is None:
            phase.first_moved = (now, moved[0])
        if done < total:
            return
        phase.over = True
        if name in ("training", "fetching", "shipping"):
            return  # the lines that follow say more
        past = over(name, done, total)
        took = "" if phase.began == now else f" in {duration(now - phase.began)}"
        self._print(Text.assemble((f"{self._pen.marks.ok} ", "green"), past, (took + _behind(note), "dim")))

    def leave(self, now: float) -> None:
        """End a phase that the next phase, or the end of the command, cuts short."""
        phase = self._phase
        if phase is None or phase.over or phase.name == "training":
            return
        phase.over = True
        if phase.name == "waiting":
            return  # the error that follows says why the wait failed
        text = over(phase.name, phase.done, phase.total)
        took = f" after {duration(now - phase.began)}"
        missing = "" if phase.name == "fetching" else "not "  # the note of `fetching` says how much has come
        lacking = f", {missing}{phase.note}" if phase.note else ""
        self._print(Text.assemble((f"{self._pen.marks.warn} ", "yellow"), text, (took, "dim"), lacking))

    def says(self, line: str) -> None:
        """Note the last line of the program on a host that does the work of this phase."""
        if self._phase is not None:
            self._phase.line = line

    def wait(self, free: int, needed: int, count: str, details: Sequence[str], now: float) -> None:
        """Note how far a wait for GPUs is, and what it waits for."""
        # Enough GPUs may be free, but not where they fit; at `needed` of `needed` the phase would be over.
        self.take("waiting", min(free, needed - 1), needed, count, now)
        if self._phase is not None:
            self._phase.details = details

    def tell_slow(self, now: float) -> float | None:
        """Print that a step still goes on, if it is time; return in how many seconds it will be.

        On a terminal the live line says so; only why is printed, once.
        """
        phase = self._phase
        if phase is None or phase.over or self.training or phase.name == "waiting":
            return None
        why = _SLOW.get(phase.name, "")
        if self._pen.columns is not None and (phase.told_at_s or not why):
            return None
        due_s = 2 * phase.told_at_s or _SLOW_S
        if (left_s := phase.began + due_s - now) > 0:
            return left_s
        phase.told_at_s = due_s
        mark = self._pen.marks.warn if why else " "
        since = f"{mark} still {going_on(phase.name)} after {duration(now - phase.began)}"
        what = phase.line if phase.name == "fetching" else phase.note or phase.line
        of = f": {what}" if what else ""
        self._print(Text(f"{since}{of}{f'; {why}' if why else ''}", "yellow" if why else "dim"))
        return due_s

    def live_lines(self) -> list[Text]:
        """Return the lines for a phase that is not over, each as wide as the terminal, less one column, at most."""
        phase, now = self._phase, time.monotonic()
        if self.training or phase is None or phase.over:
            return []
        if self._spinner is None:  # one for all: a new one begins with its first frame
            self._spinner = Spinner(self._pen.marks.spinner, style="cyan")
        spinner = self._pen.text(self._spinner.render(now))
        lines = self._wait_lines(phase, spinner, now) if phase.details else [self._line(phase, spinner, now)]
        if phase.line:
            lines.append(Text(f"  {phase.line}", "dim"))
        return [self._fitted(line) for line in lines]

    def _line(self, phase: _Phase, spinner: Text, now: float) -> Text:
        columns = self._pen.columns or 0
        moved, whole = phase.moved or (phase.done, phase.total)
        bar = ProgressBar(
            total=max(1, whole),
            completed=moved,
            width=_BAR_COLUMNS[columns < _ROOMY_COLUMNS],
            style="dim",
            complete_style="cyan",
            finished_style="cyan",
        )
        parts = [spinner, going_on(phase.name), self._pen.text(bar), f"{phase.done}/{phase.total}"]
        line = Text.assemble(*(piece for part in parts for piece in (part, " ")))
        details = [
            duration(now - phase.began),
            _speed(phase, now),
            "" if phase.name == "fetching" else phase.note,
        ]
        return line.append("  ".join(filter(None, details)), "dim")

    def _wait_lines(self, phase: _Phase, spinner: Text, now: float) -> list[Text]:
        """A wait has no bar: who is ahead, and who has the GPUs, is what the user wants to know."""
        place, *others = phase.details
        shown = others if len(others) <= _DETAILS else others[: _DETAILS - 1]
        line = Text.assemble(spinner, f" {going_on(phase.name)} ", (duration(now - phase.began), "dim"))
        line.append(f"  {phase.note}; {place}")
        more = [f"and {len(others) - len(shown)} more"] if shown is not others else []
        return [line, *(Text(f"  {text}", "dim") for text in (*shown, *more))]

    def _fitted(self, line: Text) -> Text:
        line = cut(line, (self._pen.columns or 0) - 1, self._pen.marks.more)
        line.no_wrap = True
        return line


def _speed(phase: _Phase, now: float) -> str:
    """`34.5 MiB of 90.1 MiB  12.0 MiB/s  5s left`; the time once it can be told."""
    if phase.moved is None or phase.first_moved is None:
        return ""
    moved, whole = phase.moved
    since, before = phase.first_moved
    parts = [f"{amount(moved)} of {amount(whole)}"]
    if now - since >= 1 and moved > before:
        per_s = (moved - before) / (now - since)
        parts.append(f"{amount(int(per_s))}/s")
        if moved < whole:
            parts.append(f"{duration((whole - moved) / per_s)} left")
    return "  ".join(parts)


def _behind(note: str) -> str:
    return f"  {note}" if note else ""
