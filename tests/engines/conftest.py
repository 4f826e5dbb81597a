"""Fixtures of the tests with engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT
from tests.support.bed import Bed, FarLauncher
from tests.support.scheduler import Node, Scheduler


class OnSlots(FarLauncher):
    """`tflaunch` for a user of the plain engine."""

    scheduler: Scheduler

    def env(self, **more: str) -> dict[str, str]:
        return super().env(TFLAUNCH_ENGINES="plain=tests.support.plain", PYTHONPATH=str(ROOT), **more)

    def slots(self, sizes: str = "2", **settings: str) -> str:
        """The word for so many slots; `door="socket"` for the engine's own way into them."""
        said = {"at": str(self.scheduler.directory), **settings}
        return ",".join([f"plain:{sizes}", *(f"{key}={value}" for key, value in said.items())])

    def of_these(self, count: int = 2, door: Mapping[str, str] | None = None, **defaults: object) -> Path:
        """A hostfile of so many slots, whose tasks run with the Python of the tests; `door` as of the fixture."""
        path = self.directory / "slots.yaml"
        said = {
            "engine": "plain",
            "slots": [{"count": count}],
            "settings": {"at": str(self.scheduler.directory), "grace": 10, **(door or {})},
            "defaults": {"python": sys.executable, **defaults},
        }
        path.write_text(yaml.safe_dump(said))
        return path

    def close(self) -> None:
        """End what the test started; every slot must be free by itself."""
        for running in self._started:
            running.close()
        self.scheduler.wait_until_free()
        super().close()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that all nodes and the launcher's machine share."""
    place = tmp_path / "shared"
    place.mkdir()
    return place


@pytest.fixture
def scheduler(bed: Bed, tmp_path: Path, shared: Path) -> Iterator[Scheduler]:
    """The scheduler of the plain engine, with a node on each of two hosts of the bed."""
    hosts = bed.up(2, share=[str(shared)])
    nodes = [Node(host.name, host.inside(), host.inside()) for host in hosts]
    scheduler = Scheduler(tmp_path / "plain", nodes)
    scheduler.env["HOME"] = (
        "/home/root"  # the hosts' own; who runs the tests may have a profile that takes long
    )
    yield scheduler
    scheduler.close()


@pytest.fixture
def user(tmp_path: Path, bed: Bed, scheduler: Scheduler) -> Iterator[OnSlots]:
    """A user who has slots of the plain engine, and nothing else; at the end all of them are free."""
    user = OnSlots(tmp_path, bed)
    user.scheduler = scheduler
    yield user
    user.close()


@pytest.fixture(params=["tls", "socket"])
def door(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The settings for either way into a slot."""
    return {"door": "socket"} if request.param == "socket" else {}
