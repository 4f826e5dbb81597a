"""The Jobs that slots on Kubernetes are pods of: an Indexed Job for each size, from settings or a user's template."""

from __future__ import annotations

import base64
import copy
import dataclasses
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tflaunch.engines.engine import EngineKey
from tflaunch.engines.holder_text import holder_text
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.engine_words import SlotGroup, WantedSlots
from tflaunch.inputs.missing_files import no_such_file
from tflaunch.protocol.errors import UsageError

CONTAINER = "slot"
GRACE_S = 30.0  # Kubernetes's own default
LESS_S = 3.0  # of the grace is left for the slot holder itself
IDLE_S = 20.0
FIRST_S = 600.0  # other slots may have an image to pull
TTL_S = 600.0
CPUS, MEMORY, SHM = "1", "2Gi", "1Gi"
GPU = "nvidia.com/gpu"
RUN, SET, USER, ROLE = (f"tflaunch/{each}" for each in ("run", "set", "user", "role"))
QUEUE = "kueue.x-k8s.io/queue-name"
GANG = "schedulingGroup"  # of a pod: which others are placed with it, or none
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
# A Job of ours is one try, and each of its pods is one slot: what says otherwise has no place in it.
NOT_OURS = (
    "backoffLimit",
    "manualSelector",
    "podFailurePolicy",
    "podReplacementPolicy",
    "selector",
    "successPolicy",
)

KEYS = (
    EngineKey("template", "A file with a Job, a pod or a pod template, as YAML.", example="job.yaml"),
    EngineKey(
        "image", "The image of the container: Python 3.8 or newer, and /bin/sh.", example="python:3.12"
    ),
    EngineKey("namespace", "The namespace; without it, that of kubectl.", example="vision"),
    EngineKey("context", "The context of kubectl.", example="lab"),
    EngineKey("cpus", f"CPUs that each slot requests ({CPUS}).", example="8"),
    EngineKey(
        "memory", f"Memory of each slot, request and limit; without it {MEMORY} and no limit.", example="64Gi"
    ),
    EngineKey("shm", f"The size of /dev/shm ({SHM}); what is in it counts as memory.", example="8Gi"),
    EngineKey("gpu", f"The resource that GPUs are ({GPU}).", example="amd.com/gpu"),
    EngineKey("user", "The uid in the container; without it, the image's.", "count", "1000"),
    EngineKey("queue", "The queue of Kueue that admits the Jobs.", example="night"),
    EngineKey("priority", "The priority class of the pods.", example="low"),
    EngineKey("grace", "Time from the end of a pod to its last moment (30s).", "time", "2m"),
    EngineKey("ttl", "Time until a Job that is over is removed, if tflaunch does not (10m).", "time", "1h"),
    EngineKey("idle", "Time until a slot in which nothing runs ends by itself (20s).", "time", "1m"),
)


@dataclass(frozen=True)
class SlotJob:
    """A Job whose pods are slots of one size."""

    name: str
    group: SlotGroup
    document: Mapping[str, Any] = field(repr=False)

    @property
    def container(self) -> str:
        """The name of the container that has the slot holder."""
        return str(self.pod["containers"][0]["name"])

    @property
    def pod(self) -> Mapping[str, Any]:
        """The specification of its pods."""
        pod: Mapping[str, Any] = self.document["spec"]["template"]["spec"]
        return pod


def read_template(path: str) -> dict[str, Any]:
    """The Job of that file; a pod or a pod template becomes one.  Raises UsageError."""
    try:
        read = list(yaml.safe_load_all(Path(path).read_text("utf-8")))
    except FileNotFoundError:
        raise no_such_file("k8s:", Path(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"k8s: {path}: {why}", "the file has a Job, a pod or a pod template") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date or a number that there is not
        raise UsageError(f"k8s: {path} is no YAML: {' '.join(str(error).split())}") from None
    found = [each for each in read if each is not None]
    if len(found) != 1 or not isinstance(found[0], dict):
        raise UsageError(
            f"k8s: {path} has {len(found)} objects", "one is wanted: a Job, a pod or a pod template"
        )
    said: dict[str, Any] = found[0]
    kind = said.get("kind")
    if kind == "Job":
        job = said
    elif kind == "Pod":
        job = {"spec": {"template": {"metadata": said.get("metadata"), "spec": said.get("spec")}}}
    elif kind == "PodTemplate":
        job = {"metadata": said.get("metadata"), "spec": {"template": said.get("template")}}
    else:
        raise UsageError(f"k8s: {path}: its kind is {kind!r}", "a Job, a Pod or a PodTemplate is wanted")
    try:
        containers = job["spec"]["template"]["spec"]["containers"]
        named = all(isinstance(each, dict) and each.get("name") for each in containers)
    except (KeyError, TypeError):
        containers, named = [], False
    if not isinstance(containers, list) or not containers or not named:
        raise UsageError(f"k8s: {path}: its pods have no container with a name")
    return job


def jobs(
    wanted: WantedSlots, template: Mapping[str, Any] | None, name: str, labels: Mapping[str, str]
) -> list[SlotJob]:
    """The Jobs for these slots.  Raises UsageError."""
    groups = wanted.groups
    if not groups and template is not None:
        spec = template["spec"]
        count = spec.get("parallelism", spec.get("completions", 1))
        groups = (SlotGroup(count if isinstance(count, int) and count > 0 else 1, -1),)  # GPUs as it says
    if not groups:
        raise UsageError("k8s: how many slots? none are named", "for example: k8s:4x8,image=IMAGE")
    made = []
    for group in groups:
        role = re.sub(r"[^a-z0-9-]+", "-", group.role.lower()).strip("-")[:30]
        settings = {**wanted.settings, **group.settings}
        whole = f"{name}-{role}" if role else name
        made.append(SlotJob(whole, group, _job(group, settings, template, whole, labels)))
    return made


def in_gang(made: Sequence[SlotJob], name: str) -> list[SlotJob]:
    """The same Jobs, with pods that are placed all together; where someone else does that, as they are."""
    if sum(job.group.count for job in made) < 2 or any(
        job.document["spec"].get("suspend") or GANG in job.pod for job in made
    ):
        return list(made)
    grouped = []
    for job in made:
        spec = job.document["spec"]
        template = {**spec["template"], "spec": {**job.pod, GANG: {"podGroupName": name}}}
        document = {**job.document, "spec": {**spec, "template": template}}
        grouped.append(dataclasses.replace(job, document=document))
    return grouped


def pod_group(name: str, count: int, owner: Mapping[str, Any]) -> dict[str, Any]:
    """The group of so many pods that ends with a Job."""
    of = {"apiVersion": "batch/v1", "kind": "Job"}
    of |= {key: owner["metadata"][key] for key in ("name", "uid")}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "ownerReferences": [of]},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }


def _job(
    group: SlotGroup,
    settings: Mapping[str, str],
    template: Mapping[str, Any] | None,
    name: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    job: dict[str, Any] = copy.deepcopy(dict(template or {"spec": {"template": {"spec": {}}}}))
    above = job.get("metadata") or {}
    labels = {**labels, **({ROLE: group.role} if group.role else {})}
    queue = {QUEUE: settings["queue"]} if "queue" in settings else {}
    spec = {key: value for key, value in job["spec"].items() if key not in NOT_OURS}
    spec.setdefault("ttlSecondsAfterFinished", int(TTL_S))
    if "ttl" in settings:
        spec["ttlSecondsAfterFinished"] = int(seconds(settings["ttl"]))
    # A pod that is lost is not made anew: the run is over, or goes on in other slots.
    spec.update(completionMode="Indexed", completions=group.count, parallelism=group.count)
    spec.update(backoffLimitPerIndex=0, maxFailedIndexes=group.count)
    if queue or QUEUE in (above.get("labels") or {}):
        spec["suspend"] = True
    inside = spec["template"].get("metadata") or {}
    spec["template"] = {
        "metadata": {
            **{key: inside[key] for key in ("annotations",) if inside.get(key)},
            "labels": {**(inside.get("labels") or {}), **labels},
        },
        "spec": _pod(spec["template"].get("spec") or {}, group, settings),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **{key: above[key] for key in ("annotations",) if above.get(key)},
            "name": name,
            "labels": {**(above.get("labels") or {}), **queue, **labels},
        },
        "spec": spec,
    }


def _pod(pod: dict[str, Any], group: SlotGroup, settings: Mapping[str, str]) -> dict[str, Any]:
    own = not pod  # not a template's
    pod["restartPolicy"] = "Never"
    pod.setdefault("automountServiceAccountToken", False)
    pod.setdefault("enableServiceLinks", False)
    if "priority" in settings:
        pod["priorityClassName"] = settings["priority"]
    grace = float(pod.get("terminationGracePeriodSeconds") or GRACE_S)
    grace = seconds(settings["grace"]) if "grace" in settings else grace
    pod["terminationGracePeriodSeconds"] = int(grace)
    first, *others = pod.get("containers") or [{"name": CONTAINER}]
    pod["containers"] = [_container(first, group, settings, grace, own=own), *others]
    volumes = pod.setdefault("volumes", [])
    mounts = pod["containers"][0].setdefault("volumeMounts", [])
    if not any(each.get("mountPath") == "/dev/shm" for each in mounts):  # noqa: S108
        # Without it there are 64 MB, too few for NCCL and for what loads data.
        size = {"medium": "Memory", "sizeLimit": settings.get("shm", SHM)}
        volumes.append({"name": "tflaunch-shm", "emptyDir": size})
        mounts.append({"name": "tflaunch-shm", "mountPath": "/dev/shm"})  # noqa: S108
    if own or "user" in settings:
        security = pod.setdefault("securityContext", {})
        security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
        if "user" in settings:
            security.update(runAsUser=int(settings["user"]), runAsNonRoot=True)
    return pod


def _container(
    container: dict[str, Any], group: SlotGroup, settings: Mapping[str, str], grace: float, *, own: bool
) -> dict[str, Any]:
    if image := settings.get("image") or container.get("image"):
        container["image"] = str(image)
    else:
        raise UsageError(
            "k8s: which image? none is named", "add image=IMAGE: it needs Python 3.8 or newer, and /bin/sh"
        )
    for key in ("args", "stdin", "stdinOnce", "tty", *PROBES):
        container.pop(key, None)
    resources = container.setdefault("resources", {})
    requests = resources.setdefault("requests", {})
    limits = resources.setdefault("limits", {})
    gpu = settings.get("gpu", GPU)
    gpus = _gpus(limits, gpu) if group.gpus < 0 else group.gpus
    if own or "cpus" in settings:
        requests["cpu"] = settings.get("cpus", CPUS)
    if own:
        requests["memory"] = MEMORY
    if "memory" in settings:
        requests["memory"] = limits["memory"] = settings["memory"]
    if gpus:
        requests[gpu] = limits[gpu] = str(gpus)
    else:
        requests.pop(gpu, None)
        limits.pop(gpu, None)
    if own or "user" in settings:
        security = container.setdefault("securityContext", {})
        security.setdefault("allowPrivilegeEscalation", False)
        if "user" in settings:  # all that `restricted` asks for; root would lose what it is root for
            security["capabilities"] = {"drop": ["ALL"]}
    container["command"] = ["python3", "-c", _program(gpus, settings, grace)]
    return container


def gpus_of(job: SlotJob, settings: Mapping[str, str]) -> int:
    """How many GPUs each of its slots has."""
    limits = job.pod["containers"][0]["resources"]["limits"]
    return _gpus(limits, {**settings, **job.group.settings}.get("gpu", GPU))


def _gpus(limits: Mapping[str, Any], gpu: str) -> int:
    count = str(limits.get(gpu, "0"))
    return int(count) if count.isdigit() else 0


def _program(gpus: int, settings: Mapping[str, str], grace: float) -> str:
    """The slot holder, packed: whoever may read the pod's spec sees it, and there is no secret in it."""
    text = holder_text(
        {
            "grace_s": max(grace - LESS_S, grace / 2),
            "idle_s": seconds(settings["idle"]) if "idle" in settings else IDLE_S,
            "first_s": FIRST_S,
            "gpus": "" if gpus else "none",
            "logs": True,
        }
    )
    packed = base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
