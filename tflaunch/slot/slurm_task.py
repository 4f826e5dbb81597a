"""What a task of Slurm knows of its slot: the settings that only it can tell its slot holder.

The slot holder's text has this behind it (tflaunch.engines.holder_text), and a call of `given` with what the launcher
has said of all slots.
"""

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping

KEPT = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_CONF", "SLURM_TMPDIR")  # tasks see these of Slurm's
# What would tell a library in a task of a step that it is no part of, or name cards by a number.
MISLEADING = ("SLURM*", "SRUN*", "PMI*", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def given(
    settings: "Dict[str, Any]", group: str, environ: "Mapping[str, str]" = os.environ
) -> "Dict[str, Any]":
    """The holder's settings, with what this task has: its place, and its GPUs.

    `gpus` of `settings`: "none", or "step" for those of the step; then `managed` says whether Slurm would name them.
    """
    settings = dict(settings)
    managed = settings.pop("managed", True)
    where = {
        "group": int(group),
        "node": environ.get("SLURMD_NODENAME", ""),
        "step": environ.get("SLURM_STEP_ID", ""),
        "task": int(environ.get("SLURM_PROCID", "0")),
    }
    settings["slot"] = json.dumps(where)
    if settings["gpus"] == "step":
        settings["gpus"] = gpus(environ, managed)
    names = [name for name in environ if name.startswith(("SLURM", "SRUN", "PMI")) and name not in KEPT]
    settings["clean"] = [*names, *MISLEADING[3:]]
    return settings


def gpus(environ: "Mapping[str, str]", managed: bool) -> str:
    """The step's GPUs, in words of a holder's settings; "" where nobody knows which."""
    masks = environ.get("CUDA_VISIBLE_DEVICES", "")
    if masks.startswith(("GPU-", "MIG-")):
        return "uuid:" + masks
    listed = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    if listed and listed.replace(",", "").isdigit():
        return "minor:" + listed
    return "none" if masks == "NoDevFiles" or (managed and not listed) else ""
