"""How many GPUs of this host one user may hold: what root says in /etc/tflaunch/config.toml here.

Leases are cooperative, and so is this: it keeps an honest user's runs within the limit.
"""

import os
import stat

from tflaunch.agent.files.rundir import HostError
from tflaunch.agent.gpus.leases import user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional

PATH = os.path.join(os.environ.get("TFLAUNCH_ETC") or "/etc/tflaunch", "config.toml")
KEY = "max_gpus_per_user_per_host"
DIGITS = 7
LARGEST = 4 << 20  # bytes of the file; the launcher takes no larger one


def most() -> "Optional[int]":
    """The limit, None where there is none; raises HostError for a file that does not say clearly."""
    try:
        descriptor = os.open(PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(
            "%s: %s" % (PATH, os.strerror(error.errno or 0)), "root may: chmod 644 %s" % PATH
        ) from error
    with open(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.getuid()) or info.st_mode & 0o022:
            raise HostError(
                "%s is not root's alone: it is %s's, with the mode %04o"
                % (PATH, user_name(info.st_uid), stat.S_IMODE(info.st_mode)),
                "root may: chown root %s; chmod 644 %s" % (PATH, PATH),
            )
        text = file.read(LARGEST).decode("utf-8", "replace")
    return _said(text)


def _said(text: str) -> "Optional[int]":
    """The value of KEY, which stands before the first table; Python 3.8 has no parser of TOML."""
    quotes = ""  # that a text of several lines has begun with
    for number, line in enumerate(text.splitlines(), 1):
        if not quotes:
            if line.lstrip().startswith("["):
                return None
            if line.lstrip().startswith("#"):
                continue
            name, _, value = line.partition("=")
            if name.strip().strip("\"'") == KEY:
                value = value.partition("#")[0].strip()
                if not (value.isascii() and value.isdecimal() and len(value) < DIGITS):
                    raise HostError("%s:%d: %s is no whole number: %s" % (PATH, number, KEY, value[:40]))
                return int(value)
        quotes = _quotes_after(line, quotes)
    return None


def _quotes_after(line: str, quotes: str) -> str:
    """The mark of the text of several lines that goes on behind this line, "" for none."""
    while True:
        marks = [(line.find(mark), mark) for mark in ('"""', "'''") if mark in line and quotes in ("", mark)]
        if not marks:
            return quotes
        at, mark = min(marks)
        quotes = "" if quotes else mark
        line = line[at + 3 :]


def held(devices: "Iterable[Dict[str, Any]]", run: str) -> int:
    """How many of these devices other runs of this user hold, those that only plan aside."""
    me = user_name(os.getuid())
    leases = [device.get("lease") for device in devices]
    return sum(
        bool(lease and lease["user"] == me and lease["run"] not in ("", run) and not lease["planning"])
        for lease in leases
    )


def check(wanted: int, others: int) -> None:
    """Raise HostError if a run would keep so many GPUs beside those of this user's other runs."""
    limit = most() if wanted else None
    if limit is not None and wanted + others > limit:
        raise HostError(
            "this run takes %d of this host's GPUs, and your other runs hold %d: a user may hold %d in all (%s)"
            % (wanted, others, limit, PATH),
            "wait until one of your runs ends: --wait",
        )
