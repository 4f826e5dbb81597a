"""The directory of a run that has each Python of a task run tflaunch.in_task.stacks_site: it is first on PYTHONPATH.

What a Python compiles of it, which takes a fifth of a short start, it keeps in the store, for the tasks of later runs.
"""

import os
import zlib

from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import CODE, PYTHON, replace


def site(path: str) -> str:
    """The directory for the tasks' PYTHONPATH, in the run's directory `path`; "" where there can be none."""
    place = os.path.join(path, PYTHON)
    return "" if ":" in place else place


def put(path: str) -> str:
    """Make that directory, and return it; "" if that fails: the task starts without."""
    from tflaunch.in_task.stacks_site import SITE

    place = site(path)
    file = os.path.join(place, "sitecustomize.py")
    if not place or os.path.exists(file):
        return place
    try:
        if not os.path.isdir(place):  # else an agent was killed that had made no more than that
            os.mkdir(place, 0o700)
        replace(file, SITE)
        _share(place, file, SITE)
    except OSError as error:
        note("no live stacks: %s" % error)
        return ""
    return place


def _share(place: str, file: str, text: str) -> None:
    """Have Pythons keep what they compile of that file beside shipped code; without, each compiles it anew."""
    # They take it for that of a file with the same date and size: so the date stands for the text.
    date = zlib.crc32(text.encode()) >> 1
    code = "../../../" + CODE
    try:
        os.utime(file, (date, date))
        if os.path.isdir(os.path.join(place, code)):
            os.symlink(code, os.path.join(place, "__pycache__"))
    except OSError:
        pass


def prefix(path: str) -> str:
    """Lines of shell that put that directory first on PYTHONPATH; "" where there is none."""
    place = put(path)
    quoted = "'" + place.replace("'", "'\\''") + "'"
    lines = 'PYTHONPATH=%s"${PYTHONPATH:+:$PYTHONPATH}"\nexport PYTHONPATH\n'
    return lines % quoted if place else ""
