"""How many GPUs of this host one user may hold: what root says in /etc/tflaunch/config.toml here.

Leases are cooperative, and so is this: it keeps an honest user's runs within the limit.
"""

import os
import stat

from tflaunch.agent.host.foreign import user_name
from tflaunch.agent.host.rundir import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional

PATH = os.path.join(os.environ.get("TFLAUNCH_ETC") or "/etc/tflaunch", "config.toml")
KEY = "max_gpus_per_user_per_host"
TOP = "root may move it to the top of the file"
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
    """The value of KEY.

    Python 3.8 has no parser of TOML.  So KEY must stand where every reader sees it alike: above tables and texts of
    several lines.  Elsewhere it is refused, not overlooked.
    """
    clear = True
    for number, line in enumerate(text.split("\n"), 1):
        name, _, value = line.partition("=")
        if name.strip().strip("\"'") == KEY:
            value = value.partition("#")[0].strip()
            if not clear:
                raise HostError(
                    "%s:%d: %s stands below a table or a text of several lines" % (PATH, number, KEY), TOP
                )
            if not (value.isascii() and value.isdecimal() and len(value) < DIGITS):
                raise HostError("%s:%d: %s is no whole number: %s" % (PATH, number, KEY, value[:40]))
            return int(value)
        clear = clear and not (line.lstrip().startswith("[") or '"""' in line or "'''" in line)
    return None


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
