"""The job of Slurm that tflaunch is started in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tflaunch.hosts import expand
from tflaunch.inputs import batch_job
from tflaunch.protocol.errors import UsageError


class InJob:
    """The job of Slurm that this process is part of."""

    def __init__(self, job: str, nodes: Sequence[str], environ: Mapping[str, str]) -> None:
        self.job, self.nodes, self._environ = job, nodes, environ

    @classmethod
    def here(cls, environ: Mapping[str, str]) -> InJob:
        """That job.  Raises UsageError outside of jobs."""
        nodes, job = batch_job.slurm_nodes(environ), environ.get("SLURM_JOB_ID", "")
        if not nodes or not job:
            raise UsageError(
                "slurm: how many slots? none are named, and this is no job: SLURM_JOB_NODELIST is not set",
                "from a login node: slurm:4x8,partition=NAME; `slurm:` alone is for salloc and sbatch",
            )
        return cls(job, expand(nodes), environ)

    def allotted(self) -> dict[str, dict[str, Any]]:
        """How many workers each node has, as the job says, and whether it has GPUs.  Raises UsageError."""
        try:
            given = batch_job.slurm(self._environ, self.nodes)
        except ValueError as error:
            raise UsageError(f"slurm: {error}", "run this inside the job whose nodes these are") from None
        return {
            node: {"slots": each.slots, "by": each.slots_by, "gpus": each.gpus != 0}
            for node, each in zip(self.nodes, given, strict=True)
        }
