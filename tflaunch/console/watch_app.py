"""A watch on the terminal.  textual reads the keys, knows the window and comes back after Ctrl-Z; a Drawing draws.

Nothing that a host sends reaches textual's markup: the one widget gives it whole, harmless cells.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from rich.console import COLOR_SYSTEMS
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tflaunch.console.cell_changes import Row, cells, changes, segments
from tflaunch.console.safe_text import Console, Text
from tflaunch.sessions.group import Stopped


class View(Protocol):
    """What the user looks at."""

    def take(self, look: Any) -> None:
        """Take what the hosts have said."""

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does, by textual's name of it; returns False when the watch is to end."""

    def paste(self, text: str) -> None:
        """Take pasted text."""


class Drawing(Protocol):
    """Draws what a View says."""

    def screen(self, columns: int, rows: int) -> list[Text]:
        """Return `rows` lines, each `columns` wide at most."""


class Looked(Message):
    """The hosts have said something."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look = look


class Canvas(Widget):
    """The whole screen, a line of cells for each of its rows."""

    screen_rows: Sequence[Row] = ()

    class Resized(Message):
        """It has another size."""

    def on_resize(self) -> None:
        """Have it drawn for its new size."""
        self.post_message(self.Resized())

    def render_lines(self, crop: Region) -> list[Strip]:
        """Give textual the rows; it asks when it must draw all of them."""
        lines = [
            self.screen_rows[number] if number < len(self.screen_rows) else ()
            for number in range(crop.y, crop.bottom)
        ]
        strips = [Strip(segments(line)).adjust_cell_length(crop.right) for line in lines]
        return [strip.crop(crop.x, crop.right) for strip in strips]


class WatchApp(App[None]):
    """Shows a View; `feed` is started once there is a screen."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; } Canvas { width: 100%; height: 100%; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, state: View, pages: Drawing, feed: threading.Thread | None = None) -> None:
        self.wire: LinuxDriver | None = None  # what leads to the terminal
        super().__init__(driver_class=_wired(self), ansi_color=True)
        self.state = state
        self._pages = pages
        self._feed = feed
        self.canvas = Canvas()
        self._styles = Console(file=io.StringIO())
        self.defect: Exception | None = None
        self.sent_bytes = 0  # by refreshes: changes alone
        self.refreshes = 0

    def compose(self) -> ComposeResult:
        """Make the one widget."""
        yield self.canvas

    def on_mount(self) -> None:
        """Begin to ask the hosts."""
        self.app_resume_signal.subscribe(self, lambda _: self.on_canvas_resized())
        if self._feed is not None:
            self._feed.start()

    def on_looked(self, message: Looked) -> None:
        """Take what the hosts have said."""
        with self._defects_kept():
            self.state.take(message.look)
            self._update()

    def on_key(self, event: events.Key) -> None:
        """Do what the key does."""
        event.prevent_default()
        event.stop()
        with self._defects_kept():
            if self.state.press(event.key, event.character):
                self._update()
            else:
                self.exit()

    def on_paste(self, event: events.Paste) -> None:
        """Take pasted text."""
        with self._defects_kept():
            self.state.paste(event.text)
            self._update()

    def on_canvas_resized(self) -> None:
        """Draw for the new size."""
        with self._defects_kept():
            self._anew()

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, without colours."""
        return ["".join(text for text, _ in row).rstrip() for row in self.canvas.screen_rows]

    @contextmanager
    def _defects_kept(self) -> Iterator[None]:
        """After a defect the watch ends, and the command fails as by any other: textual would show it its own way."""
        try:
            yield
        except Exception as error:
            self.defect = error
            self.exit()

    def _anew(self) -> None:
        self.canvas.screen_rows = self._rows()
        self.canvas.refresh()

    def _update(self) -> None:
        old, new = self.canvas.screen_rows, self._rows()
        if [*map(len, old)] != [*map(len, new)]:
            self._anew()
            return
        self.canvas.screen_rows = new
        text = changes(old, new, self._paint)
        self.refreshes += 1
        self.sent_bytes += len(text.encode())
        if text and self.wire is not None:
            self.wire.write(text)
            self.wire.flush()

    def _rows(self) -> list[Row]:
        width, height = self.canvas.size
        lines = self._pages.screen(width, height) if width and height else []
        return [self._colours(cells(line, width, self._styles)) for line in lines]

    def _colours(self, row: Row) -> Row:
        if not self.console.no_color:
            return row
        return [(text, style and style.without_color) for text, style in row]

    def _paint(self, text: str, style: Style | None) -> str:
        system = self.console.color_system
        return style.render(text, color_system=COLOR_SYSTEMS[system] if system else None) if style else text


def _wired(app: WatchApp) -> type[LinuxDriver]:
    """Return textual's driver for terminals, in a form that tells the app of itself."""

    class Wired(LinuxDriver):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            app.wire = self

    return Wired


def watch(state: View, pages: Drawing, looks: Iterable[Any], stop: Callable[[], None]) -> None:
    """Show these looks, which a thread of its own takes, until the user quits; after `stop` no look comes any more.

    Raises Stopped for SIGTERM, and what the looks raise.
    """
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for look in looks:
                app.post_message(Looked(look))
        except BaseException as error:
            errors.append(error)
        finally:
            app.call_from_thread(app.exit) if app.is_running else None

    feed = threading.Thread(target=ask, name="ask the hosts", daemon=True)
    app = WatchApp(state, pages, feed)
    with _signals_kept(), _no_fixed_size():
        app.run(mouse=False)
    stop()
    feed.join()
    if app.defect is not None:
        raise app.defect
    for error in errors:
        if not (isinstance(error, Stopped) and error.interrupted.signal == signal.SIGINT):
            raise error
    sys.stdout.flush()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what textual's driver does to signals."""
    numbers = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH, signal.SIGTTOU, signal.SIGTTIN)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_fixed_size() -> Iterator[None]:
    """Without these variables a window that is resized has its new size."""
    before = {name: os.environ.pop(name) for name in ("COLUMNS", "LINES") if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
