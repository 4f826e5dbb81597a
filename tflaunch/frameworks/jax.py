"""JAX: what its cluster detection would find.

JAX (0.12) reads only JAX_COORDINATOR_ADDRESS by itself: `jax.distributed.initialize(num_processes=..., process_id=...)`
takes the other two as arguments.  JAX_LOCAL_DEVICE_IDS is not set: all GPUs that a task sees are its own.
"""

from __future__ import annotations

from tflaunch.frameworks.framework import Framework, Rank


def _environment(rank: Rank) -> dict[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": f"{rank.address}:{rank.port}",
        "JAX_NUM_PROCESSES": str(rank.size),
        "JAX_PROCESS_ID": str(rank.rank),
    }


FRAMEWORK = Framework(
    name="jax",
    title="JAX",
    packages=("jax", "jaxlib"),
    names=frozenset({"jax.distributed", "multihost_utils"}),
    variables=frozenset({"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"}),
    by_rank=True,
    environment=_environment,
)
