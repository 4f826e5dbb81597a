"""stdout, for a result that is shown at once: `ps`, `status`, `check`, `clean`, `schema`."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tflaunch.console.pen import Pen, Sheet
from tflaunch.console.safe_text import Text
from tflaunch.documents.writer import Stream, dumb, to_json, write_result
from tflaunch.text.safe import one_line


class Screen(Sheet):
    """stdout, as wide as it is now."""

    def __init__(self) -> None:
        self._pen = Pen(Stream(sys.stdout or io.StringIO()))
        super().__init__(self._pen.columns, self._pen.marks)

    def show(self, lines: Sequence[Text]) -> None:
        """Print these lines without wrapping them: each fits stdout, or is to be copied."""
        for line in lines:
            line.no_wrap = True
        write_result("".join(map(self._pen.render, lines)))

    def write_json(self, value: Any) -> None:
        """Print a value as JSON, in one line."""
        write_result(to_json(value) + "\n")

    def write_rows(self, rows: Iterable[str]) -> None:
        """Print each in a line of its own, for programs."""
        write_result("".join(f"{one_line(row)}\n" for row in rows))


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """In the block, a reader of stdout that goes away when it has enough, as `| head` does, is no error."""
    with contextlib.suppress(BrokenPipeError):
        yield


def reads_keys() -> bool:
    """Whether keys come from the terminal, and stderr, to which textual writes, leads there; and it can be drawn on."""
    return not dumb() and all(
        stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__)
    )
