"""The line of a log that says why its program ended: the last exception's, or a fatal one's of TensorFlow or absl.

What follows it may be long: TensorFlow's graph errors end in a page of operations, and a crash in stacks.
"""

import re

LIMIT_BYTES = 256 * 1024  # of the end of a log that are looked at
_CUT = 300  # characters that are shown

# At most so much of a line is looked at: a log may be one line.
_SEEN = 1000
_TRACEBACK = re.compile(r"([ +|]*)(?:Exception Group )?Traceback \(most recent call last\):$")
_UNREADABLE = re.compile(r'  File "[^"]*", line \d+$')  # how Python shows a syntax error, without a traceback
_EXCEPTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:: .*|:?$)")
_NONE = (
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
_IGNORED = "Exception ignored in"  # what Python met when all was over


def last_error(log: str) -> str:
    """That line of the end of a log, cut to what can be shown; "" when there is none.

    Of chained exceptions it is the last one's, of a message of several lines the first.  A line that `Exception
    ignored in` announces, or a crash's, counts only where nothing else does.
    """
    strong = weak = ""
    indent = None  # of the traceback that is open
    ignored = False  # it is one of those
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
    """Whether that line, behind a traceback, may be the exception's; `loss: 0.3` is another thread's."""
    name = line.partition(":")[0]
    return bool(_EXCEPTION.match(line)) and ("." in name or name[0].isupper()) and name not in _NONE


def _with_detail(line: str, after: "list[str]") -> str:
    """`what()` of C++ stands in the next line, and so does what absl found wrong."""
    detail = after[0][:_SEEN].strip() if after else ""
    if line.startswith("terminate called") and detail.startswith("what():"):
        return line + ": " + detail[len("what():") :].strip()
    if line == "FATAL Flags parsing error:" and detail:
        return line + " " + detail
    return line
