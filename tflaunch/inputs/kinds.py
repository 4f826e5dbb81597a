"""Find out whether a word names hosts, a job file or a program."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Literal

from tflaunch.inputs.engine_words import names_hosts

Kind = Literal["hosts", "job", "program", ""]
HEAD_BYTES = 64 * 1024  # of a file, enough to find out what it is
_OF_JOB = {"program", "module", "roles", "jobs"}
_OF_HOSTFILE = {"hosts", "defaults"}
_SCRIPT = (".py", ".pyc", ".pyz", ".sh", ".bash")
_HOST_LINE = re.compile(r"[\w.@\[\],-]+(:[0-9]+)?(\s+(max[_-])?slots\s*=\s*[0-9]+)*")
HOST_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def kind_of(word: str) -> Kind:
    """Return what a word is, judged by itself and by the file of that name; "" if that is unclear.

    Reads only the first HEAD_BYTES of a regular file, and nothing of a pipe, which can be read only once.
    """
    path = Path(word).expanduser() if word.startswith("~/") else Path(word)
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            return ""
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError):
        return _kind_of_missing(word)
    if word.endswith(_SCRIPT) or head.startswith(b"#!"):
        return "program"
    if b"\0" in head:
        return "program" if about.st_mode & stat.S_IXUSR else ""
    return _kind_of_text(head.decode("utf-8", "replace"), bool(about.st_mode & stat.S_IXUSR))


def is_job_file(word: str) -> bool:
    """Whether what stands for the program is meant as a job file."""
    return word.endswith((".yaml", ".yml")) or kind_of(word) == "job"


def _kind_of_missing(word: str) -> Kind:
    if word.endswith(_SCRIPT):
        return "program"
    if names_hosts(word) or word.endswith(("hosts.yaml", "hosts.yml", "hostfile")):
        return "hosts"
    if word.endswith(("job.yaml", "job.yml")):
        return "job"
    listed = (
        r"[\w.@-]*(\[[0-9,/-]+\][\w.-]*)+(:[0-9]+)?|[\w.-]+@[\w.-]+|[A-Za-z][\w.-]*:[0-9]+|[A-Za-z][\w.-]*"
    )
    parts = re.sub(r"\[[^\]]*\]", "[1]", word).split(",")
    sure = len(parts) > 1 or not HOST_NAME.fullmatch(word)
    return "hosts" if sure and all(re.fullmatch(listed, part) for part in parts) else ""


def _kind_of_text(text: str, executable: bool) -> Kind:
    lines = [line for line in text.removeprefix("\ufeff").splitlines() if line.strip()]
    said = [line.rstrip() for line in lines if not line.lstrip().startswith("#")]
    if not said:
        return ""
    if any(re.match(r"(import \w|from [\w.]+ import )", line) for line in said):
        return "program"
    keys = {found[1] for line in said if (found := re.match(r"""["']?(\w+)["']?\s*:(\s|$)""", line))}
    if said[0].startswith("{"):
        keys = set(re.findall(r"""[{,]\s*["']?(\w+)["']?\s*:""", text))
    if keys & _OF_HOSTFILE and not keys & {"program", "module"}:
        return "hosts"
    if keys & _OF_JOB:
        return "job"
    if re.match(r"-\s", said[0]):
        return "hosts"
    if all(_HOST_LINE.fullmatch(line.partition(" #")[0].strip()) for line in said):
        return "" if executable else "hosts"  # on some file systems everything is executable
    return "program" if executable else ""
