"""Finds the line of a log that says why its program ended: the last exception, or a fatal error of TensorFlow or absl.

It may stand far from the end: TensorFlow's graph errors end in a page of operations, and a crash in stacks.
"""

import re

LIMIT_BYTES = 256 * 1024  # of the end of a log are searched
_CUT = 300  # characters of the line are shown

# Characters of a line that are looked at: a whole log may be one line.
_SEEN = 1000
_TRACEBACK = re.compile(r"([ +|]*)(?:Exception Group )?Traceback \(most recent call last\):$")
_UNREADABLE = re.compile(r'  File "[^"]*", line \d+$')  # how Python shows a syntax error, without a traceback
_EXCEPTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:: .*|:?$)")
_LEVELS = (
    "DEBUG",
    "INFO",
    "NOTE",
    "NOTICE",
    "WARN",
    "WARNING",
    "ERROR",
    "CRITICAL",
)  # how a line of a log may begin
_FATAL = re.compile(
    r"FATAL Flags parsing error:"  # absl
    r"|(?:F\d{4} |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?: F )\S.*"  # TensorFlow's and absl's loggers
    r"|terminate called (?:after throwing|without an active)"
    r"|\S.*: symbol lookup error: "
    r"|\S.*: error while loading shared libraries: "
)
_WEAK = re.compile(r"Fatal Python error: ")  # what faulthandler says of a crash: the reason may stand above
_IGNORED = "Exception ignored in"  # an exception after the program's end, in a destructor


def last_error(log: str) -> str:
    """The line of the end of `log` that says why the program ended, cut to what can be shown; "" if there is none.

    Of chained exceptions the last one counts, of a message of several lines the first line.  An exception behind
    `Exception ignored in`, or faulthandler's line about a crash, counts only where there is no other.
    """
    strong = weak = ""
    indent = None  # of the traceback whose exception is still to come
    ignored = False  # that traceback follows `Exception ignored in`
    before = ""
    lines = log[-LIMIT_BYTES:].replace("\r", "\n").split("\n")
    for at, whole in enumerate(lines):
        line = whole[:_SEEN].rstrip()
        opened = _TRACEBACK.match(line)
        if opened or _UNREADABLE.match(line):
            indent = opened.group(1).replace("+", "|") if opened else ""
            ignored = before.startswith(_IGNORED)
        elif _FATAL.match(line):
            strong, indent = _with_detail(line, lines[at + 1 : at + 2]), None
        elif _WEAK.match(line):
            weak = line
        elif indent is not None and line.startswith(indent):
            said = line[len(indent) :]
            if _is_exception(said):
                indent = None
                if ignored:
                    weak = said
                else:
                    strong = said
        before = line or before
    found = strong or weak
    return found if len(found) <= _CUT else found[: _CUT - 4] + " ..."


def _is_exception(line: str) -> bool:
    """Whether that line, after a traceback, may be its exception; `loss: 0.3` comes from another thread."""
    name = line.partition(":")[0]
    return bool(_EXCEPTION.match(line)) and ("." in name or name[0].isupper()) and name not in _LEVELS


def _with_detail(line: str, after: "list[str]") -> str:
    """`line` with what the next line adds: `what()` of a C++ exception, the flag that absl found wrong."""
    detail = after[0][:_SEEN].strip() if after else ""
    if line.startswith("terminate called") and detail.startswith("what():"):
        return line + ": " + detail[len("what():") :].strip()
    if line == "FATAL Flags parsing error:" and detail:
        return line + " " + detail
    return line
