"""What pods, Jobs and their events say, in sentences: why slots are not there yet, never will be, or are over.

Pods, Jobs and events are as `kubectl get -o json` has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.protocol.errors import Gone, NotGiven, PlanError, TflaunchError
from tflaunch.text.numbers import counted

Thing = Mapping[str, Any]

TAKEN_BACK = 75
KILLED = 137
AGAIN = "start the run again"
QUOTA = "exceeded quota: "
GANG = "minCount ("  # how the scheduler's word begins for a pod that waits for others of its group
LONGEST = 400  # characters of what Kubernetes says
# What does not become right by itself, as the kubelet names it.
PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
BROKEN = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "CrashLoopBackOff",
)
DISRUPTIONS = {
    "EvictionByEvictionAPI": "the pod was evicted, as when a node is drained",
    "PreemptionByScheduler": "the pod was preempted by one of a higher priority",
    "DeletionByTaintManager": "the pod's node is not ready, or was tainted",
    "DeletionByPodGC": "the pod's node is gone",
    "TerminationByKubelet": "the node has ended the pod",
}
_UNITS = {
    "": 1.0,
    "m": 1e-3,
    **{unit: 1000.0**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: 1024.0**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def name_of(thing: Thing) -> str:
    """The object's name."""
    return str(thing["metadata"]["name"])


def is_up(pod: Thing, container: str) -> bool:
    """Whether its slot holder has been started, and nobody ends it."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return any("running" in (each.get("state") or {}) for each in _statuses(pod, container))


def is_placed(pod: Thing) -> bool:
    """Whether it has a node."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def _statuses(pod: Thing, container: str = "") -> list[Thing]:
    status = pod.get("status") or {}
    all_of_it = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return [each for each in all_of_it if not container or each.get("name") == container]


def _condition(thing: Thing, kind: str, value: str = "True") -> Thing | None:
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind and each["status"] == value), None)


def never(jobs: Sequence[Thing], pods: Sequence[Thing], events: Sequence[Thing]) -> TflaunchError | None:
    """Why these Jobs can never be slots; None while they can."""
    for pod in pods:
        for each in _statuses(pod):
            waiting = (each.get("state") or {}).get("waiting") or {}
            reason, message = str(waiting.get("reason", "")), _short(waiting.get("message", ""))
            if reason in PULL:
                return PlanError(
                    f"kubernetes: the image {each.get('image')} cannot be pulled: {message or reason}",
                    "is its name right, and may the cluster pull it? see imagePullSecrets",
                )
            if reason in BROKEN:
                return _not_started(message or reason)
            if ended := (each.get("state") or {}).get("terminated"):
                message = _short(ended.get("message", ""))
                if ended.get("reason") in BROKEN or "executable file not found" in message:
                    return _not_started(message)
        if (pod.get("status") or {}).get("phase") == "Failed" and not pod["metadata"].get(
            "deletionTimestamp"
        ):
            return _ended_early(pod)
    for job in jobs:
        if failed := _condition(job, "Failed") or _condition(job, "FailureTarget"):
            return NotGiven(
                f"kubernetes: the Job has failed before its slots were there: {_said(failed)}", AGAIN
            )
    for job, message in _refusals(jobs, events):
        if (error := _refusal(job, message)) is not None:
            return error
    return None


def _not_started(message: str) -> PlanError:
    hint = "the image needs python3, 3.8 or newer, and /bin/sh"
    return PlanError(f"kubernetes: the container cannot be started: {message}", hint)


def _ended_early(pod: Thing) -> TflaunchError:
    words = over_words(pod, None) or "its container has ended"
    if (code := exit_code(pod)) not in (None, TAKEN_BACK, KILLED):
        return PlanError(
            f"kubernetes: the slot holder in pod {name_of(pod)} has ended with {code}, before it was called",
            f"what it said: kubectl logs {name_of(pod)}; it needs Python 3.8 or newer",
        )
    return NotGiven(f"kubernetes: pod {name_of(pod)} is over before all slots were there: {words}", AGAIN)


def _refusals(jobs: Sequence[Thing], events: Sequence[Thing]) -> Iterator[tuple[Thing, str]]:
    """Jobs whose pods cannot be made, each with the latest reason."""
    for job in jobs:
        status = job.get("status") or {}
        lacks = int(job["spec"].get("parallelism") or 0) - int(status.get("active") or 0)
        said = [
            each
            for each in events
            if each.get("reason") == "FailedCreate"
            and (each.get("involvedObject") or {}).get("uid") == job["metadata"]["uid"]
        ]
        if lacks > 0 and said:
            yield job, str(max(said, key=_at).get("message", ""))


def _at(event: Thing) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _refusal(job: Thing, message: str) -> TflaunchError | None:
    count = int(job["spec"].get("parallelism") or 0)
    if quota := _quota(message):
        name, requested, limited = (
            quota.partition(", ")[0],
            _amounts(quota, "requested"),
            _amounts(quota, "limited"),
        )
        for resource, each in requested.items():
            if each * count > limited.get(resource, float("inf")):
                return PlanError(
                    f"kubernetes: {counted(count, 'slot')} of this size are more than the quota {name} "
                    f"has: {QUOTA}{_short(quota)}",
                    "ask for fewer or smaller ones, or have the quota raised",
                )
        return None
    if "violates PodSecurity" in message:
        return PlanError(
            f"kubernetes: the namespace refuses the pods: {_short(message)}",
            "user=1000 makes pods that pass where `restricted` is enforced; the image must run as that user",
        )
    if "denied the request" in message or "Invalid value" in message:
        return PlanError(f"kubernetes: the cluster refuses the pods: {_short(message)}", "ask who runs it")
    return None


def _quota(message: str) -> str:
    """What stands behind QUOTA: `small, requested: pods=1, used: pods=2, limited: pods=2`; "" where that does not."""
    return message.partition(QUOTA)[2]


def _amounts(quota: str, kind: str) -> dict[str, float]:
    """The amounts behind `requested: `, as `pods=1,requests.cpu=500m`, in numbers."""
    found = {}
    for each in quota.partition(f"{kind}: ")[2].partition(", ")[0].split(","):
        name, _, amount = each.strip().partition("=")
        number = amount.rstrip("KkMGTPEim")
        with contextlib.suppress(ValueError):
            found[name] = float(number) * _UNITS.get(amount[len(number) :], 1.0)
    return found


def waits(jobs: Sequence[Thing], pods: Sequence[Thing], events: Sequence[Thing], queue: str = "") -> str:
    """Why the slots that are not there yet are not, in words of the cluster."""
    for job in jobs:
        if job["spec"].get("suspend"):
            return f"the Job waits in the queue {queue}" if queue else "the Job is suspended"
    for _, message in _refusals(jobs, events):
        quota = _quota(message)
        return f"a quota stands before it: {QUOTA}{_short(quota)}" if quota else _short(message)
    unplaced: dict[str, int] = {}
    for pod in pods:
        if condition := _condition(pod, "PodScheduled", "False"):
            message = _short(condition.get("message", "")) or str(condition.get("reason", ""))
            unplaced[message] = unplaced.get(message, 0) + 1
    # Of a group that has no room only one pod has the reason; the others wait for it.
    waiting = sum(unplaced.pop(each) for each in [*unplaced] if each.startswith(GANG) and len(unplaced) > 1)
    if unplaced:
        message, count = max(unplaced.items(), key=lambda each: each[1])
        count += waiting
        for rest in (" no new claims to deallocate", " preemption: "):  # of no use here
            message = message.partition(rest)[0].rstrip(".,")
        return f"{counted(count, 'pod')} {'has' if count == 1 else 'have'} no node yet: {message}"
    starting = [pod for pod in pods if is_placed(pod) and not is_up(pod, "")]
    for event in sorted(events, key=_at, reverse=True):
        of = (event.get("involvedObject") or {}).get("name")
        if event.get("type") == "Warning" and str(of) in {name_of(pod) for pod in starting}:
            return _short(event.get("message", ""))
    return "the containers start" if starting else "the Job's pods are made"


def _short(text: object) -> str:
    one_line = " ".join(str(text).split())
    return one_line if len(one_line) <= LONGEST else one_line[: LONGEST - 3] + "..."


def _said(condition: Thing) -> str:
    reason, message = str(condition.get("reason", "")), _short(condition.get("message", ""))
    return f"{reason}: {message}" if reason and message else reason or message


def exit_code(pod: Thing) -> int | None:
    """The exit status of its slot holder, the first container; None where the kubelet has told none."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if ended := (each.get("state") or {}).get("terminated"):
            return int(ended.get("exitCode", 0))
        return None
    return None


def over_words(pod: Thing, job: Thing | None) -> str:
    """Why a pod is over, or ends; "" where nothing tells.  `job` is None where it is not known."""
    if disruption := _condition(pod, "DisruptionTarget"):
        words = DISRUPTIONS.get(str(disruption.get("reason")), str(disruption.get("reason")))
        message = _short(disruption.get("message", ""))
        return f"{words} ({message})" if message else words
    status = pod.get("status") or {}
    for each in _statuses(pod):
        if ((each.get("state") or {}).get("terminated") or {}).get("reason") == "OOMKilled":
            return "the container has used more memory than its limit, and was killed (OOMKilled)"
    if reason := status.get("reason"):
        return _said({"reason": reason, "message": status.get("message", "")})
    if job is None:
        return ""
    for kind in ("FailureTarget", "Failed"):
        if (failed := _condition(job, kind)) and failed.get("reason") == "DeadlineExceeded":
            return "the Job's deadline, activeDeadlineSeconds, is over"
    if job["spec"].get("suspend"):
        return "the Job was suspended, as Kueue does to take its pods back"
    if not job["metadata"].get("name") or job["metadata"].get("deletionTimestamp"):
        return "the Job was deleted"
    return ""


NO_JOB: Thing = {"metadata": {"name": ""}, "spec": {}}  # of pods whose Job is no more


def gone(pod: Thing | None, job: Thing | None) -> Gone | None:
    """That the slot is over, which a pod tells; None while it is not.  `pod`: None where there is no such pod."""
    if pod is None:
        if job is NO_JOB:  # pods of a Job that is deleted go when the kubelet has ended them
            why = "the Job is no more, and its pods are gone: it was deleted, or was over for longer than its TTL"
            return Gone(f"kubernetes: {why}", AGAIN, swept=True, in_order=True)
        return Gone("kubernetes: the pod was deleted", AGAIN)
    if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
        return None
    code = exit_code(pod)
    words = over_words(pod, job)
    if code is None:  # marked so while its kubelet is away
        return Gone(f"kubernetes: {words or 'the pod has failed'}", AGAIN)
    in_order = code not in (TAKEN_BACK, KILLED) and not words
    said = words or (
        "the slot holder has ended" if in_order else f"the slot was taken back (exit status {code})"
    )
    return Gone(f"kubernetes: {said}", AGAIN, swept=True, in_order=in_order, code=code if in_order else None)
