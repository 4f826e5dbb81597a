"""The names that users give runs."""

from __future__ import annotations

import re

from tflaunch.protocol.errors import UsageError
from tflaunch.runs.record_list import list_runs
from tflaunch.runs.run_ids import name_of

# As new_run_id leaves it; the rest of an id is a dash and six characters.
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LONGEST = 33


def check_name(name: str) -> str:
    """Return `name` when a new run may have it; raises UsageError.

    While a launcher on this machine runs a run of that name, no other may have it: `tflaunch logs NAME` means one run.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"--name {name[:60]}: not a name",
            f"a name is 1 to {_LONGEST} of a-z and 0-9, with single dashes between them: --name mnist-big",
        )
    for info in list_runs():
        if info.status == "running" and name_of(info.run_id) == name:
            raise UsageError(
                f"--name {name}: {info.run_id} runs and has that name",
                f"tflaunch stop {info.run_id}, or another name",
            )
    return name
