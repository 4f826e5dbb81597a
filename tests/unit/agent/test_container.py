"""The command that starts a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch.agent.host import container
from tflaunch.agent.host.rundir import CONTAINERS, RunDirectory


@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_the_command(tmp_path: Path, kind: str) -> None:
    """GPUs go by UUID, no variable of the task is in it, and the setup wants a login bash."""
    directory = RunDirectory(str(tmp_path), "run-1", "h1")
    directory.create()
    directory.write(CONTAINERS, {"path": "/e/" + kind, "kind": kind, "user": "7:8", "userns": "keep-id"})
    request = {
        "id": "worker/3", "env": {"SECRET": "x"}, "setup": ["one"], "gpus": ["GPU-a", "MIG-b"], "cpus": "0-3,8-11",
        "container": {"image": "img:1", "mounts": ["/data", "~/m:/m:ro"]},
    }  # fmt: skip
    words = container.command(directory, request, 2, "/work", "/w.setup")
    gpus = [word for word in words if word.startswith(("--device", "--gpus"))]
    assert gpus == (
        ["--device=nvidia.com/gpu=GPU-a", "--device=nvidia.com/gpu=MIG-b"]
        if kind == "podman"
        else ['--gpus="device=GPU-a,MIG-b"']
    )
    home = os.environ["HOME"]
    volumes = [word for word in words if word.startswith("--volume") and "/dev/shm" not in word]
    assert volumes == [
        "--volume=/work:/work",
        "--volume=/w.setup:/w.setup:ro",
        "--volume=/data:/data",
        f"--volume={home}/m:/m:ro",
    ]
    assert {"--name=tflaunch-run-1-h1-worker-3-2", "--user=7:8", "--userns=keep-id"} <= set(words)
    assert ("--cpuset-cpus=0-3,8-11" in words) == (kind == "docker")
    assert "SECRET" not in " ".join(words)
    assert "bash" in words[words.index("img:1") + 2]
    request |= {"setup": [], "gpus": []}
    words = container.command(directory, request, 0, "/work", "/w.setup")
    assert not [word for word in words if word.startswith(("--device", "--gpus"))]
    assert "bash" not in words[words.index("img:1") + 2]
