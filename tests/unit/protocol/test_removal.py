"""Trees are removed whole, and nothing else."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

import tflaunch
from tests.support.ages import DAY_S
from tflaunch.protocol import removal

IS_ROOT = os.geteuid() == 0


def test_a_tree_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years")
    tree = tmp_path / "tree"
    (tree / "cache").mkdir(parents=True)
    (tree / "cache" / "read-only").write_text("")
    (tree / "to-a-file").symlink_to(precious / "thesis")
    (tree / "to-a-directory").symlink_to(precious)
    (tree / "to-nowhere").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    (tree / b"\xff\n".decode("utf-8", "surrogateescape")).write_text("")
    (tree / "cache").chmod(0)
    here = Path.cwd()
    os.chdir(tree)  # a path so deep is too long for one call
    for _ in range(2000):
        os.mkdir("deeper")  # noqa: PTH102
        os.chdir("deeper")
    os.chdir(here)
    assert removal.remove(str(tree)) == []
    assert not tree.exists()
    assert (precious / "thesis").read_text() == "years"
    assert removal.remove(str(tree)) == []


def test_sizes_are_blocks_and_a_file_with_another_name_elsewhere_frees_nothing(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "data").write_bytes(b"x" * 1_000_000)
    os.link(tree / "data", tree / "again")
    with (tree / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    alone = removal.Size(str(tree)).bytes
    blocks = sum(path.stat().st_blocks * 512 for path in (tree, tree / "data"))
    assert alone == blocks >= 1_000_000
    os.link(tree / "data", tmp_path / "elsewhere")
    assert alone - removal.Size(str(tree)).bytes >= 1_000_000
    assert removal.free(str(tree))[0] < 100_000


def test_a_date_that_has_not_come_yet_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path):
        os.utime(path, (0, time.time() + DAY_S if path.is_file() else 1000.0))
    assert removal.Size(str(tmp_path)).modified == 1000.0


def test_what_cannot_be_removed_is_told(tmp_path: Path) -> None:
    if not IS_ROOT:
        pytest.skip("only root can mount")
    (tmp_path / "tree" / "mounted").mkdir(parents=True)
    script = (
        f"mount -t tmpfs none {tmp_path}/tree/mounted && touch {tmp_path}/tree/mounted/file && "
        "python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); from tflaunch.agent.host import mounts; "
        "from tflaunch.protocol import removal; "
        f'print(mounts.below("{tmp_path}/tree")); print(removal.remove("{tmp_path}/tree"))\' "$@"'
    )
    root = str(Path(tflaunch.__file__).parents[1])
    words = ["unshare", "--mount", "sh", "-c", script, "sh", root]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    if "mount" in told.stderr:
        pytest.skip(f"no mounts here: {told.stderr}")
    mounted, problems = told.stdout.splitlines()
    assert mounted == f"{tmp_path}/tree/mounted"
    assert "mounted: Device or resource busy" in problems
