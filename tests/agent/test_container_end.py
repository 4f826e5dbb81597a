"""The end of a run whose tasks are in containers of an engine that the test plays: what the agent says is left."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.agent_over_pipes import Host, kill_both, running, shell, staged, swept
from tflaunch.agent.host.rundir import CONTAINERS, RunDirectory

# Runs what it should in no container at all; its container is there until `rm`, which dies the first time and takes
# along who has called it.
ENGINE = """\
#!/bin/sh
cd "${0%/*}"
case $1 in
--version) echo podman version 4 ;;
info) echo true ;;
image) ;;
ps) cat containers 2>/dev/null; exit 0 ;;
rm) if test -e died; then rm -f containers; else touch died; kill -9 $PPID; fi ;;
run)
    shift
    while test "${1#--}" != "$1"; do shift; done
    shift
    echo 0123abc >containers
    exec /bin/sh "$@" ;;
esac
"""


def test_a_removal_that_was_not_finished_is_told(host: Host, tmp_path: Path) -> None:
    place = tmp_path / "bin"
    place.mkdir(exist_ok=True)
    engine = place / "podman"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    channel = host.start()
    channel.ask(
        "prepare", images=["img"], engine=str(engine), requirements={}, python="python3", setup=[], env={},
        answer="prepared",
    )  # fmt: skip
    staged(channel, shell("sleep 600", container={"image": "img", "mounts": []}, gpus=[]))
    channel.send("release")
    channel.wait("started")
    assert swept(channel)["survivors"] == ["perhaps a container: its removal was not finished"]


def test_a_container_of_one_host_is_not_told_of_another(host: Host, tmp_path: Path) -> None:
    """Both are this machine, and nothing has swept behind their agents; the engine keeps what h1 has."""
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\ntest $1 != ps || echo 0123abc\n")
    engine.chmod(0o755)
    places = {name: RunDirectory(str(host.parent), host.run, name) for name in ("h1", "h2")}
    for name in places:
        running(host.start(host=name), shell("sleep 600"))
    for place in places.values():
        kill_both(Path(place.path))
    places["h1"].write(CONTAINERS, {"path": str(engine), "kind": "podman"})
    visit = host.open("visit", run="", host="")
    visit.wait("hello")
    finished = visit.ask("finish", run=host.run, grace_s=0.1, answer="finished")
    assert finished["survivors"] == ["container 0123abc"]
    assert finished["unsure_why"] == "its agent and guard were killed"
    there = {name: os.path.lexists(f"{place.path}/agent.sock") for name, place in places.items()}
    assert there == {"h1": True, "h2": False}
