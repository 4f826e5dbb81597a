"""What may be shown of a text; pure.

A text from elsewhere (a host, a task, a file, another user) must not act on the terminal, forge a row, or be read in
another order than it is stored: `printable` and `one_line` return what may be shown of it.
"""

from __future__ import annotations

import re

# C0 but for tab and newline, DEL, C1, the bidirectional controls that reorder what is read, and lone surrogates:
# no encoding has them, and some error handlers turn them into the raw byte of a C1 control.
SPECIAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    # OSC, DCS: titles, links.  Another one begins a new sequence, as on a terminal; else a line of nothing but
    # beginnings would be read to its end once for each.
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # every other sequence
    "|" + SPECIAL.pattern
)
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_SILENT = "\x07\x1b\r"  # a bell, a broken sequence, a stray return: nothing to read in them
_ENDS = re.compile("[\n\u2028\u2029]")
_ENDS_SHOWN = {"\n": "\\n", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def printable(text: str, *, colour: bool = False) -> str:
    """Return `text` without anything that acts on a terminal; newlines and tabs stay.

    Escape sequences are removed, other control characters shown as `\\x00`.  With `colour`, SGR
    sequences (colours, bold) stay, and are reset at the end.
    """
    if not SPECIAL.search(text):
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
    if not SPECIAL.search(text):
        return text
    return _ESCAPE.sub(lambda found: found[0] if _SGR.fullmatch(found[0]) else _shown(found), text)


def _shown(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) > 1 or found in _SILENT:
        return ""
    return f"\\x{ord(found):02x}" if found < "\u0100" else f"\\u{ord(found):04x}"
