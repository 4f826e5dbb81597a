"""TensorFlow on a real HDFS: data read, checkpoints written and gone on from, over SSH and over YARN."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import site
import sys
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support import bed as beds
from tests.support import yarn as yarns
from tests.support.bed import Bed
from tests.support.hdfs import Hdfs
from tests.support.patience import PATIENCE_S
from tests.support.yarn import OnYarn, YarnCluster

EXAMPLE = ROOT / "examples/on_hdfs.py"
TASKS = ("--ps=0", "--no-flags", "--grace=2")
HOME = "/user/root"
DATA, TRAIN = f"{HOME}/plane", f"{HOME}/train"
PLACES = (f"--data_dir=hdfs://{DATA}", f"--train_dir=hdfs://{TRAIN}")

pytestmark = [
    pytest.mark.own_cluster,
    pytest.mark.skipif(bool(yarns.missing()), reason=yarns.missing()),
    pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here"),
]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two hosts with an sshd; the first is the node of YARN and HDFS."""
    if reason := beds.missing():
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()
    bed = Bed(tmp_path_factory.mktemp("bed"))
    bed.up(2, share=[str(base), str(yarns.home())])
    yield bed
    bed.close()


@pytest.fixture(scope="module")
def hdfs(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    hdfs = Hdfs(bed, bed.hosts[0], tmp_path_factory.mktemp("hdfs"))
    yield hdfs
    hdfs.close()


@pytest.fixture(scope="module")
def cluster(bed: Bed, hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """A YARN whose file system is that HDFS."""
    cluster = YarnCluster(bed, tmp_path_factory.mktemp("yarn") / "cluster", hdfs.core, nodes=bed.hosts[:1])
    hdfs.wait_until_up()
    yield cluster
    cluster.close()


@pytest.fixture
def user(tmp_path: Path, cluster: YarnCluster) -> Iterator[OnYarn]:
    """A user of both."""
    with contextlib.closing(OnYarn(tmp_path, cluster)) as user:
        yield user


def packed(directory: Path) -> Path:
    """An archive with a virtual environment that has the packages of the tests."""
    place = directory / "environment"
    venv.create(place, symlinks=True)
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text("\n".join(site.getsitepackages()))
    archive = directory / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(place, ".")
    return archive


def test_over_ssh_and_over_yarn(user: OnYarn, hdfs: Hdfs) -> None:
    """What was trained over SSH goes on in a slot of YARN, and when that is lost, in another.

    The Python of those slots comes in an archive, by way of HDFS.
    """
    node, other = user.bed.hosts
    hosts = user.hostfile([other], python=sys.executable, env={"HADOOP_CONF_DIR": str(hdfs.conf)})
    words = ("--workers=1", *TASKS)
    with user.start("run", hosts, EXAMPLE, *words, "--", *PLACES, "--steps=200") as running:
        done = running.done(4 * PATIENCE_S).ran()
    assert f"writes to hdfs://{TRAIN}" in done.out
    there = hdfs.modes(HOME)
    assert {*there} >= {f"{DATA}/plane-00003.tfrecord", f"{TRAIN}/step-200/checkpoint.index"}
    assert not [path for path in there if "new" in path]

    # Its node knows HDFS: nothing is said of it.
    again = ("--restarts=1", "--lease=10s", "--", *PLACES, "--steps=100000")
    slots = user.slots("1", "memory=1g", f"archive={packed(user.directory)}")
    with user.start("run", slots, EXAMPLE, *words, *again) as running:
        running.wait_for(f"resumes at step 200 from hdfs://{TRAIN}")
        running.wait_for("step 400 ")  # so step 300 is written
        staged = {path: mode for path, mode in hdfs.modes(HOME).items() if "/tflaunch-" in path}
        secret = [mode for path, mode in staged.items() if path.endswith("/slot.json")]
        assert secret == ["600"], staged
        [task] = [each for each in node.processes() if "on_hdfs.py" in each.words]
        assert task.words[0].endswith("/environment/bin/python3")
        assert node.path(task.env["HADOOP_TOKEN_FILE_LOCATION"]).exists()  # where a login wants one
        [holder] = user.holders()
        holder.kill()
        running.wait_for("resumes at step", 2)
        [newest] = re.findall(r"resumes at step (\d+) ", running.out)[1:]
        assert int(newest) >= 300
        running.interrupt()
        assert running.end() == 130, running.err
    assert not [path for path in hdfs.modes(HOME) if "/tflaunch-" in path]
