"""How often the kernel has killed processes for want of memory: counters, to be compared between two times."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

CGROUPS = "/sys/fs/cgroup"


def counters() -> "Dict[str, int]":
    """{"host": kills since the boot, "cgroup": kills in the cgroup of the agent and its tasks}, as far as known."""
    found = {}
    host = number_after("/proc/vmstat", "oom_kill")
    if host is not None:
        found["host"] = host
    for path in (cgroup() + "/memory.events", cgroup(old="memory") + "/memory.oom_control"):
        kills = number_after(path, "oom_kill")
        if kills is not None:
            found["cgroup"] = kills
            break
    return found


def cgroup(old: str = "") -> str:
    """The directory of this process's cgroup, `old`: of that controller in a tree of the first version."""
    try:
        with open("/proc/self/cgroup") as table:
            for line in table:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if controllers == "" and not old:
                    return CGROUPS + path.rstrip("/")
                if old and old in controllers.split(","):
                    return "%s/%s%s" % (CGROUPS, old, path.rstrip("/"))
    except (OSError, ValueError):
        pass
    return CGROUPS + ("/" + old if old else "")


def number_after(path: str, word: str) -> "Optional[int]":
    """The number that follows `word` at the beginning of a line of that file; None for none."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(word + " ") or line.startswith(word + ":"):
                    return int(line[len(word) + 1 :].split()[0])
    except (OSError, ValueError, IndexError):
        pass
    return None
