"""Fixtures that every test may ask for."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import bed as beds
from tests.support import dead_files, lanes
from tests.support.agent_over_pipes import Host, interpreters
from tests.support.bed import Bed, FarLauncher
from tests.support.launcher import Launcher
from tests.support.nvml import build
from tests.support.parts import Parts
from tests.support.sshd import SshNetwork, make_key
from tests.support.wheels import wheel

# On a busy machine any example may take long; how long says nothing.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Have the time of each part told, once: by the process that hears of all workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Parts(config.getoption("numprocesses", None) or 1))
    _pass_by_shims()
    gc.disable()  # of all that is imported and collected now, nothing is garbage


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the tests that share a cluster stay in one worker."""
    items[:] = lanes.ordered(items, lanes.workers())


def pytest_collection_finish() -> None:
    """Begin to look for garbage, but never among what all tests are made of."""
    gc.freeze()
    gc.enable()


def _pass_by_shims() -> None:
    """Put the real `python3` before a shim of it: pyenv's is a shell script that costs more than an agent's start."""
    found = shutil.which("python3")
    if found is not None and Path(found).read_bytes()[:2] == b"#!":
        words = [found, "-I", "-c", "import sys; print(sys.executable)"]
        real = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
        os.environ["PATH"] = f"{real.parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="session")
def client_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key that the test hosts let in, made once."""
    return make_key(tmp_path_factory.mktemp("client") / "id_ed25519")


@pytest.fixture
def network(tmp_path: Path, client_key: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshNetwork]:
    """An empty network of sshd hosts; the user's own home and ssh-agent are out of sight."""
    home = tmp_path / "launcher-home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    directory = tmp_path / "network"
    directory.mkdir()
    network = SshNetwork(directory, client_key)
    yield network
    network.close()


@pytest.fixture
def launcher(tmp_path: Path, network: SshNetwork) -> Iterator[Launcher]:
    """`tflaunch` with everything of its own; at the end nothing of any of its runs may be left."""
    launcher = Launcher(tmp_path, network)
    yield launcher
    launcher.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    """A test bed without hosts yet; everything on it ends with the test."""
    if reason := beds.missing():
        pytest.skip(reason)
    bed = Bed(tmp_path / "bed")
    yield bed
    bed.close()


@pytest.fixture
def far(tmp_path: Path, bed: Bed) -> Iterator[FarLauncher]:
    """`tflaunch` on the launcher's machine of the bed; at the end nothing of any of its runs may be left."""
    far = FarLauncher(tmp_path, bed)
    yield far
    far.close()


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that never answers."""
    if reason := dead_files.missing():
        pytest.skip(reason)
    place = tmp_path / "dead"
    place.mkdir()
    with dead_files.dead_files(place):
        yield place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `any_host` is one with the oldest Python, one with the newest, and one with another, by its name."""
    if "any_host" in metafunc.fixturenames:
        every = interpreters()
        others = every[1:-1] or every
        other = others[zlib.crc32(metafunc.function.__name__.encode()) % len(others)]
        pythons = [each for each in every if each in (every[0], other, every[-1])]
        metafunc.parametrize("any_host", pythons, indirect=True, ids=_version)


def _version(python: str) -> str:
    return "-".join(Path(python).parts[-3:-2])


@pytest.fixture
def any_host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A host whose agent is spoken to over pipes, for some of the Pythons: tests together have them all."""
    made = Host(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture(params=interpreters(), ids=_version)
def every_host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """The same for each Python there is: for the way that all runs go, and for what Pythons do differently."""
    made = Host(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose agent is spoken to over pipes, with the Python of the tests."""
    made = Host(tmp_path, sys.executable)
    yield made
    made.close()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What there is instead of an index: `tiny` in two versions."""
    directory = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        wheel(directory, "tiny", version, f"value = {version!r}\n")
    return directory


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the simulated NVML library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where tasks leave what they have to say."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"
