"""Slots on Kubernetes, as far as no cluster is needed: words for them, the Jobs, what the API server says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tflaunch.engines import kubernetes_words as words
from tflaunch.engines.engine import check
from tflaunch.engines.kubectl import KubectlFailed, error_of, said
from tflaunch.engines.kubernetes_jobs import in_gang, jobs, pod_group, read_template
from tflaunch.engines.kubernetes_slots import ENGINE
from tflaunch.inputs.engine_words import WantedSlots, wanted
from tflaunch.protocol.errors import HostfileError, UsageError

QUOTA = (
    'Error creating: pods "q-1-27k8n" is forbidden: exceeded quota: small, requested: requests.cpu=500m,pods=1, '
    "used: requests.cpu=1,pods=2, limited: requests.cpu=1500m,pods=2"
)


def slots(word: str) -> WantedSlots:
    return check(wanted(word), ENGINE, word)


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t-0-abcde"}, "spec": {"nodeName": "n1"}, "status": status}


def job(count: int, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t", "uid": "u"}, "spec": {"parallelism": count, **spec}, "status": {}}


def refused(message: str, uid: str = "u") -> dict[str, Any]:
    return {"reason": "FailedCreate", "involvedObject": {"uid": uid}, "message": message}


def container(**state: Any) -> dict[str, Any]:
    return pod(phase="Pending", containerStatuses=[{"name": "slot", "image": "lab/no:1", "state": state}])


def test_words_for_slots() -> None:
    both = slots("k8s:ps=1x0+worker=2x1,image=python:3,cpus=2,memory=4Gi")
    ps, worker = jobs(both, None, "tflaunch-1", {"tflaunch/set": "tflaunch-1"})
    assert (ps.name, worker.name) == ("tflaunch-1-ps", "tflaunch-1-worker")
    spec: Any = worker.document["spec"]
    assert (spec["completions"], spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (2, 0, 2)
    limits = spec["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "4Gi", "nvidia.com/gpu": "1"}
    assert "nvidia.com/gpu" not in str(ps.document)
    with pytest.raises(UsageError, match="which image"):
        jobs(slots("k8s:2"), None, "t", {})
    with pytest.raises(UsageError, match="how many slots"):
        jobs(slots("k8s:image=python:3"), None, "t", {})
    with pytest.raises(HostfileError, match="did you mean memory"):
        slots("k8s:2,image=python:3,memry=2g")


def test_a_template_stays_but_for_what_makes_a_slot(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    inside = {
        "containers": [
            {
                "name": "trainer",
                "image": "lab/train:7",
                "command": ["sleep"],
                "args": ["9"],
                "readinessProbe": {"exec": {"command": ["true"]}},
                "resources": {"limits": {"nvidia.com/gpu": 2}},
                "volumeMounts": [{"name": "fast", "mountPath": "/dev/shm"}],
            },
            {"name": "beside", "image": "lab/other:1"},
        ],
        "serviceAccountName": "trainer",
        "automountServiceAccountToken": True,
        "restartPolicy": "OnFailure",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 90,
    }
    path.write_text(
        yaml.safe_dump(
            {
                "kind": "Job",
                "apiVersion": "batch/v1",
                "metadata": {"name": "theirs", "labels": {"kueue.x-k8s.io/queue-name": "night"}},
                "spec": {"parallelism": 3, "backoffLimit": 6, "template": {"spec": inside}},
            }
        )
    )
    word = slots(f"k8s:{path}")
    assert word.settings == {"template": str(path)}
    [made] = jobs(word, read_template(str(path)), "t", {"tflaunch/set": "t"})
    assert made.container == "trainer"
    spec: Any = made.document["spec"]
    assert spec["suspend"] is True
    assert "backoffLimit" not in spec
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    found = spec["template"]["spec"]
    assert found["serviceAccountName"] == "trainer"
    assert found["automountServiceAccountToken"] is True
    assert found["tolerations"] == inside["tolerations"]
    assert found["restartPolicy"] == "Never"
    first, beside = found["containers"]
    assert beside == {"name": "beside", "image": "lab/other:1"}
    assert first["command"][:2] == ["python3", "-c"]
    assert not {"args", "readinessProbe"} & first.keys()
    assert first["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert [each["name"] for each in first["volumeMounts"]] == ["fast"]
    [four] = jobs(slots(f"k8s:{path},1x4,image=other:1"), read_template(str(path)), "t", {})
    assert "'nvidia.com/gpu': '4'" in str(four.document)
    assert "'image': 'other:1'" in str(four.document)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "has 0 objects"),
        ("kind: Job\n---\nkind: Job\n", "has 2 objects"),
        ("kind: Deployment", "its kind is 'Deployment'"),
        ("kind: Pod\nspec: {containers: []}", "no container with a name"),
        ("kind: [", "is no YAML"),
        ("at: 2024-99-99", "is no YAML: month must be in 1..12"),
        ("at: " + "9" * 5000, "is no YAML"),
        ("[" * 5000, "is no YAML"),
    ],
)
def test_templates_that_are_none(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=match):
        read_template(str(path))


def test_a_quota_is_waited_for_unless_it_is_too_small_for_all() -> None:
    within, beyond = job(2), job(4)
    assert words.never([within], [], [refused(QUOTA)]) is None
    assert "a quota stands before it: exceeded quota: small" in words.waits([within], [], [refused(QUOTA)])
    error = words.never([beyond], [], [refused(QUOTA)])
    assert error is not None
    assert error.exit_code == 65
    assert "4 slots of this size are more than the quota small has" in error.message
    assert words.never([beyond], [], [refused(QUOTA, uid="another's")]) is None


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (
            {"waiting": {"reason": "ErrImagePull", "message": "no such host"}},
            "cannot be pulled: no such host",
        ),
        ({"waiting": {"reason": "InvalidImageName"}}, "lab/no:1 cannot be pulled: InvalidImageName"),
        (
            {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}},
            "not found",
        ),
        (
            {
                "terminated": {
                    "reason": "StartError",
                    "exitCode": 128,
                    "message": 'exec: "python3": not found',
                }
            },
            "the container cannot be started",
        ),
    ],
)
def test_what_does_not_become_right_by_itself(state: dict[str, Any], says: str) -> None:
    error = words.never([job(1)], [container(**state)], [])
    assert error is not None
    assert error.exit_code == 65
    assert says in error.message
    assert words.never([job(1)], [container(waiting={"reason": "ContainerCreating"})], []) is None


def test_refusals_of_pods() -> None:
    said = (
        'pods "t-0" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
    )
    error = words.never([job(1)], [], [refused(said)])
    assert error is not None
    assert "user=1000" in error.hint
    error = words.never([job(1)], [], [refused('admission webhook "lab" denied the request: no team label')])
    assert error is not None
    assert "no team label" in error.message


def test_why_slots_are_not_there() -> None:
    unplaced = pod(
        conditions=[
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1",
            }
        ]
    )
    del unplaced["spec"]["nodeName"]
    assert words.waits([job(2)], [unplaced] * 2, []) == (
        "2 pods have no node yet: 0/1 nodes are available: 1 Insufficient cpu"
    )
    # As the scheduler of 1.37 tells it of pods in one PodGroup.
    waiting = json.loads(json.dumps(unplaced))
    waiting["status"]["conditions"][0]["message"] = (
        "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining"
    )
    assert words.waits([job(2)], [unplaced, waiting], []) == (
        "2 pods have no node yet: 0/1 nodes are available: 1 Insufficient cpu"
    )
    assert words.waits([job(2, suspend=True)], [], [], "night") == "the Job waits in the queue night"


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return pod(phase="Failed" if code else "Succeeded", containerStatuses=[{"name": "slot", "state": state}])


def test_slots_that_are_over() -> None:
    assert words.gone(pod(phase="Running"), job(1)) is None
    for code in (0, 3):
        over = words.gone(ended(code, "Completed"), job(1))
        assert over is not None
        assert (over.swept, over.in_order, over.code) == (True, True, code)
    for code in (75, 137):
        over = words.gone(ended(code), job(1))
        assert over is not None
        assert (over.swept, over.in_order) == (True, False)
    # As the kubelet tells it where the whole container is killed, with cgroups of the second version.
    over = words.gone(ended(137, "OOMKilled"), job(1))
    assert over is not None
    assert "OOMKilled" in over.message
    # The API server alone says that it has failed: what is on the node may run on.
    over = words.gone(pod(phase="Failed", reason="NodeLost"), job(1))
    assert over is not None
    assert over.may_run_on
    deleted, removed = words.gone(None, job(1)), words.gone(None, words.NO_JOB)
    assert deleted is not None
    assert removed is not None
    assert deleted.may_run_on
    assert not removed.may_run_on


def test_what_kubectl_says() -> None:
    stderr = 'Warning: would violate PodSecurity\nE1128 00:49:41 memcache.go: x\nError from server: no "x"\n'
    assert said(stderr) == 'Error from server: no "x"'
    lacks = (
        'Error from server (Forbidden): pods "t-0" is forbidden: User "ada" cannot create resource "pods/exec" in '
        'API group "" in the namespace "vision"'
    )
    assert error_of(KubectlFailed(lacks), "x").message == (
        "kubernetes: ada lacks the right to create pods/exec in the namespace vision"
    )
    assert error_of(KubectlFailed("connection refused"), "it").message == "kubernetes: it: connection refused"


def test_pods_of_all_sizes_are_one_group() -> None:
    made = jobs(slots("k8s:ps=1x0+worker=2x1,image=python:3"), None, "tflaunch-1", {})
    assert [each.pod["schedulingGroup"] for each in in_gang(made, "g")] == [{"podGroupName": "g"}] * 2
    assert all("schedulingGroup" not in each.pod for each in made)
    group = pod_group("g", 3, {"metadata": {"name": made[0].name, "uid": "u"}})
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 3}}}
    assert [(each["kind"], each["uid"]) for each in group["metadata"]["ownerReferences"]] == [("Job", "u")]
    for word in ("k8s:1,image=python:3", "k8s:2,image=python:3,queue=night"):  # alone; Kueue's to place
        made = jobs(slots(word), None, "t", {})
        assert in_gang(made, "g") == made
