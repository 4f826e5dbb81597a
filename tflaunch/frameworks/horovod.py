"""Horovod: what `horovodrun --gloo` would set, and the rendezvous that its processes meet by.

**A task is a host with one process**, as of PyTorch (torch.py says why): `hvd.local_rank()` is 0 in each, so that
`gpus[hvd.local_rank()]` is the task's own GPU, the only kind that it sees.  HOROVOD_HOSTNAME is a label, one for each
task; it need not resolve.

HOROVOD_GLOO_IFACE is left out where the interface is not known: one that does not exist ends the task.
"""

from __future__ import annotations

from tflaunch.frameworks.framework import Framework, Rank

RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
# For the meeting, and then for each answer of a peer.  Horovod's own 30 s are less than it may take until all tasks
# have imported TensorFlow, and would end the peers of a frozen task before the watchdog has seen which one it is.
LIMIT_S = 600
# Which of Horovod's modules calls what Keras 3 lacks.
BY_KERAS_2 = frozenset({"horovod.tensorflow.keras", "horovod.keras"})
KERAS_ADVICE = (
    "give the hosts TensorFlow 2.15 or older, or use horovod.tensorflow with a training loop of your own"
)


def _environment(rank: Rank) -> dict[str, str]:
    number, size = str(rank.rank), str(rank.size)
    found = {
        "HOROVOD_RANK": number,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": number,
        "HOROVOD_CROSS_SIZE": size,
        "HOROVOD_HOSTNAME": f"rank-{number}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": rank.address.strip("[]"),
        RENDEZVOUS_PORT: rank.port,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(LIMIT_S),
    }
    # Else a process tells the others the address to which its host's own name leads: often 127.0.0.1.
    if rank.interface:
        found["HOROVOD_GLOO_IFACE"] = rank.interface
    return found


FRAMEWORK = Framework(
    name="horovod",
    title="Horovod",
    packages=("horovod",),
    variables=frozenset({"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK"}),
    launching=frozenset({"horovod"}),
    by_rank=True,
    by_host=True,
    rendezvous=RENDEZVOUS_PORT,
    environment=_environment,
)
