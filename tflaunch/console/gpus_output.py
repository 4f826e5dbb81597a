"""What `tflaunch gpus` puts on stdout: the table for people, a live view of it, or data."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import ConsoleDimensions, Group
from rich.live import Live

from tflaunch.console.gpus_page import GpusView
from tflaunch.console.pen import ASCII, ROWS, UNICODE, Marks
from tflaunch.console.safe_text import Console, Text
from tflaunch.console.screen import reads_keys
from tflaunch.documents.writer import Stream, dumb, to_json, unscreened, write_result
from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions.group import Stopped
from tflaunch.survey.gpu_overview import Answer, Sort, WantedGpus, document, in_one_line, look, table
from tflaunch.survey.survey import Survey

PIPE_COLUMNS = 160  # for a file or a pipe, which take lines of any length

Form = Literal["", "topology", "json", "csv", "oneline"]  # "": the table


class GpusOutput:
    """Shows the answers of a survey on stdout."""

    def __init__(self, survey: Survey, wanted: WantedGpus, sort: Sort, form: Form) -> None:
        self._survey = survey
        self._wanted = wanted
        self._sort = sort
        self._form = form
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        # Unscreened, because a live view moves the cursor; the lines that it draws are harmless.
        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
        self._console = Console(file=unscreened(sys.stdout), width=width)
        self._live = self._console.is_terminal and not dumb()
        columns, rows = Stream(sys.stdout).size()
        if self._console.is_terminal and dumb() and columns:
            # rich takes each of these for 80 wide
            self._console.size = ConsoleDimensions(columns, rows or ROWS)

    def once(self) -> Mapping[str, ConnectError]:
        """Ask all hosts, show their answers, and return the hosts that did not answer. Raises Stopped."""
        asking = self._survey.once()
        if self._live and self._form in ("", "topology"):  # something to see while slow hosts answer
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                for _ in asking:
                    live.update(self._frame(""), refresh=True)
        else:
            for _ in asking:
                pass
        answers = self._survey.answers()
        self._print(answers)
        return look(answers).unreachable

    def again_and_again(self, every_s: float) -> None:
        """Ask all hosts and show the answers every `every_s` seconds until Ctrl-C. Raises Stopped for SIGTERM."""
        live_table = self._live and not self._form
        try:
            if live_table and reads_keys():
                from tflaunch.console.gpu_watch.survey_watch import watch_gpus  # loads textual

                watch_gpus(self._survey, self._wanted, self._sort, every_s, self._marks())
                return
            watching = self._survey.watch(every_s)
            if live_table:
                with Live(console=self._console, auto_refresh=False, screen=True) as live:
                    for _ in watching:
                        live.update(self._frame(f"every {every_s:g} s, Ctrl-C ends it"), refresh=True)
            for over in watching:
                answers = self._survey.answers()
                if self._form == "json" and any(each.facts or each.error for each in answers):
                    answers = [
                        *map(_answered, answers)
                    ]  # a line for each refresh: no host holds up the others
                if over and all(each.facts or each.error for each in answers):
                    self._print(answers)
        except Stopped as stopped:
            if stopped.interrupted.signal != signal.SIGINT:
                raise

    def _view(self) -> GpusView:
        return GpusView(self._console.width, self._marks())

    def _marks(self) -> Marks:
        try:
            UNICODE.all.encode(self._console.encoding)
        except UnicodeEncodeError:
            return ASCII
        return UNICODE

    def _frame(self, title: str) -> Group:
        overview = look(self._survey.answers(), self._wanted, self._sort)
        title = f"{time.strftime('%H:%M:%S')}  {title}" if title else "asking all hosts"
        lines = self._view().frame(overview, title, self._console.height - 1)
        return Group(*map(_whole, lines))

    def _print(self, answers: Sequence[Answer]) -> None:
        overview = look(answers, self._wanted, self._sort)
        match self._form:
            case "json":
                text = to_json(document(overview, answers, time.time())) + "\n"
            case "csv":
                text = table(overview)
            case "oneline":
                text = in_one_line(overview)
                text += "\n" if text else ""
            case form:
                view = self._view()
                lines = view.topology(overview) if form else view.page(overview)
                with self._console.capture() as captured:
                    self._console.print(*lines, sep="\n", no_wrap=True, crop=False)
                text = captured.get()
        write_result(text)


def _answered(answer: Answer) -> Answer:
    """The same, where a host without an answer has that as its error."""
    known = answer.facts or answer.error
    return answer if known else Answer(answer.host, error=ConnectError("it has not answered yet"))


def _whole(line: Text) -> Text:
    line.no_wrap = True
    return line
