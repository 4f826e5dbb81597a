"""What on this host may harm a run, beyond the facts that a plan needs; for `tflaunch check`.

The agent of a run looks, so that the answers hold for the tasks that it would start.
"""

import glob
import os
import re

from tflaunch.agent import host_facts, slot
from tflaunch.agent.host import foreign
from tflaunch.agent.net import nics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

# The directories of logind.conf: only the first such file counts.  In logind.conf.d all files count.
LOGIND = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
SETTINGS = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")


def look(directories: "List[str]") -> "Dict[str, Any]":
    """All fields of `checked`; looks at the disks of these `directories`."""
    return {
        "interfaces": interfaces(),
        "infiniband": sorted(map(os.path.basename, glob.glob("/sys/class/infiniband/*"))),
        "disks": [each for each in map(_disk, dict.fromkeys(directories)) if each],
        "logout": logout(),
    }


def interfaces() -> "List[Dict[str, Any]]":
    """The network interfaces that have addresses, loopback left out."""
    import ipaddress

    found = []
    for nic in nics.nics(host_facts.interface_addresses(), []):
        if nic["name"]:
            known = [ipaddress.ip_interface(each) for each in nic["networks"]]
            found.append(
                {
                    "name": nic["name"],
                    "addresses": [str(each.ip) for each in known],
                    "mtu": _number("/sys/class/net/%s/mtu" % nic["name"]),
                    "mbit_s": nic["mbit_s"],
                    "networks": [str(each.network) for each in known if each.version == 4],
                }
            )
    return found


def logout(root: str = "/") -> "Dict[str, Any]":
    """Whether systemd-logind kills what this process starts when the user logs out.

    With KillUserProcesses it kills every process in the scope of the session; lingering does not change that.
    """
    settings = _logind(root)
    user = foreign.user_name(os.getuid())
    only, exempt = settings["KillOnlyUsers"].split(), settings["KillExcludeUsers"].split()
    killing = settings["KillUserProcesses"].lower() in ("yes", "true", "on", "y", "t", "1")
    kills = killing and user not in exempt and (not only or user in only)
    session = re.search(r"/(session-[^/\n]+\.scope)", _text(os.path.join(root, "proc/self/cgroup")))
    return {
        "kills": bool(kills and session) and not slot.holder(),  # what is in a slot ends with the slot
        "session": session.group(1) if session else "",
        "user": user,
        "linger": os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)),
    }


def _logind(root: str) -> "Dict[str, str]":
    """The settings of logind.conf and of the files in logind.conf.d."""
    main = [os.path.join(root, place, "systemd/logind.conf") for place in LOGIND]
    dropped = {}  # type: Dict[str, str]  # by name: of several files with one name only the first counts
    for place in LOGIND:
        for path in glob.glob(os.path.join(root, place, "systemd/logind.conf.d/*.conf")):
            dropped.setdefault(os.path.basename(path), path)
    settings = {"KillUserProcesses": "no", "KillOnlyUsers": "", "KillExcludeUsers": "root"}
    first = next(filter(None, map(_text, main)), "")
    # The lines that are commented out in logind.conf are the defaults of this systemd.
    for text in (
        re.sub(r"(?m)^#(?=Kill)", "", first),
        first,
        *(_text(dropped[name]) for name in sorted(dropped)),
    ):
        for name, value in re.findall(r"(?m)^\s*(%s)\s*=(.*)$" % "|".join(SETTINGS), text):
            settings[name] = value.strip()
    return settings


def _disk(path: str) -> "Optional[Dict[str, Any]]":
    path = os.path.expanduser(path)
    if not foreign.answers(path):
        return None
    try:
        space = os.statvfs(path)
    except OSError:
        return None
    files = (
        min(space.f_favail, host_facts.MOST) if space.f_files else None
    )  # some file systems count no files
    return {
        "path": path,
        "free_bytes": min(space.f_bavail * space.f_frsize, host_facts.MOST),
        "free_files": files,
    }


def _number(path: str) -> "Optional[int]":
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
