"""What may be shown of a text, and lines made of the raw bytes of a task's log: pure, no clock, no I/O.

A text from elsewhere (a host, a task, a file, another user) must not act on the terminal, forge a row, or be read in
another order than it is stored: `printable` and `one_line` return what may be shown of it.

A task writes what it likes: half a character, a line without an end, a progress bar that rewrites itself
ten thousand times, a sequence that clears the screen.  `LineAssembler` returns whole lines that cannot
disturb the terminal or their neighbours.  The log file keeps every byte; this is only for showing it.
"""

from __future__ import annotations

import codecs
import re

# More characters of a line than a user reads; bounds the memory for a task that never writes a newline.
MAX_LINE = 16_384

# C0 but for tab and newline, DEL, C1, the bidirectional controls that reorder what is read, and lone surrogates:
# no encoding has them, and some error handlers turn them into the raw byte of a C1 control.
_SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    # OSC, DCS: titles, links.  Another one begins a new sequence, as on a terminal; else a line of nothing but
    # beginnings would be read to its end once for each.
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # every other sequence
    "|" + _SPECIAL.pattern
)
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
# Bytes that occur in no special character: no control, and no first byte of U+0080, U+0600, U+2000 and their like.
_PLAIN = bytes(
    each for each in range(256) if chr(each) in "\t\n" or (each >= 0x20 and each not in b"\x7f\xc2\xd8\xe2")
)
_SILENT = "\x07\x1b\r"  # a bell, a broken sequence, a stray return: nothing to read in them
_ENDS = re.compile("[\n\u2028\u2029]")
_ENDS_SHOWN = {"\n": "\\n", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def printable(text: str, *, colour: bool = False) -> str:
    """Return `text` without anything that acts on a terminal; newlines and tabs stay.

    Escape sequences are removed, other control characters shown as `\\x00`.  With `colour`, SGR
    sequences (colours, bold) stay, and are reset at the end.
    """
    if not _SPECIAL.search(text):
        return text
    if not colour:
        return _ESCAPE.sub(_shown, text)
    shown = screened(text)
    return shown + "\x1b[0m" if _SGR.search(shown) else shown


def one_line(text: str) -> str:
    """Return `printable(text)` for one row or field: a character that would end the line is shown as `\\n`."""
    text = printable(text)
    return _ENDS.sub(lambda end: _ENDS_SHOWN[end[0]], text) if _ENDS.search(text) else text


def screened(text: str) -> str:
    """Return `printable(text)` of a text that tflaunch has made: its colours stay, and nothing is added."""
    if not _SPECIAL.search(text):
        return text
    return _ESCAPE.sub(lambda found: found[0] if _SGR.fullmatch(found[0]) else _shown(found), text)


def _shown(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) > 1 or found in _SILENT:
        return ""
    return f"\\x{ord(found):02x}" if found < "\u0100" else f"\\u{ord(found):04x}"


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
        return bool(data.translate(None, _PLAIN)) and _SPECIAL.search(text) is not None

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
