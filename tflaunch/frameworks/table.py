"""All frameworks that tflaunch starts, each by its own words."""

from __future__ import annotations

from collections.abc import Iterable

from tflaunch.frameworks import horovod, jax, tensorflow, torch
from tflaunch.frameworks.framework import Framework, Rank

AUTO = "auto"  # what the text of the program says; where that is unclear, the words of all
ALL = (tensorflow.FRAMEWORK, jax.FRAMEWORK, torch.FRAMEWORK, horovod.FRAMEWORK)
BY_NAME = {each.name: each for each in ALL}
CHOICES = (AUTO, *BY_NAME)
PACKAGES = (
    *(package for each in ALL for package in each.packages),
    "numpy",
    "protobuf",
)  # whose versions matter
OTHER_NAMES = {name: package for each in ALL for name, package in each.other_names.items()}
UNKNOWN = Framework(AUTO, "", ())  # for a program that may be of any


def named(name: str) -> Framework:
    """Return the framework of that name; UNKNOWN for "auto"."""
    return BY_NAME.get(name, UNKNOWN)


def started_by(words: Iterable[str]) -> str:
    """Return the name of the framework that these words of a program's text mean; "auto" where none, or several."""
    words = set(words)
    found = [each.name for each in ALL if words & (each.names | each.variables | each.launching)]
    return found[0] if len(found) == 1 else AUTO


def environment(name: str, rank: Rank) -> dict[str, str]:
    """Return the variables of that framework for a task; those of all for "auto", but for what needs a rendezvous."""
    unsaid = [each for each in ALL if not each.rendezvous]
    frameworks = [BY_NAME[name]] if name in BY_NAME else unsaid
    return {variable: value for each in frameworks for variable, value in each.environment(rank).items()}
