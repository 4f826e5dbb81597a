"""What is read of a hostfile, and what is wrong in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tflaunch.hosts import Host, load
from tflaunch.protocol.errors import HostfileError

Write = Callable[[str], str]


def problems(source: str, **environ: str) -> list[str]:
    with pytest.raises(HostfileError) as caught:
        load(source, environ=environ)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def host(name: str, **settings: object) -> Host:
    return Host(name=name, **{"ssh_host": name, **settings})  # type: ignore[arg-type]
