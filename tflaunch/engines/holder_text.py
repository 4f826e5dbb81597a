"""The texts that an engine sends to a slot: the slot holder with its settings, and the relay.

The slot holder's has secrets in it: it travels by private ways alone, such as a process's stdin or a file that nobody
else can read, never in words of a command or in the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tflaunch_task
from tflaunch.sessions.payload import lean
from tflaunch.slot import holder, relay, slurm_task, spark_feed, spark_task, yarn_task


def holder_text(settings: Mapping[str, Any]) -> str:
    """The program of a slot holder: `holder.DEFAULTS` says which settings there are.  Raises ValueError for others."""
    if unknown := settings.keys() - holder.DEFAULTS.keys():
        raise ValueError(f"a slot holder has no settings {sorted(unknown)}")
    # ASCII, so that no way there can spoil it.
    return _source(holder.__file__) + f"main(json.loads({json.dumps(dict(settings))!r}))\n"


def slurm_text(settings: Mapping[str, Any], *, managed: bool) -> str:
    """The program of the slot holders in a step of Slurm; its argument is the number of the slots' size.

    Each finds out by itself which slot it is and which GPUs it has, where `gpus` is "step": Slurm names them, where it
    manages any.
    """
    if unknown := settings.keys() - holder.DEFAULTS.keys():
        raise ValueError(f"a slot holder has no settings {sorted(unknown)}")
    said = json.dumps({**settings, "managed": managed})
    call = f"main(given(json.loads({said!r}), sys.argv[1]))\n"
    return _source(holder.__file__) + _source(slurm_task.__file__) + call


def yarn_text() -> str:
    """The program of the slot holders in containers of YARN, without a secret: `yarn_settings` has them."""
    call = "settings, listening = in_container()\nmain(settings, listening)\n"
    return _source(holder.__file__) + _source(yarn_task.__file__) + call


def yarn_settings(settings: Mapping[str, Any], **more: Any) -> str:
    """What stands in the file beside that program: the holder's settings, and what tflaunch.slot.yarn_task reads of it.

    Raises ValueError for settings that a slot holder has not.
    """
    if unknown := settings.keys() - holder.DEFAULTS.keys():
        raise ValueError(f"a slot holder has no settings {sorted(unknown)}")
    return json.dumps({"holder": dict(settings), **more})


def relay_text() -> str:
    """The program of a relay, for `python3 -c TEXT SOCKET COMMAND`."""
    return _source(relay.__file__)


def spark_task_text() -> str:
    """The program whose `hold` is what a task of Spark does in a slot."""
    return _source(spark_task.__file__)


def spark_feed_text() -> str:
    """The program whose `Feed` has the rows of a slot."""
    return _source(spark_feed.__file__)


def task_package() -> dict[str, str]:
    """The files of tflaunch_task, which tasks of a run in slots of Spark import: the text of each."""
    return {path.name: path.read_text("utf-8") for path in Path(tflaunch_task.__file__).parent.glob("*.py")}


def _source(file: str) -> str:
    return lean(Path(file).read_text("utf-8"))
