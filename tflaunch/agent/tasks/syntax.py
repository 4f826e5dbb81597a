"""Whether the Python of the tasks can parse their program: some tasks check that before they wait at their gates.

The launcher's own Python has parsed it; so any Python of the same minor version can.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

UNREADABLE = 65  # the exit code of a gate whose Python cannot parse the program
REMEDY = "correct it, or name another Python there by `python:`, `venv:` or `conda:` in the hostfile"
_PREFIX = "tflaunch: unreadable: "

# Any Python runs this, an old one too.  Only an error in the file counts here; any other will show in the task.
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

# The gate runs this before it says that it is ready.
_CHECK = """\
said=$("$1" -E -S -c %s %s </dev/null 2>/dev/null)
case $said in
"tflaunch-unreadable "*) printf '%s%%s\n' "${said#* }" >&2; exit %d ;;
esac
"""


def check(file: str) -> str:
    """Lines of shell: the interpreter `$1` parses that file of the working directory, or the shell exits."""
    return _CHECK % (_quoted(_READ), _quoted(file), _PREFIX, UNREADABLE)


def _quoted(text: str) -> str:  # `shlex` takes longer to load than an interpreter takes to read a program
    return "'%s'" % text.replace("'", "'\\''")


def error_in(log: str) -> str:
    """What the interpreter said of the program, from the log of such a gate; "" if it is not there."""
    return log.rpartition(_PREFIX)[2] if _PREFIX in log else ""


def who_checks(requests: "List[Dict[str, Any]]", programs: "Mapping[str, Any]") -> "Dict[str, str]":
    """{task: file}: one task for each interpreter that may not be able to parse a program.

    `programs` maps a job to {file, read_by}, or None, and "" all jobs that are not in it.
    """
    seen = set()
    found = {}
    for request in requests:
        program = programs.get(request["id"].partition("/")[0], programs.get(""))
        if program is None:
            continue
        way = (
            program["file"],
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
    """Whether the task's interpreter is this very one, and of the version that has parsed the program."""
    if request["setup"] or request.get("container") or "PATH" in request["env"]:
        return False
    python = os.path.expanduser(request["argv"][0])
    if "/" not in python:  # in a slot the agent may be another one's
        places = [os.path.join(place, python) for place in os.environ.get("PATH", os.defpath).split(":")]
        python = next((each for each in places if os.path.isfile(each) and os.access(each, os.X_OK)), "")
    # The interpreter of a virtual environment is a link to the one that it was made from.
    return (
        os.path.realpath(python) == os.path.realpath(sys.executable)
        and read_by == "%d.%d" % sys.version_info[:2]
    )
