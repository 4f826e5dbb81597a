"""The directory of a run that has each Python of a task run tflaunch.in_task.stacks_site: it is first on PYTHONPATH."""

import os

from tflaunch.agent.host.journal import note


def site(path: str) -> str:
    """The directory for the tasks' PYTHONPATH, in the run's directory `path`; "" where there can be none."""
    place = os.path.join(path, "python")
    return "" if ":" in place else place


def put(path: str) -> str:
    """Make that directory, and return it; "" if that fails: the task starts without."""
    from tflaunch.in_task.stacks_site import SITE

    place = site(path)
    file = os.path.join(place, "sitecustomize.py")
    if not place or os.path.exists(file):
        return place
    try:
        os.mkdir(place, 0o700)
        with open(os.open(file + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as text:
            text.write(SITE)
        os.rename(file + ".new", file)
    except OSError as error:
        note("no live stacks: %s" % error)
        return ""
    return place


def prefix(path: str) -> str:
    """Lines of shell that put that directory first on PYTHONPATH; "" where there is none."""
    place = put(path)
    quoted = "'" + place.replace("'", "'\\''") + "'"
    lines = 'PYTHONPATH=%s"${PYTHONPATH:+:$PYTHONPATH}"\nexport PYTHONPATH\n'
    return lines % quoted if place else ""
