"""Signs, colours, and a pen that renders lines as text for one stream."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from rich.console import RenderableType

from tflaunch.console.safe_text import Console, Text, hung, paragraph
from tflaunch.documents.writer import Stream
from tflaunch.protocol.job import TaskId

ROWS = 24  # assumed for a terminal that does not report its height
PIPE_COLUMNS = 200  # assumed for a pipe, where rich needs a width
_LEAST_COLUMNS = 20
_TRAILING = re.compile(r"(?<! ) +\n")  # the padding of a table's last column

# Okabe and Ito's colours, which colour-blind people can tell from each other; without black, and with yellow and
# blue changed so that they can be read on white and on black.
_PALETTE = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#3b82c4", "#d55e00", "#b8a800", "#8c8cd9")
# Colours of the same palette, for states.
GOOD, BUSY, BAD, WARN = "#009e73", "#56b4e9", "bold #d55e00", "#e69f00"


@dataclass(frozen=True)
class Marks:
    """The signs that lines are drawn with."""

    ok: str = "✓"
    bad: str = "✗"
    warn: str = "!"
    bar: str = "│"
    dot: str = "·"
    more: str = "…"
    next: str = "→"
    live: str = "●"
    wait: str = "○"
    spinner: str = "dots"  # of rich
    full: str = "━"
    half: str = "╸"
    empty: str = "─"
    times: str = "\u00d7"
    degree: str = "°"
    blocks: str = "▁▂▃▄▅▆▇█"  # from low to high
    gpus: Mapping[str, str] = field(  # by the GPU's state
        default_factory=lambda: MappingProxyType(
            {"free": "○", "busy": "●", "leased": "◐", "promised": "◌", "broken": "✗", "mig": "◇"}
        )
    )

    @property
    def all(self) -> str:
        """All signs, and one of the spinner's."""
        signs = (getattr(self, each.name) for each in fields(self) if each.name not in ("spinner", "gpus"))
        return "".join((*signs, *self.gpus.values(), "⠋"))


UNICODE = Marks()
ASCII = Marks(  # where the stream's encoding lacks one of them
    **{"ok": "ok", "bad": "x", "bar": "|", "dot": "-", "more": "...", "next": "->", "live": "*", "wait": "o"},
    **{"spinner": "line", "full": "=", "half": "=", "empty": "-", "times": "x", "degree": "C"},
    blocks="_.-~=+*#",
    gpus={"free": "o", "busy": "*", "leased": "+", "promised": ":", "broken": "x", "mig": "#"},
)


@dataclass
class Sheet:
    """What a page is drawn on: how wide it is, and the signs that it can show."""

    columns: int | None = None  # None: a pipe or a file, which takes lines of any length
    marks: Marks = UNICODE


class Pen:
    """Turns lines into text for one stream, as wide and as colourful as that stream takes."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.look_again()

    def look_again(self) -> None:
        """See anew what the stream is: a terminal, a pipe or a file, and which signs it takes."""
        stream = self.stream
        # Not the stream's own file: rich would write to it, if only an empty string, and fail when it fails.
        page = io.TextIOWrapper(io.BytesIO(), encoding=stream.encoding)
        self.console = Console(file=page, force_terminal=stream.terminal or None)
        self.marks = UNICODE if stream.can_show(UNICODE.all) else ASCII
        self.colour = self.console.color_system is not None and not self.console.no_color

    @property
    def columns(self) -> int | None:
        """How wide the terminal is now, for a window may be resized; None when there is none."""
        columns = self.stream.size()[0]
        return max(_LEAST_COLUMNS, columns) if columns else None

    @property
    def rows(self) -> int:
        """How high the terminal is now."""
        return self.stream.size()[1] or ROWS

    @property
    def sheet(self) -> Sheet:
        """The terminal as it is now, to draw a page on."""
        return Sheet(self.columns, self.marks)

    def render(self, line: Text) -> str:
        """Return a line as text for the stream; a terminal's width wraps it, unless it has `no_wrap`."""
        columns = self.columns
        # As rich would make it, which takes many times as long.
        if columns is None and not self.colour and "\t" not in line.plain:
            return _TRAILING.sub("\n", f"{line.plain}\n")
        if columns and not line.no_wrap:
            line = hung(line, columns)
        self.console.width = columns or PIPE_COLUMNS
        with self.console.capture() as captured:
            self.console.print(line, soft_wrap=True)
        return _TRAILING.sub("\n", captured.get())

    def text(self, renderable: RenderableType) -> Text:
        """Return what rich draws in one line (a bar, for example) as a Text."""
        parts = self.console.render(renderable)
        return Text.assemble(*((part.text, part.style) for part in parts if part.text != "\n"))


def whole(text: str, style: str = "") -> Text:
    """Make a line that only the terminal wraps: a path or a command, to be copied in one piece."""
    return Text(text, style, no_wrap=True)


def hint(text: str, marks: Marks) -> Text:
    """Make the line that names the next step to take."""
    return paragraph(f"  {marks.next} {text}", style="cyan")


def task_colour(task: TaskId) -> str:
    """Return the task's colour; it depends on the task's name alone, so it is the same in every run.

    Workers count from the front of the palette and the other jobs from its end, so that the first few of
    each differ.
    """
    if task.job == "worker":
        return _PALETTE[task.index % len(_PALETTE)]
    first = -1 if task.job == "ps" else zlib.crc32(task.job.encode())
    return _PALETTE[(first - task.index) % len(_PALETTE)]
