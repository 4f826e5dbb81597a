"""What to type for a package that tflaunch can use and does not bring."""

from __future__ import annotations


def beside_tflaunch(package: str, extra: str) -> str:
    """Return how a package of an extra comes into tflaunch's environment, whichever tool has made that.

    tflaunch is in no package index: its name is never one to install by.
    """
    return (
        f"put it beside tflaunch: pipx inject tflaunch {package}; or in a clone: uv tool install '.[{extra}]'"
    )
