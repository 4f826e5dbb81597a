"""Runs in slots of a real YARN: what works, what each end says, and that nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.engines.nodes import nodes
from tests.engines.trained import Impatient, train, trainer
from tests.runs.test_up import CLIENT
from tests.support import yarn as yarns
from tests.support.launcher import Running
from tests.support.patience import until
from tests.support.yarn import MEMORY_MB, YARN_S, OnYarn, YarnCluster

TRAINER = trainer("MALLOC_ARENA", "JVM_PID", "YARN_SHELL")
TASKS = ("--ps=0", "--workers=2", "--no-flags")

pytestmark = [pytest.mark.own_cluster, pytest.mark.skipif(bool(yarns.missing()), reason=yarns.missing())]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[YarnCluster]:
    """A YARN of two nodes with two cards each, one for all tests here; no node has an sshd."""
    with nodes(tmp_path_factory, "yarn", 2, library, yarns.CARDS, str(yarns.home())) as (bed, directory):
        cluster = YarnCluster(bed, directory)
        yield cluster
        cluster.close()


@pytest.fixture
def user(tmp_path: Path, cluster: YarnCluster) -> Iterator[OnYarn]:
    """A user of that YARN."""
    with contextlib.closing(OnYarn(tmp_path, cluster)) as user:
        yield user


def training(user: OnYarn, *words: str, slots: str = "", seconds: float = 600) -> Running:
    """A run whose tasks train, one in each slot."""
    return train(user, TRAINER, slots or user.slots("2"), TASKS, *words, "--", str(seconds))


def test_roles_in_slots_of_yarn(user: OnYarn, cluster: YarnCluster) -> None:
    """Of one size: one application, of which YARN's log has the tasks' lines, and nothing is left in the home."""
    words = ("--ps=1", "--workers=2", "--no-flags", "--fetch=*.txt", "--json", "--", "0.1")
    done = user.run("run", user.slots("ps=1x0+worker=2x0"), user.script(TRAINER), *words).ran()
    ends = [event for event in done.events if event["event"] == "exited"]
    assert {each["host"].partition("-")[0] for each in ends} == {"host1", "host2"}
    assert {each["code"] for each in ends if each["task"] != "ps/0"} == {0}
    [app] = cluster.applications("FINISHED", "FAILED", "KILLED")
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    log = cluster.do("logs", "-applicationId", app["id"], "-log_files", "stdout")
    assert re.search(r"(?m)^worker/1: attempt 0 of worker/1 \[\]$", log)
    assert re.search(r"(?m)^worker/0: ends$", log)
    assert re.search(r"(?m)^ps/0: attempt 0 of ps/0 \[\]$", log)
    assert [*user.home.glob("tflaunch-*")] == []


def test_cards(user: OnYarn, cluster: YarnCluster) -> None:
    """Each size is an application; each task has the cards of its slot, which are nobody else's."""
    words = ("--ps=1", "--workers=3", "--no-flags", "--", "600")
    slots = user.slots("ps=1x0+worker=3x1")
    with user.start("run", slots, user.script(TRAINER), *words) as running:
        running.wait_for("attempt 0 of", 4)
        assert len(cluster.applications("RUNNING")) == 2
        found = [
            (host.name, each.env["TFLAUNCH_TASK"], each.env.get("CUDA_VISIBLE_DEVICES", ""))
            for host in user.bed.hosts
            for each in host.processes()
            if "trainer.py" in str(each.words) and "TFLAUNCH_TASK" in each.env
        ]
        cards = [uuids for _, task, uuids in set(found) if task.startswith("worker")]
        assert len(cards) == len(set(cards)) == 3
        assert all(uuids.startswith(f"GPU-{host}-") for host, task, uuids in found if task != "ps/0")
        assert {uuids for _, task, uuids in found if task == "ps/0"} <= {"", "-1"}
        running.interrupt()
        assert running.end() == 130
    done = user.run("run", user.slots("2x3"), user.script(TRAINER), *TASKS, "--", "1").ran(65)
    assert "fits into no node: of 2 nodes the largest has yarn.io/gpu:2" in done.sentences


class ImpatientOnYarn(Impatient, OnYarn):
    """Waits 15 s for the rest of its slots, and a second or two until it asks again."""

    changes: ClassVar = {"yarn_asked.PARTIAL_S": 15.0, "yarn_slots.AGAIN_S": (1.0, 2.0)}


@pytest.fixture
def impatient(tmp_path: Path, cluster: YarnCluster) -> Iterator[ImpatientOnYarn]:
    """A user with less patience."""
    with contextlib.closing(ImpatientOnYarn(tmp_path, cluster)) as user:
        yield user


def test_what_can_never_be(user: OnYarn, cluster: YarnCluster) -> None:
    def refused(code: int, sizes: str, *words: str) -> str:
        done = user.run("run", user.slots(sizes, *words), user.script(TRAINER), *TASKS, "--", "1")
        return done.ran(code).sentences

    assert "fits into no node: of 2 nodes the largest has memory:2048" in refused(65, "2", "memory=3g")
    assert "no node that runs has the label big; no node has a label" in refused(65, "2", "label=big")
    assert "is more than this cluster gives a container: vCores:4 at most" in refused(65, "2", "cpus=5")
    assert "Queue nosuch not present" in refused(2, "2", "queue=nosuch")
    assert "/nowhere/python3: No such file or directory" in refused(69, "2", "python=/nowhere/python3")
    # No node has Docker; that the image reached the container is all that can be seen.
    assert "this node has not used the image library/tf:1" in refused(69, "1", "image=library/tf:1")
    [app] = cluster.applications("FINISHED", "FAILED")[-1:]
    scripts = cluster.do("logs", "-applicationId", app["id"], "-log_files", "launch_container.sh")
    assert 'export YARN_CONTAINER_RUNTIME_TYPE="docker"' in scripts
    assert 'export YARN_CONTAINER_RUNTIME_DOCKER_IMAGE="library/tf:1"' in scripts
    assert cluster.applications() == []
    assert user.staged() == []


def test_it_waits_in_yarns_words_and_leaves_nothing(impatient: ImpatientOnYarn, cluster: YarnCluster) -> None:
    user, script = impatient, impatient.script(TRAINER)
    # The master takes of one node what a slot would need, until that node has more.
    with user.start("run", user.slots("2", "memory=2g", "wait=1h"), script, *TASKS, "--", "0.1") as running:
        running.wait_for("1 x <memory:2048, vCores:1> pending in the queue root.default; free: ")
        assert "waiting" in user.run("ps").ran().out
        given_back = [each["id"] for each in cluster.applications()]
        until(
            lambda: [each for each in cluster.applications() if each["id"] not in given_back],
            "another",
            YARN_S,
        )
        cluster.give_memory(2 * MEMORY_MB)
        try:
            running.wait_for("attempt 0 of", 2)
            running.done(YARN_S).ran()
        finally:
            cluster.give_memory(MEMORY_MB)
    with user.start("run", user.slots("2"), script, *TASKS, "--", "1") as running:
        until(cluster.applications, "the application")
        running.interrupt()
        assert running.end() == 130
    until(lambda: cluster.applications() == [], "it is given back")
    # The queue `night` lets one master run at a time.
    words = ("--ps=1", "--workers=1", "--no-flags", "--", "1")
    slots = user.slots("ps=1x0+worker=1x1", "queue=night")
    done = user.run("run", slots, script, *words).ran(75)
    assert "there is room for 1 slot alone" in done.sentences
    assert (
        "the queue's share for masters is used up: AM Resource Request = <memory:256, vCores:1>"
        in done.sentences
    )
    assert cluster.applications() == []
    assert [*user.home.glob("tflaunch-*")] == []


def test_containers_that_are_killed_and_a_checkpoint(user: OnYarn, cluster: YarnCluster) -> None:
    """With --restarts the run goes on in other slots, from what lies where all nodes see it.

    One container is killed, one for its use of memory.
    """
    kept = user.home / "checkpoint"
    script = user.script(f"""
        import os, time
        kept, attempt = {str(kept)!r}, int(os.environ["TFLAUNCH_ATTEMPT"])
        begin = int(open(kept).read()) if os.path.exists(kept) else 0
        print("begins at", begin, "in attempt", attempt, flush=True)
        if os.environ["TFLAUNCH_TASK"] == "worker/0" and attempt < 2:
            open(kept + ".new", "w").write(str(begin + 7))
            os.rename(kept + ".new", kept)
            used = b"." * (attempt * 600 << 20)
        while attempt < 2:
            time.sleep(0.05)
    """)
    with user.start("run", user.slots("2"), script, *TASKS, "--restarts=2", "--lease=10s") as running:
        running.wait_for("in attempt 0", 2)  # the other may see its checkpoint
        until(kept.exists, "it has saved")
        [app] = cluster.applications()
        holder = user.holders()[0]
        container = holder.env["CONTAINER_ID"]
        holder.kill()
        done = running.done(YARN_S).ran()
        assert done.out.count("begins at 14 in attempt 2") == 2
        assert f"{container} is over, exit status 137: Container killed on request" in done.sentences
        assert re.search(
            r"has used [\d.]+ MB of its 256 MB of memory, and YARN has killed it", done.sentences
        )
    assert cluster.application(app["id"])["state"] in ("FINISHED", "KILLED")


def test_a_master_a_node_manager_and_the_resource_manager_come_back(
    user: OnYarn, cluster: YarnCluster
) -> None:
    go_on = user.home / "go-on"
    script = user.script(f"""
        import os, time
        print("attempt", os.environ["TFLAUNCH_ATTEMPT"], flush=True)
        while not os.path.exists({str(go_on)!r}):
            time.sleep(0.05)
    """)
    with user.start("run", user.slots("2"), script, *TASKS) as running:
        running.wait_for("attempt 0", 2)
        [app] = cluster.applications()
        holders = {each.pid for each in user.holders()}
        for master in user.masters():
            master.kill()

        def attempt() -> int:
            return len(cluster.ask(f"apps/{app['id']}/appattempts")["appAttempts"]["appAttempt"])

        until(lambda: attempt() == 2, "another attempt", YARN_S)
        until(lambda: cluster.application(app["id"])["state"] == "RUNNING", "it has a master again", YARN_S)
        host = user.bed.hosts[0]
        cluster.kill_node(host)
        cluster.start_node(host)
        cluster.kill_manager()
        cluster.start_manager()
        cluster.wait_for_nodes()
        until(lambda: cluster.application(app["id"])["state"] == "RUNNING", "it runs again", YARN_S)
        assert {each.pid for each in user.holders()} == holders
        go_on.touch()
        assert running.end() == 0, running.err
    until(lambda: not cluster.applications(), "it is over")


def test_a_node_that_is_lost_and_one_who_comes_too_late(user: OnYarn, cluster: YarnCluster) -> None:
    """What ran on the node runs on; the container that YARN starts in its place ends at once."""
    go_on = user.home / "go-on"
    script = user.script(f"""
        import os, time
        print("attempt", os.environ["TFLAUNCH_ATTEMPT"], flush=True)
        while not os.path.exists({str(go_on)!r}):
            time.sleep(0.05)
    """)
    with user.start("run", user.slots("2"), script, *TASKS) as running:
        running.wait_for("attempt 0", 2)
        [app] = cluster.applications()
        # Not the master's node: another master would come, which is another test.
        [master] = [each.env["NM_HOST"] for each in user.masters()]
        [host] = [each for each in user.bed.hosts if each.name != master]
        [other] = [each for each in user.bed.hosts if each is not host]
        cluster.kill_node(host)
        try:

            def late() -> bool:
                logs = other.path("/var/tmp/yarn/logs").rglob("stderr")
                return any("the launcher has all its slots" in each.read_text() for each in logs)

            until(late, "another container has come, and ended", YARN_S)
            go_on.touch()
            assert running.end() == 0, running.err
        finally:
            cluster.start_node(host)
    cluster.wait_for_nodes()
    # Who knows the run by YARN alone must not take the end of the one who came too late for its success.
    assert cluster.application(app["id"])["finalStatus"] != "SUCCEEDED"


def test_other_terminals(user: OnYarn, cluster: YarnCluster) -> None:
    """Of a detached run: every verb by its record, and from a machine without one, by YARN."""
    user.run("run", user.slots("2"), user.script(TRAINER), *TASKS, "--detach", "--", "600").ran()
    until(lambda: "2/2" in user.run("ps").ran().out, "the tasks run", YARN_S)
    assert "running" in user.run("status").ran().out
    until(lambda: "attempt 0 of worker/1" in user.run("logs").ran().out, "its lines")
    elsewhere = {"TFLAUNCH_STATE": str(user.directory / "nothing")}
    assert "2/2" in user.run("ps", "--hosts=yarn:", env=elsewhere).ran().out
    with user.start("attach", "--hosts=yarn:", env=elsewhere) as viewer:
        viewer.wait_for("attempt 0 of", 2)
        assert "is stopped" in user.run("stop").ran().sentences
        assert viewer.end() == 143
    until(lambda: not cluster.applications(), "it is over", YARN_S)


def test_no_secret_is_where_others_can_read_it_and_a_kill_leaves_nothing(
    user: OnYarn, cluster: YarnCluster
) -> None:
    """Not in a command line, an environment, a script or a log of a node, nor in what YARN shows."""
    with training(user) as running:
        [app] = cluster.applications()
        staged = {path.name: path for path in user.staged()}
        assert {"slot.py", "slot.json", "AppMaster.jar"} <= staged.keys()
        said = json.loads(staged["slot.json"].read_text())
        token, key = said["holder"]["token"], said["holder"]["key"].splitlines()[1]
        for path in staged.values():
            places = [path, *path.parents][:3]
            assert any(not each.stat().st_mode & 0o077 for each in places), path
        seen = json.dumps(cluster.application(app["id"])) + cluster.do(
            "logs", "-applicationId", app["id"], "-log_files_pattern", ".*"
        )
        scripts = 0
        for host in user.bed.hosts:
            for each in host.processes():
                seen += " ".join(each.words) + json.dumps(dict(each.env))
            for path in host.path("/var/tmp/yarn").rglob("*"):
                if path.is_symlink() or not path.is_file():
                    continue
                if path.name == "slot.json":
                    assert not path.stat().st_mode & 0o077, path
                else:
                    scripts += path.name == "launch_container.sh"
                    seen += path.read_text(errors="replace")
        assert scripts >= 3
        assert token not in seen
        assert key not in seen
        cluster.kill(app["id"])
        assert (done := running.done(YARN_S)).code == 75
        assert f"Application {app['id']} was killed by user root" in done.sentences
        assert running.out.count("saved by") == 2
    user.wait_until_nothing_is_left()
    assert [*user.home.glob("tflaunch-*")] == []


def test_standing_servers(user: OnYarn, cluster: YarnCluster) -> None:
    """As ydl-tf had them: servers of TensorFlow, and their cluster spec."""
    spec = user.directory / "cluster.json"
    user.run("up", user.slots("ps=1+worker=1", "memory=1g"), "--ps=1", "--workers=1", f"--spec={spec}").ran()
    target = f"grpc://{json.loads(spec.read_text())['worker'][0]}"
    inside = cluster.bed.launcher.inside(sys.executable, "-c", CLIENT, target, "21")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(inside, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["result"] == 42.0
    assert "is stopped" in user.run("stop").ran().sentences
    until(lambda: not cluster.applications(), "it is over", YARN_S)
