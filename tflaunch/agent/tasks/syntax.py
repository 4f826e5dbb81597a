"""Whether the Python of the tasks can read their program: asked before any of them starts, by whoever waits at a gate.

What the launcher's own Python has read is readable by all of that minor version.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

UNREADABLE = 65  # what a gate ends with that found it so
REMEDY = "correct it, or name another Python there by `python:`, `venv:` or `conda:` in the hostfile"
_TOLD = "tflaunch: unreadable: "

# Run by any Python, an old one too; what goes wrong in another way than by what the file says, goes wrong in the task.
_READ = """\
import sys
name = sys.argv[1]
try:
    compile(open(name, "rb").read(), name, "exec", 0, 1)
except (SyntaxError, ValueError) as error:
    line, column = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
    text = (getattr(error, "text", "") or "").rstrip()
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    said = "%s:%d:%d: " % (name, line, column) if line else name + ": "
    said += "%s: %s" % (type(error).__name__, getattr(error, "msg", error))
    said += " (by Python %d.%d.%d there)" % sys.version_info[:3]
    if text.strip():
        said += "\\n    " + text.strip()[:200]
    getattr(sys.stdout, "buffer", sys.stdout).write(("tflaunch-unreadable " + said).encode("utf-8", "replace"))
"""

# In front of what says that it is ready.
_CHECK = """\
said=$("$1" -E -S -c %s %s </dev/null 2>/dev/null)
case $said in
"tflaunch-unreadable "*) printf '%s%%s\n' "${said#* }" >&2; exit %d ;;
esac
"""


def check(file: str) -> str:
    """The lines of shell by which the interpreter `$1` reads that file of the working directory, or all ends."""
    return _CHECK % (_quoted(_READ), _quoted(file), _TOLD, UNREADABLE)


def _quoted(text: str) -> str:  # `shlex` takes longer to load than an interpreter takes to read a program
    return "'%s'" % text.replace("'", "'\\''")


def told(log: str) -> str:
    """Of what such a gate has written, and a login profile before it, what the interpreter said; "" for nothing."""
    return log.rpartition(_TOLD)[2] if _TOLD in log else ""


def who_checks(requests: "List[Dict[str, Any]]", program: "Mapping[str, str]") -> "Dict[str, str]":
    """{task: file}: one of those that have the same interpreter, if it is not known what that can read."""
    seen = set()
    found = {}
    for request in requests:
        way = (
            request["argv"][0],
            request["env"].get("PATH"),
            *request["setup"],
            str(request.get("container") or ""),
        )
        if request["cwd"] is not None or way in seen or _knows(request, program["read_by"]):
            continue
        seen.add(way)
        found[request["id"]] = program["file"]
    return found


def _knows(request: "Dict[str, Any]", read_by: str) -> bool:
    """Whether its interpreter is this one, and of the version that has read the program."""
    if request["setup"] or request.get("container") or "PATH" in request["env"]:
        return False
    python = request["argv"][0]
    # One of a virtual environment is a link to that which it was made of.
    ours = python == "python3" or os.path.realpath(os.path.expanduser(python)) == os.path.realpath(
        sys.executable
    )
    return ours and read_by == "%d.%d" % sys.version_info[:2]
