"""Lines made of the raw bytes of a task's log; pure, no clock, no I/O.

A task writes what it likes: half a character, a line without an end, a progress bar that rewrites itself
ten thousand times, a sequence that clears the screen.  `LineAssembler` returns whole lines that cannot
disturb the terminal or their neighbours.  The log file keeps every byte; this is only for showing it.
"""

from __future__ import annotations

import codecs

from tflaunch.text.safe import SPECIAL, printable

# More characters of a line than a user reads; bounds the memory for a task that never writes a newline.
MAX_LINE = 16_384

# Bytes that occur in no special character: no control, and no first byte of U+0080, U+0600, U+2000 and their like.
_PLAIN = bytes(
    each for each in range(256) if chr(each) in "\t\n" or (each >= 0x20 and each not in b"\x7f\xc2\xd8\xe2")
)


class LineAssembler:
    """Puts one task's log together from chunks cut anywhere, and hands out whole lines, each with its newline.

    Bytes that are not UTF-8 appear as `\\xff`.  Of a line that was rewritten with `\\r` the last state is
    shown.  Characters beyond `max_line` are counted, not kept.  With `raw`, control sequences are left
    alone (for JSON, which escapes them itself).
    """

    def __init__(self, *, colour: bool = False, raw: bool = False, max_line: int = MAX_LINE) -> None:
        self._colour = colour
        self._raw = raw
        self._max_line = max_line
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._held = ""  # the line that has no newline yet, at most max_line characters
        self._beyond = 0  # how many more it had
        self._returned = False  # its last character was "\r": what comes next replaces it
        self._rewritten = False  # "\r" was met in it: it may be a progress bar
        self._changed = False  # ... with a state that `progress` has not given yet
        self._given: str | None = None  # the last state that `progress` gave

    @property
    def rewriting(self) -> bool:
        """True when `progress` has a new state to show."""
        return self._rewritten and self._changed

    def feed(self, data: bytes) -> str:
        """Take the next bytes of the log; return the lines that they complete."""
        text = self._decode(data)
        first, end = text.find("\n") + 1, text.rfind("\n") + 1
        shown = ""
        if end:
            shown = self._complete(text[: first - 1]) + self._clean(data, text[first:end])
        self._hold(text[end:])
        return shown

    def progress(self) -> str | None:
        """Return the present state of a line that is being rewritten, or None when it has not changed."""
        if not self.rewriting:
            return None
        self._changed = False
        self._given = self._show()
        return self._given or None

    def end(self) -> str:
        """Return the last line if it had no newline; the assembler is as new afterwards."""
        self._hold(self._decode(b"", final=True))
        return self._complete("").lstrip("\n") if self._held or self._rewritten else ""

    # These look at the whole chunk: a look at each line would cost more than all the rest.

    def _clean(self, data: bytes, lines: str) -> str:
        """Whole lines of that chunk, as they are shown."""
        if not (self._special(data, lines) or self._long(lines)):
            return lines
        return "".join(map(self._line, lines.split("\n")[:-1]))

    def _line(self, line: str) -> str:
        if "\r" in line or "\b" in line or len(line) > self._max_line:
            return self._complete(line)
        return (line if self._raw else printable(line, colour=self._colour)) + "\n"

    def _special(self, data: bytes, text: str) -> bool:
        # `translate` takes a fifth of the time of a search, and mostly leaves nothing; what it leaves may be special.
        if self._raw:
            return b"\r" in data
        return bool(data.translate(None, _PLAIN)) and SPECIAL.search(text) is not None

    def _long(self, text: str) -> bool:
        # Whether a line may be longer than max_line: none is if every stretch of half that length has a newline.
        step = self._max_line // 2 or 1
        return any(text.find("\n", at, at + step) < 0 for at in range(0, len(text) - step, step))

    def _hold(self, text: str) -> None:
        """Add to the line that has no newline yet, as a terminal would: what follows a return replaces."""
        for number, piece in enumerate(text.split("\r")):
            if number:
                self._returned = self._rewritten = True
            if not piece or (self._returned and not printable(piece).strip()):
                continue  # blanks after a return wipe a progress bar: keep its last state, which says more
            if self._returned:
                self._held, self._beyond, self._returned = "", 0, False
            room = self._max_line - len(self._held)
            self._held += piece[:room]
            self._beyond += max(0, len(piece) - room)
            self._changed = True

    def _show(self) -> str:
        text = self._held
        if not self._raw:
            text = printable(_backspaced(text) if "\b" in text else text, colour=self._colour)
        if self._beyond:
            text += f" ... {self._beyond:,} more characters, see the log file"
        return text

    def _complete(self, text: str) -> str:
        self._hold(text)
        line = self._show()
        shown = "" if line == self._given else line + "\n"  # its end was shown already, as progress
        self._held, self._beyond, self._given = "", 0, None
        self._returned = self._rewritten = self._changed = False
        return shown


def _backspaced(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)
