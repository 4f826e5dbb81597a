"""What there is to say of a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rank:
    """A task as one of the processes that decide the end of a run; the first of them is rank 0."""

    rank: int
    size: int  # how many ranks there are
    in_job: int  # its index among the tasks of its job
    job_size: int
    address: str  # of rank 0: where the others meet it
    port: str
    interface: str  # of the network by which its peers reach its host; "" where that is not known


def _none(_rank: Rank) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Framework:
    """A framework: how its programs are known, and how its tasks are started."""

    name: str  # --framework NAME, and the module that its programs import
    title: str
    packages: tuple[str, ...]  # whose versions are told when a task fails
    other_names: Mapping[str, str] = field(
        default_factory=dict
    )  # of a package, as some of its builds are called
    # Words in the text of a program that its own launcher starts.
    # Names that read the variables of that launcher: one word, or two with a dot, as the text has them:
    # `jax.distributed` is in `jax.distributed.initialize()` and in `from jax.distributed import initialize`.
    names: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    launching: frozenset[str] = frozenset()  # packages that read them; to import one is enough
    # It has a launcher of its own, so that its programs take no cluster flags; there are no parameter servers, and
    # only rank 0 listens on its port: the others meet it there.
    by_rank: bool = False
    shares_port: bool = False  # rank 0 opens its port with SO_REUSEADDR alone
    by_host: bool = False  # the ranks of a host follow each other
    # The variable with the port of a store at which its tasks meet: the agent of rank 0 serves it (agent/tasks/
    # rendezvous.py), at rank 0's own port; "" for none.
    rendezvous: str = ""
    environment: Callable[[Rank], dict[str, str]] = _none  # what its own launcher would set
