"""Runs in pods of a real Kubernetes: what works, what each end of a pod says, and that nothing is left."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from tests.engines.trained import Impatient, look_from_other_terminals, train, trainer
from tests.support import ROOT, kubernetes
from tests.support import bed as beds
from tests.support.bed import Bed
from tests.support.kubernetes import (
    IMAGE,
    KUBERNETES_S,
    PATH,
    KubernetesCluster,
    OnKubernetes,
    PointedCluster,
)
from tests.support.launcher import TFLAUNCH, Running
from tests.support.patience import until

TRAINER = trainer()
EXAMPLES = ROOT / "examples"
TASKS = ("--ps=0", "--workers=2", "--no-flags")
MOST = f"{750 * (os.cpu_count() or 1)}m"  # of the CPUs of a node: there is no room for two
LARGE = {
    "terminationGracePeriodSeconds": 0,
    "containers": [
        {
            "name": "other",
            "image": IMAGE,
            "command": ["sleep", "600"],
            "resources": {"requests": {"cpu": MOST}},
        }
    ],
}

pytestmark = [
    pytest.mark.own_cluster,
    pytest.mark.skipif(bool(kubernetes.missing()), reason=kubernetes.missing()),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A Kubernetes of two nodes, one for all tests here; or the one that a kubeconfig leads to."""
    if kubernetes.POINTED:
        yield PointedCluster(tmp_path_factory.mktemp("k8s"))
        return
    if reason := beds.missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("k8s")
    bed = Bed(directory / "bed")
    bed.up(3, share=[str(directory)])
    cluster = KubernetesCluster(bed, directory / "cluster", gates=True)
    yield cluster
    cluster.close()
    bed.close()


@pytest.fixture
def user(tmp_path: Path, cluster: KubernetesCluster) -> Iterator[OnKubernetes]:
    """A user of a namespace there; at the end nothing of theirs is left in it, nor on a node."""
    user = OnKubernetes(tmp_path, cluster)
    yield user
    user.close()
    user.space.close()


@pytest.fixture
def _own_nodes(cluster: KubernetesCluster) -> None:
    """For tests that look into nodes, fill them, or stop what runs there."""
    if not cluster.nodes:
        pytest.skip("the nodes of this cluster are not the tests' own")


of_own_nodes = pytest.mark.usefixtures("_own_nodes")


class ImpatientOnKubernetes(Impatient, OnKubernetes):
    """Keeps a part of its slots for 3 s."""

    changes: ClassVar = {
        "kubernetes_slots.PARTIAL_S": 3.0,
        "kubernetes_slots.AGAIN_S": (3.0, 4.0),
    }


@pytest.fixture
def impatient(tmp_path: Path, cluster: KubernetesCluster) -> Iterator[ImpatientOnKubernetes]:
    """A user with less patience."""
    user = ImpatientOnKubernetes(tmp_path, cluster)
    yield user
    user.close()
    user.space.close()


def training(user: OnKubernetes, *words: str, slots: str = "", seconds: float = 600) -> Running:
    """A run whose tasks train, one in each slot."""
    return train(user, TRAINER, slots or user.slots("2"), TASKS, *words, "--", str(seconds))


def test_a_run_in_slots_of_kubernetes(user: OnKubernetes) -> None:
    words = ("--ps=0", "--workers=3", "--no-flags", "--fetch=*.txt", "--", "0.1")
    done = user.run("run", user.slots("3"), user.script(TRAINER), *words).ran()
    assert done.out.count("ends") == 3
    assert "nothing is left running" in done.sentences
    assert user.space.names("pods,jobs,secrets,configmaps") == []
    assert "succeeded" in user.run("ps", "-a").ran().out
    assert "ends" in user.run("logs").ran().out


def test_other_terminals(user: OnKubernetes) -> None:
    look_from_other_terminals(user, training(user))
    user.space.wait_until_free()


def take_back(user: OnKubernetes, how: str) -> None:
    """Have the cluster end the first pod."""
    pod = user.space.pods()[0]["metadata"]["name"]
    if how == "delete":
        user.space.do("delete", "pod", pod, "--wait=false")
    elif how == "job":
        user.space.do("delete", "jobs", "--all", "--wait=false")
    elif how == "evict":
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{user.space.name}/pods/{pod}/eviction"
        user.space.do("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    elif how == "suspend":
        user.space.do(
            "patch", *user.space.do("get", "jobs", "-o", "name").split(), "-p", '{"spec":{"suspend":true}}'
        )


ENDS = {
    "delete": "the pod was deleted",
    "job": "the Job was deleted",
    "evict": "the pod was evicted",
    "suspend": "the Job was suspended",
}


@pytest.mark.parametrize("how", ENDS)
def test_slots_that_are_taken_back(user: OnKubernetes, how: str) -> None:
    with training(user) as running:
        take_back(user, how)
        done = running.done(KUBERNETES_S).ran(75)
    assert ENDS[how] in done.sentences
    assert done.out.count("saved by") == 2
    user.space.wait_until_free()


def template(user: OnKubernetes, job: dict[str, Any] | None = None, **pod: Any) -> Path:
    """A user's own job.yaml: a Job with a pod like that."""
    container = {"name": "trainer", "image": IMAGE, "args": ["never"], **pod.pop("container", {})}
    container["resources"] = {
        "requests": {"cpu": "100m", "memory": "100Mi"},
        **container.get("resources", {}),
    }
    inside = {"containers": [container], "restartPolicy": "OnFailure", **pod}
    metadata = {"name": "theirs", "labels": {"team": "vision"}}
    said = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {**(job or {}), "template": {"metadata": {"labels": {"team": "vision"}}, "spec": inside}},
    }
    path = user.code / "job.yaml"
    path.write_text(yaml.safe_dump(said))
    return path


@of_own_nodes
def test_roles_of_different_sizes(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    for node in cluster.nodes:
        cluster.give(node, "nvidia.com/gpu", 1)
    words = ("--ps=1", "--workers=2", "--no-flags")
    slots = user.slots("ps=1x0+worker=2x1")
    with user.start("run", slots, user.script(TRAINER), *words, "--", "600") as running:
        running.wait_for("attempt 0 of", 3)
        jobs = {
            each["metadata"]["labels"]["tflaunch/role"]: each["spec"] for each in user.space.objects("jobs")
        }
        assert {role: spec["completions"] for role, spec in jobs.items()} == {"ps": 1, "worker": 2}
        containers = {role: spec["template"]["spec"]["containers"][0] for role, spec in jobs.items()}
        assert containers["worker"]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert "nvidia.com/gpu" not in containers["ps"]["resources"]["limits"]
        for task in ("ps/0", "worker/0", "worker/1"):
            assert f"-{task.partition('/')[0]}-" in user.run("ps", "--json").ran().out
        running.interrupt()
        assert running.end() == 130
    user.space.wait_until_free()


@of_own_nodes
def test_a_job_of_the_users_own(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    kept = cluster.directory / f"volume-{user.space.name}"
    kept.mkdir()
    path = template(
        user,
        {"parallelism": 2, "backoffLimit": 6, "ttlSecondsAfterFinished": 60},
        container={
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "env": [{"name": "OF_TEMPLATE", "value": "yes"}],
            "livenessProbe": {"exec": {"command": ["false"]}},
        },
        volumes=[{"name": "data", "hostPath": {"path": str(kept)}}],
    )
    script = user.script(
        "import os, time\nopen('/data/' + os.environ['TFLAUNCH_HOST'], 'w').write(os.environ['OF_TEMPLATE'])\n"
        "print('written', flush=True)\nwhile os.path.exists('/data/wait'):\n    time.sleep(0.1)"
    )
    (kept / "wait").touch()
    with user.start("run", f"k8s:{path}", script, *TASKS) as running:
        running.wait_for("written", 2)
        pods = user.space.pods()
        assert [each["metadata"]["labels"]["team"] for each in pods] == ["vision"] * 2
        assert all(user.space.objects("jobs")[0]["spec"][key] == 2 for key in ("parallelism", "completions"))
        # Whoever reads the namespace's objects finds nothing that would let them in.
        seen = json.dumps(user.space.objects("pods,jobs,configmaps,events")).lower()
        assert "token" not in seen.replace("automountserviceaccounttoken", "").replace(
            "serviceaccounttoken", ""
        )
        assert "private key" not in seen
        (kept / "wait").unlink()
        running.done(KUBERNETES_S).ran()
    assert {each.name: each.read_text() for each in kept.iterdir()} == {
        each["metadata"]["name"]: "yes" for each in pods
    }
    assert user.space.names("pods,jobs,secrets,configmaps") == []


def test_what_can_never_be_is_told_at_once(user: OnKubernetes) -> None:
    script = user.script(TRAINER)
    done = user.run("run", user.slots("1", "image=localhost:1/no/such:1"), script, *TASKS, "--", "1").ran(2)
    assert "given twice" in done.sentences
    done = user.run("run", "k8s:1,image=localhost:1/no/such:1", script, *TASKS, "--", "1").ran(65)
    assert "the image localhost:1/no/such:1 cannot be pulled" in done.sentences
    assert "connection refused" in done.sentences
    done = user.run("run", "k8s:2", script, *TASKS, "--", "1").ran(2)
    assert "which image?" in done.sentences
    done = user.run("run", user.slots("1", "namespace=nowhere"), script, *TASKS, "--", "1").ran(2)
    assert "nowhere" in done.sentences
    user.space.apply(kind="ResourceQuota", metadata={"name": "small"}, spec={"hard": {"pods": "2"}})
    done = user.run("run", user.slots("3"), script, *TASKS, "--", "1").ran(65)
    assert "3 slots of this size are more than the quota small has: exceeded quota" in done.sentences
    user.space.wait_until_free()
    assert user.records() == []


@of_own_nodes
def test_slots_are_waited_for(impatient: ImpatientOnKubernetes, cluster: KubernetesCluster) -> None:
    """First for a queue, as Kueue keeps Jobs waiting, then for a node; a request that waits for a quota is given up."""
    user = impatient
    script = user.script(TRAINER)
    with user.start("run", user.slots("2", "queue=night"), script, *TASKS, "--", "0.1") as running:
        running.wait_for("the Job waits in the queue night")
        [job] = user.space.names("jobs")
        user.space.do("patch", job, "-p", '{"spec":{"suspend":false}}')
        running.done(KUBERNETES_S).ran()
    for node in cluster.nodes:
        cluster.do("cordon", node.name)
    try:
        with user.start("run", user.slots("2"), script, *TASKS, "--", "0.1") as running:
            running.wait_for("2 pods have no node yet: 0/2 nodes are available: 2 node(s) were unschedulable")
            assert "waiting" in user.run("ps").ran().out
            for node in cluster.nodes:
                cluster.do("uncordon", node.name)
            running.done(KUBERNETES_S).ran()
    finally:
        for node in cluster.nodes:
            cluster.do("uncordon", node.name)
    user.space.apply(kind="ResourceQuota", metadata={"name": "small"}, spec={"hard": {"pods": "2"}})
    user.space.do("run", "other", f"--image={IMAGE}", "--restart=Never")
    with user.start("run", user.slots("2"), script, *TASKS, "--", "0.1") as running:
        running.wait_for("a quota stands before it: exceeded quota: small")
        running.interrupt()
        assert running.end() == 130, running.err
    user.space.do("delete", "pod", "other", "--wait=false")
    user.space.wait_until_free()


def role() -> list[dict[str, Any]]:
    """The rules of the role that the page has for those who run a cluster."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    found = next(each for each in page.split("```yaml\n") if each.startswith("apiVersion: rbac"))
    rules: list[dict[str, Any]] = next(iter(yaml.safe_load_all(found.partition("```")[0])))["rules"]
    return rules


def test_the_rights_of_the_page_do_and_none_of_them_can_be_left_out(user: OnKubernetes) -> None:
    user.space.allow(role())
    user.run("run", user.slots("2"), user.script(TRAINER), *TASKS, "--", "0.1").ran()
    for resource, verb in (("pods/exec", "create"), ("jobs", "delete"), ("events", "list")):
        rules = role()
        for rule in rules:
            if resource in rule["resources"]:
                rule["verbs"] = [each for each in rule["verbs"] if each != verb] or ["none"]
        user.space.allow(rules)
        done = user.run("run", user.slots("1"), user.script(TRAINER), *TASKS, "--", "1").ran(69)
        assert f"you lack the right to {verb} {resource} in the namespace {user.space.name}" in done.sentences
    assert user.space.names("pods,jobs") == []


@of_own_nodes
def test_preemption(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    """By a pod of a higher priority, which needs the room."""
    about = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    cluster.do("apply", "-f", "-", text=json.dumps(about))
    with training(user, slots=user.slots("2", f"cpus={MOST}")) as running:
        user.space.apply(kind="Pod", metadata={"name": "other"}, spec={**LARGE, "priorityClassName": "high"})
        done = running.done(KUBERNETES_S).ran(75)
    assert "the pod was preempted by one of a higher priority" in done.sentences
    assert done.out.count("saved by") == 2
    user.space.do("delete", "pod", "other", "--wait=false")
    user.space.wait_until_free()


def test_the_deadline_of_the_job(user: OnKubernetes) -> None:
    path = template(user, {"parallelism": 2, "activeDeadlineSeconds": 15})
    with user.start("run", f"k8s:{path}", user.script(TRAINER), *TASKS, "--", "600") as running:
        done = running.done(KUBERNETES_S).ran(75)
    assert "the Job's deadline, activeDeadlineSeconds, is over" in done.sentences
    user.space.wait_until_free()


def test_restarts_take_slots_again(user: OnKubernetes) -> None:
    with training(user, "--restarts=1", seconds=8) as running:
        take_back(user, "delete")
        running.wait_for("attempt 1 of", 2)
        done = running.done(KUBERNETES_S).ran()
    assert "taking slots again" in done.sentences
    user.space.wait_until_free()


def test_a_killed_wire_comes_back(user: OnKubernetes) -> None:
    with training(user, seconds=12) as running:
        wires = [each for each in user.launchers_kubectl() if "exec" in each.words]
        assert len(wires) >= 2
        for each in wires:
            each.kill(signal.SIGKILL)
        running.wait_for(" is back after", 2)
        done = running.done(KUBERNETES_S).ran()
    assert done.out.count("ends") == 2
    user.space.wait_until_free()


def test_a_memory_limit(user: OnKubernetes) -> None:
    script = user.script("import time\nkept = []\nwhile True:\n    kept.append(bytearray(10_000_000))\n")
    done = user.run("run", user.slots("1"), script, "--ps=0", "--workers=1", "--no-flags").ran(137)
    assert "memory" in done.sentences
    user.space.wait_until_free()


@of_own_nodes
def test_a_kubelet_that_is_away(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    """Out of reach, and back; then for longer than the lease, and lost."""
    with training(user, "--lease=15") as running:
        first = user.space.pods()[0]
        [node] = [each for each in cluster.nodes if each.name == first["spec"]["nodeName"]]
        try:
            cluster.stop_kubelet(node)
            running.wait_for("is out of reach")
            cluster.start_kubelet(node)
            running.wait_for(" is back after")
            assert len(user.holders()) == 2
            cluster.stop_kubelet(node)
            done = running.done(KUBERNETES_S)
        finally:
            cluster.start_kubelet(node)
        assert done.code == 76, done.err
        assert "was lost" in done.sentences
    user.wait_until_nothing_is_left(KUBERNETES_S)
    user.space.wait_until_free()


@of_own_nodes
def test_nobody_is_needed_to_free_the_slots(user: OnKubernetes) -> None:
    """kill -9 of the launcher, and of a slot holder: lease, idle time and TTL end the rest."""
    with training(user, "--lease=5", slots=user.slots("2", "idle=3", "ttl=5")) as running:
        running.signal(signal.SIGKILL)
        running.end()
        user.holders()[0].kill(signal.SIGKILL)
    user.space.wait_until_free()
    until(lambda: not user.launchers_kubectl(), "the end of all kubectl")


@of_own_nodes
def test_a_killed_holder(user: OnKubernetes) -> None:
    with training(user) as running:
        user.holders()[0].kill(signal.SIGKILL)
        done = running.done(KUBERNETES_S).ran(75)
    assert "the slot was taken back" in done.sentences or "exit status 137" in done.sentences, done.err
    user.space.wait_until_free()


def test_a_detached_run_from_another_machine(user: OnKubernetes, tmp_path: Path) -> None:
    """Of it only the kubeconfig is there."""
    slots = user.slots("2")
    user.run("run", slots, user.script(TRAINER), *TASKS, "-d", "--", "600").ran()
    elsewhere = {"TFLAUNCH_STATE": str(tmp_path / "elsewhere")}
    until(lambda: "2/2" in user.run("ps", "--hosts", "k8s:", env=elsewhere).out, "the run in ps")
    assert "attempt 0 of worker/1" in user.run("logs", "--hosts", "k8s:", env=elsewhere).ran().out
    logs = [user.space.do("logs", each["metadata"]["name"]) for each in user.space.pods()]
    assert sorted(re.findall(r"(?m)^(worker/\d) \| attempt 0 of \1 \[\]$", "".join(logs))) == [
        "worker/0",
        "worker/1",
    ]
    with user.start("attach", "--hosts", "k8s:", env=elsewhere) as viewer:
        viewer.wait_for("attempt 0 of", 2)
        assert "is stopped" in user.run("stop", "--hosts", "k8s:", env=elsewhere).ran().sentences
        assert viewer.end() == 143
    # The cluster still has how the slots have ended, until it is on record here.
    assert "stopped" in user.run("ps", "-a").ran().out
    user.space.wait_until_free()
    assert "stopped" in user.run("status").out


def test_where_podsecurity_is_restricted(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    user.space.close()
    user.space = cluster.space(security="restricted")
    script = user.script("import os\nprint('uid', os.getuid())")
    words = ("--ps=0", "--workers=1", "--no-flags")
    done = user.run("run", user.slots("1"), script, *words).ran(65)
    assert "the namespace refuses the pods" in done.sentences
    assert "user=1000 makes pods that pass" in done.sentences
    assert "uid 1000" in user.run("run", user.slots("1", "user=1000"), script, *words).ran().out
    user.space.wait_until_free()


def of_this_machine(more: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and their mounts by which a pod has the Python of the tests, and `more`: place there -> place here."""
    places = {place: place for place in sorted({"/usr", sys.prefix, sys.base_prefix, str(ROOT)})}
    named = {f"here-{number}": at for number, at in enumerate({**places, **more}.items())}
    volumes = [{"name": name, "hostPath": {"path": here}} for name, (_, here) in named.items()]
    mounts = [
        {"name": name, "mountPath": there, "readOnly": there in places} for name, (there, _) in named.items()
    ]
    return volumes, mounts


def with_tensorflow(user: OnKubernetes, kept: Path) -> Path:
    """A hostfile of two pods that have this machine's TensorFlow, and a volume, /kept."""
    volumes, mounts = of_this_machine({"/kept": str(kept)})
    path = template(user, {"parallelism": 2}, container={"volumeMounts": mounts}, volumes=volumes)
    hosts = user.directory / "slots.yaml"
    said = {
        "engine": "kubernetes",
        "slots": [{"count": 2}],
        "settings": {"template": str(path)},
        "defaults": {"python": sys.executable},
    }
    hosts.write_text(yaml.safe_dump(said))
    return hosts


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
@of_own_nodes
def test_parameter_servers_go_on_from_a_checkpoint_on_a_volume(
    user: OnKubernetes, cluster: KubernetesCluster
) -> None:
    kept = cluster.directory / f"kept-{user.space.name}"
    kept.mkdir()
    of_it = ("--steps=2500", "--checkpoint_steps=100", "--train_dir=/kept")
    words = ("--ps=1", "--workers=1", "--restarts=1", "--grace=2", "--", *of_it)
    with user.start("run", with_tensorflow(user, kept), EXAMPLES / "async_ps.py", *words) as running:
        until(lambda: list(kept.glob("model.ckpt-?*00.index")), "a checkpoint", KUBERNETES_S)
        [worker] = [each for each in user.leftovers() if each.env.get("TFLAUNCH_TASK") == "worker/0"][:1]
        worker.kill(signal.SIGKILL)
        running.wait_for("resumes from")
        done = running.done(KUBERNETES_S).ran()
    steps = [int(step) for step in re.findall(r"worker/0 step +(\d+)", done.out.partition("resumes from")[2])]
    assert steps[0] >= 100
    assert steps[-1] >= 2500
    user.space.wait_until_free()


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
@of_own_nodes
def test_workers_train_together(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    words = ("--ps=0", "--workers=2", "--no-flags", "--grace=2", "--", "--steps=60", "--checkpoint_steps=30")
    hosts = with_tensorflow(user, cluster.directory)
    with user.start("run", hosts, EXAMPLES / "multi_worker_mirrored.py", *words) as running:
        done = running.done(KUBERNETES_S).ran()
    assert done.out.count("final loss") == 2
    assert len(set(re.findall(r"final loss (\S+)", done.out))) == 1  # every step saw the gradients of both
    user.space.wait_until_free()


@of_own_nodes
def test_a_part_of_the_slots_is_not_kept(impatient: ImpatientOnKubernetes) -> None:
    user = impatient
    user.space.allow([rule for rule in role() if "podgroups" not in rule["resources"]])
    user.space.apply(kind="Pod", metadata={"name": "other"}, spec=LARGE)
    until(lambda: "Running" in user.space.do("get", "pods"), "a pod of somebody else's")
    slots = user.slots("2", f"cpus={MOST}")
    with user.start("run", slots, user.script(TRAINER), *TASKS, "--", "0.1") as running:
        again = lambda: [name for name in user.space.names("jobs") if name.endswith("-2")]  # noqa: E731
        until(again, "a second request", KUBERNETES_S)
        assert len(user.space.names("jobs")) == 1
        user.space.do("delete", "pod", "other", "--wait=false")
        running.done(KUBERNETES_S).ran()
    user.space.wait_until_free()


@of_own_nodes
def test_pods_are_placed_all_together(impatient: ImpatientOnKubernetes) -> None:
    """Where the cluster does that, and the user may ask for it: no part of them has room for a moment."""
    user = impatient
    user.space.apply(kind="Pod", metadata={"name": "other"}, spec=LARGE)
    until(lambda: "Running" in user.space.do("get", "pods"), "a pod of somebody else's")
    slots = user.slots("ps=1x0+worker=1x0", f"cpus={MOST}")
    words = ("--ps=1", "--workers=1", "--no-flags", "--", "0.1")
    with user.start("run", slots, user.script(TRAINER), *words) as running:
        running.wait_for("pod group is unschedulable")
        assert len(user.space.names("podgroups")) == 1
        assert [each["metadata"]["name"] for each in user.space.pods() if "nodeName" in each["spec"]] == [
            "other"
        ]
        user.space.do("delete", "pod", "other", "--wait=false")
        running.wait_for("attempt 0 of", 2)
        running.interrupt()
        assert running.end() == 130
    user.space.wait_until_free()
    until(lambda: not user.space.names("podgroups"), "the end of the pod group", KUBERNETES_S)


@of_own_nodes
def test_where_pods_can_be_dialled_no_kubelet_is_needed(
    user: OnKubernetes, cluster: KubernetesCluster
) -> None:
    launcher = user.bed.launcher
    for number, node in enumerate(cluster.nodes):
        launcher.do("ip", "route", "add", f"10.78.{number}.0/24", "via", node.address)
    try:
        with training(user, seconds=40) as running:
            assert user.launchers_kubectl() == []
            for node in cluster.nodes:
                cluster.stop_kubelet(node)
            assert "2/2" in user.run("ps").ran().out
            assert "worker/1" in user.run("stacks").ran().out
            running.wait_for("ends", 2)
            done = running.done(KUBERNETES_S).ran()
        assert "out of reach" not in done.sentences
    finally:
        for number, _ in enumerate(cluster.nodes):
            launcher.do("ip", "route", "del", f"10.78.{number}.0/24")
        for node in cluster.nodes:
            cluster.start_kubelet(node, wait=False)
        cluster.wait_until_ready()
    user.space.wait_until_free()


@of_own_nodes
def test_cards_are_those_of_the_pod(user: OnKubernetes, cluster: KubernetesCluster, library: Path) -> None:
    """Each container sees its own cards alone, as with a device plugin; tasks are masked by their UUIDs."""
    for node in cluster.nodes:
        cluster.give(node, "nvidia.com/gpu", 1)
    cards = cluster.directory / f"cards-{user.space.name}"
    shutil.copytree(library, cards)
    for number in range(2):
        (cards / f"fleet-{number}").write_text(f"gpu uuid=GPU-of-{number}\n")
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    path = template(
        user,
        {"parallelism": 2},
        container={
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "env": [
                {"name": "INDEX", "valueFrom": index},
                {"name": "NVML_STUB_FLEET", "value": "/cards/fleet-$(INDEX)"},
                {"name": "LD_LIBRARY_PATH", "value": "/cards"},
            ],
            "volumeMounts": [{"name": "cards", "mountPath": "/cards"}],
        },
        volumes=[{"name": "cards", "hostPath": {"path": str(cards)}}],
    )
    seen = json.loads(user.run("gpus", f"k8s:{path}", "--json").ran().out)
    assert [[gpu["uuid"] for gpu in each["gpus"]] for each in seen["hosts"]] == [["GPU-of-0"], ["GPU-of-1"]]
    script = user.script("import os; print('mask', os.environ['CUDA_VISIBLE_DEVICES'])")
    done = user.run("run", f"k8s:{path}", script, *TASKS).ran()
    assert sorted(re.findall(r"mask (\S+)", done.out)) == ["GPU-of-0", "GPU-of-1"]
    user.space.wait_until_free()


def test_a_sweep_and_what_other_verbs_ask(user: OnKubernetes) -> None:
    script = user.script("import sys; print('loss', float(sys.argv[1].partition('=')[2]) / 2)")
    words = ("--metric", "loss", "--grid", "lr=0.1,0.2,0.3")
    assert "3 of 3 trials" in user.run("sweep", user.slots("2"), script, *words).ran().sentences
    with training(user) as running:
        assert "worker/1" in user.run("stacks").ran().out
        there = user.directory / "there"
        user.run("fetch", running.run_id, "made.txt", "--to", there).ran()
        assert sorted(each.read_text() for each in there.rglob("made.txt")) == ["by worker/0", "by worker/1"]
        running.interrupt()
        assert running.end() == 130
    user.space.wait_until_free()


@of_own_nodes
def test_a_pod_that_runs_tflaunch(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    """With the rights of its service account; it dials the pods that it gets."""
    group = "rbac.authorization.k8s.io"
    about = {"apiVersion": f"{group}/v1", "metadata": {"name": "launcher"}}
    user.space.apply(kind="ServiceAccount", metadata={"name": "launcher"})
    user.space.apply(kind="Role", rules=role(), **about)
    bound = [{"kind": "ServiceAccount", "name": "launcher"}]
    its_role = {"kind": "Role", "name": "launcher", "apiGroup": group}
    user.space.apply(kind="RoleBinding", subjects=bound, roleRef=its_role, **about)
    kept = cluster.directory / f"code-{user.space.name}"
    kept.mkdir()
    shutil.copy(user.script(TRAINER), kept / "trainer.py")
    for number, node in enumerate(cluster.nodes):  # a cluster without a proxy for services
        cluster.control.do("ip", "route", "replace", f"10.78.{number}.0/24", "via", node.address)
    volumes, mounts = of_this_machine({"/code": str(kept)})
    argv = [*TFLAUNCH, "run", user.slots("2"), "/code/trainer.py", *TASKS, "--", "600"]
    server = {"KUBERNETES_SERVICE_HOST": cluster.control.address, "KUBERNETES_SERVICE_PORT": "6443"}
    env = [{"name": name, "value": value} for name, value in {**server, "HOME": "/tmp", "PATH": PATH}.items()]
    container = {"name": "launcher", "image": IMAGE, "command": argv, "env": env, "volumeMounts": mounts}
    pod = {
        "serviceAccountName": "launcher",
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": volumes,
    }
    spec = {"backoffLimit": 0, "template": {"spec": pod}}
    user.space.apply(kind="Job", apiVersion="batch/v1", metadata={"name": "mnist-3"}, spec=spec)
    until(
        lambda: "attempt 0 of worker/1" in user.space.do("logs", "job/mnist-3", "--ignore-errors"),
        "a task's line",
        KUBERNETES_S,
    )
    assert len(user.space.pods()) == 3
    there = [each for node in cluster.nodes for each in cluster.in_pods(node)]
    assert not [each for each in there if each.words[0].endswith("kubectl")]
    user.space.do("delete", "job", "mnist-3", "--wait=false")
    user.space.wait_until_free()


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
@of_own_nodes
def test_servers_and_a_check(user: OnKubernetes, cluster: KubernetesCluster) -> None:
    slots = with_tensorflow(user, cluster.directory)
    checked = json.loads(user.run("check", slots, "--json").ran().out)
    [row] = [each for each in checked["matrix"] if each["name"] == "TensorFlow"]
    assert set(row["values"].values()) == {importlib.metadata.version("tensorflow")}
    assert user.run("up", slots, "--ps=1", "--workers=1").ran().out.count("grpc://") == 2
    assert "2/2" in user.run("ps").ran().out
    assert "is stopped" in user.run("stop").ran().sentences
    user.space.wait_until_free()
