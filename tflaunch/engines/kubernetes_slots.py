"""Slots from Kubernetes: pods of Indexed Jobs, one slot holder each.

    tflaunch run k8s:4x8,image=tensorflow/tensorflow:latest-gpu trainer.py

kubectl is the client, and `kubectl exec` the way in.  By it a slot holder is also told to open a TLS port: where that
can be dialled from here it is the better way, for it needs no kubelet, no API server, and no process here.  What a set
of slots is, its labels say, so that the kubeconfig alone leads to it.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tflaunch.engines import kubernetes_words as words
from tflaunch.engines.door import SlotDoor, make_certificate
from tflaunch.engines.engine import ForWhom, GivenSlots, Handle
from tflaunch.engines.holder_text import relay_text
from tflaunch.engines.kubectl import Kubectl, KubectlFailed, error_of, here, whoami
from tflaunch.engines.kubernetes_jobs import (
    GANG,
    KEYS,
    QUEUE,
    ROLE,
    RUN,
    SET,
    USER,
    SlotJob,
    gpus_of,
    in_gang,
    jobs,
    pod_group,
    read_template,
)
from tflaunch.engines.kubernetes_rights import Rights, places_gangs
from tflaunch.hosts import Host
from tflaunch.inputs.engine_words import WantedSlots
from tflaunch.protocol.errors import ConnectError, Gone, NotGiven, PlanError, TflaunchError, UsageError
from tflaunch.sessions.process_wire import ProcessWire
from tflaunch.sessions.wires import Advice, Wire
from tflaunch.text.numbers import counted

LOOK_S = 0.5  # between two looks at pods that are to come
LATER_S = 3.0  # the same when they have been long in coming
LONG_S = 30.0
FRESH_S = 1.0  # how old a look at pods may be that many wires share
PARTIAL_S = 60.0  # for the other pods to have a node, once one has
AGAIN_S = (20.0, 60.0)  # until all are asked for again
RELEASE_S = 12  # for a Job and its pods to be gone
WORDS_S = 1.5  # for the cluster to say why a pod ends, beside that it does
STARTED_S = 60  # for a slot holder to listen, once its container runs
AT_ONCE = 16
ADVICE = Advice(
    silence=": the pod's node is too busy, or something between here and the API server holds it back",
    start_up="what starts before the agent there must not read its input or write to its output: look at sitecustomize",
    no_shell="commands are run by /bin/sh there: does the image have one?",
    ended="is a python3, 3.8 or newer, on the PATH of the image?",
    large_packets="are large packets lost between here and the API server (MTU)?",
    cut="was the pod's node, its kubelet or the API server restarted? see kubectl get nodes",
)
OPEN_S = 3.0  # for the TLS port of a slot where it did answer, before kubectl is the way in
DOOR_S = 0.5  # for a slot holder's TLS port to answer when slots are new; where none does, none is dialled
# Says where the slot holder listens, once it does, with a TLS port by what is on stdin: it works in its own directory.
TOLD = f"""
import json, os, socket, sys, time
wanted = sys.stdin.readline()
until, found = time.time() + {STARTED_S}, []
while not found and time.time() < until:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            place = os.readlink("/proc/%s/cwd" % pid)
        except OSError:
            continue
        path = os.path.join(place, "slot.sock")
        if os.path.basename(place).startswith("tflaunch-slot-") and os.path.exists(path):
            found.append(path)
    time.sleep(0.05)
for path in found[:1]:
    caller = socket.socket(socket.AF_UNIX)
    os.chdir(os.path.dirname(path))
    caller.connect("slot.sock")
    caller.sendall(wanted.encode())
    print("slot " + json.dumps({{"socket": path, **json.loads(caller.makefile().readline())}}))
"""


class Kubernetes:
    """The engine, in the launcher's process."""

    keys = KEYS
    place = "template"
    stays = ""
    at_once = AT_ONCE
    forgets = True

    def __init__(self) -> None:
        self._looks: dict[str, PodLook] = {}
        self._lock = threading.Lock()

    def take(self, wanted: WantedSlots, about: ForWhom) -> GivenSlots:
        settings = wanted.settings
        template = read_template(settings["template"]) if settings.get("template") else None
        name = f"tflaunch-{secrets.token_hex(4)}"
        jobs(wanted, template, name, {})  # nothing is asked of the cluster for what cannot be
        kubectl = here(settings)
        rights = Rights(kubectl)
        rights.check()
        gang = rights.may_make_gangs() and places_gangs(kubectl)
        of = {SET: name, USER: whoami(kubectl), **({RUN: about.run_id} if about.run_id else {})}
        handle = {
            "set": name,
            "namespace": kubectl.namespace,
            "context": kubectl.context,
            "kubeconfig": kubectl.kubeconfig,
        }
        about.note(handle)
        made: list[SlotJob] = []
        try:
            for attempt in range(1, 10**6):
                named = name if attempt == 1 else f"{name}-{attempt}"
                made = jobs(wanted, template, named, of)
                if gang:
                    made = in_gang(made, named)
                try:
                    hosts = self._ask(kubectl, made, handle, settings, about)
                    break
                except Partial as partial:
                    count = sum(job.group.count for job in made)
                    self.release(handle, ())
                    self._again(str(partial), count, about)
        except BaseException:
            self.release(handle, ())
            raise
        return GivenSlots(handle, hosts, about.run_id)

    @staticmethod
    def _again(why: str, count: int, about: ForWhom) -> None:
        """Leave the room that was there to others for a while: two who each have a part would wait for ever."""
        until = time.monotonic() + random.uniform(*AGAIN_S)  # noqa: S311 - no secret
        while (left := until - time.monotonic()) > 0:
            about.waits(0, count, f"{why}; given back, and asked for again in {left:.0f} s")
            about.pause(min(1.0, left))

    def _ask(
        self,
        kubectl: Kubectl,
        made: Sequence[SlotJob],
        handle: Handle,
        settings: Mapping[str, str],
        about: ForWhom,
    ) -> tuple[Host, ...]:
        documents = {"apiVersion": "v1", "kind": "List", "items": [job.document for job in made]}
        try:
            kubectl.ask("create", "-f", "-", text=json.dumps(documents))
        except KubectlFailed as refused:
            raise _not_made(refused) from None
        self._make_group(kubectl, made, handle["set"])
        pods = self._pods(kubectl, made, handle["set"], about)
        about.waits(len(pods), len(pods), "the slot holders start")
        try:
            told = _in_parallel(_Asking(kubectl), pods, about)
        except ConnectError:
            with contextlib.suppress(KubectlFailed):  # it may have ended at once
                now, found = _pods_and_jobs(kubectl, handle["set"])
                if (error := words.never(found, now, ())) is not None:
                    raise error from None
            raise
        return tuple(
            _host(pod, handle, said, job.container, gpus_of(job, settings))
            for (job, pod), said in zip(pods, told, strict=True)
        )

    @staticmethod
    def _make_group(kubectl: Kubectl, made: Sequence[SlotJob], name: str) -> None:
        """Make the pod group that these Jobs' pods name, if they do; it ends with the first of them."""
        if not (group := made[0].pod[GANG]["podGroupName"] if GANG in made[0].pod else ""):
            return
        try:
            owners = kubectl.objects("jobs", f"--selector={SET}={name}")
            owner = next(each for each in owners if words.name_of(each) == made[0].name)
            count = sum(job.group.count for job in made)
            kubectl.ask("create", "-f", "-", text=json.dumps(pod_group(group, count, owner)))
        except KubectlFailed as refused:
            raise error_of(refused, "the pod group cannot be made") from None
        except StopIteration:
            raise NotGiven(
                "kubernetes: the Job was deleted before its slots were there", words.AGAIN
            ) from None

    def _pods(
        self, kubectl: Kubectl, made: Sequence[SlotJob], name: str, about: ForWhom
    ) -> list[tuple[SlotJob, words.Thing]]:
        """The pods of these Jobs, once all of them run, in the order of the sizes."""
        count = sum(job.group.count for job in made)
        partial_since: float | None = None
        began = time.monotonic()
        lost = 0
        while True:
            try:
                pods, found = _pods_and_jobs(kubectl, name)
                events = (
                    kubectl.objects("events", "--field-selector=type=Warning") if len(pods) < count else []
                )
                lost = 0
            except KubectlFailed as refused:
                lost += 1
                error = error_of(refused, "its pods cannot be looked at")
                if "forbidden" in str(refused) or lost > 20:
                    raise error from None
                about.waits(0, count, error.message)
                about.pause(2.0)
                continue
            if (error_now := words.never(found, pods, events)) is not None:
                raise error_now
            if len(found) < len(made):
                raise NotGiven("kubernetes: the Job was deleted before its slots were there", words.AGAIN)
            up = {
                job.name: sorted(
                    (pod for pod in pods if _job_of(pod) == job.name and words.is_up(pod, job.container)),
                    key=_index,
                )
                for job in made
            }
            given = sum(map(len, up.values()))
            if given == count:
                return [(job, pod) for job in made for pod in up[job.name]]
            queue = found[0]["metadata"].get("labels", {}).get(QUEUE, "")
            starting = [pod for pod in pods if words.is_placed(pod)]
            if starting and len(pods) == count == len(starting):
                with contextlib.suppress(KubectlFailed):
                    events = _warnings(kubectl, "Pod")
            why = words.waits(found, pods, events, queue)
            about.waits(given, count, why)
            if not 0 < len(starting) < count:
                partial_since = None
            elif time.monotonic() > (partial_since := partial_since or time.monotonic()) + PARTIAL_S:
                raise Partial(f"there is room for {len(starting)} of {counted(count, 'pod')}: {why}")
            about.pause(LOOK_S if time.monotonic() < began + LONG_S else LATER_S)

    def open(self, host: Host, command: str, first: bytes, timeout_s: float) -> Wire:
        slot = host.slot
        if (gone := self.over(host)) is not None:
            raise gone
        if slot.get("way") == "door":
            door = _door(slot)
            try:
                line = door.dial(min(timeout_s, OPEN_S))
            except ConnectError:
                line = None
            if line is not None:
                return door.start(line, command, first)
        relay = ("python3", "-c", relay_text(), slot["socket"], command)
        return ProcessWire(_kubectl(slot).exec_words(slot["pod"], slot["container"], *relay), first, ADVICE)

    def over(self, host: Host) -> Gone | None:
        return self._look(host.slot).gone(host.slot["pod"], host.slot["job"])

    def why(self, host: Host) -> str | None:
        said = self._look(host.slot).why(host.slot["pod"], host.slot["job"])
        return said and f"kubernetes: {said}"

    def release(self, handle: Handle, hosts: Sequence[Host]) -> None:  # noqa: ARG002 - of every engine
        with contextlib.suppress(KubectlFailed, ConnectError, KeyError):
            _kubectl(handle).run(
                "delete",
                "jobs",
                f"--selector={SET}={handle['set']}",
                *("--cascade=foreground", "--ignore-not-found", f"--timeout={RELEASE_S}s"),
                timeout_s=RELEASE_S + 5,
            )

    def there(self, settings: Mapping[str, str]) -> Sequence[GivenSlots]:
        kubectl = here(settings)
        try:
            pods = kubectl.objects("pods", f"--selector={USER}={whoami(kubectl)},{SET}")
        except KubectlFailed as refused:
            raise error_of(refused, "your pods cannot be listed") from None
        found = []
        ask = _Asking(kubectl)
        for name in sorted({pod["metadata"]["labels"][SET] for pod in pods}):
            handle = {
                "set": name,
                "namespace": kubectl.namespace,
                "context": kubectl.context,
                "kubeconfig": kubectl.kubeconfig,
            }
            mine = sorted(
                (pod for pod in pods if pod["metadata"]["labels"][SET] == name),
                key=lambda pod: (_job_of(pod), _index(pod)),
            )
            hosts = []
            for pod in mine:
                container = str(pod["spec"]["containers"][0]["name"])
                if words.is_up(pod, container):
                    with contextlib.suppress(TflaunchError):  # it has ended meanwhile
                        hosts.append(_host(pod, handle, ask.about(pod, container), container, 0))
            if hosts:
                found.append(GivenSlots(handle, tuple(hosts), mine[0]["metadata"]["labels"].get(RUN, "")))
        return found

    def _look(self, slot: Mapping[str, str]) -> PodLook:
        with self._lock:
            return self._looks.setdefault(slot["set"], PodLook(_kubectl(slot), slot["set"]))


class Partial(Exception):
    """A part of the pods has nodes, and the others wait for some."""


class PodLook:
    """What the API server says of the pods of one set: asked once for all wires that want to know at a time."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self._kubectl, self._name = kubectl, name
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._pods: dict[str, words.Thing] | None = None  # None: it cannot be asked
        self._jobs: dict[str, words.Thing] = {}
        self._known: dict[str, words.Thing] = {}  # pods as they were last seen
        self._ends: dict[str, float] = {}  # since when it is known that a pod ends

    def gone(self, pod: str, job: str) -> Gone | None:
        """That a slot is over; None while it is not, and where nobody knows."""
        pods = self._fresh()
        return None if pods is None else words.gone(pods.get(pod), self._job(job))

    def why(self, pod: str, job: str) -> str:
        """Why a slot ends; "" while that is not known."""
        pods = self._fresh(0.2)
        if pods is None:
            return ""
        seen = pods.get(pod) or self._known.get(pod)
        if said := words.over_words(seen, self._job(job)) if seen is not None else "":
            return said
        if pod in pods and not pods[pod]["metadata"].get("deletionTimestamp"):
            return ""
        # The reason may come a moment after the fact.
        since = self._ends.setdefault(pod, time.monotonic())
        return "the pod was deleted" if time.monotonic() > since + WORDS_S else ""

    def _job(self, name: str) -> words.Thing:
        return self._jobs.get(name, words.NO_JOB)

    def _fresh(self, age: float = FRESH_S) -> dict[str, words.Thing] | None:
        with self._lock:
            if time.monotonic() > self._at + age:
                try:
                    pods, found = _pods_and_jobs(self._kubectl, self._name)
                    self._pods = {words.name_of(pod): pod for pod in pods}
                    self._jobs = {words.name_of(job): job for job in found}
                    self._known.update(self._pods)
                except (KubectlFailed, ConnectError):
                    self._pods = None
                self._at = time.monotonic()
            return self._pods


def _pods_and_jobs(kubectl: Kubectl, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found = kubectl.objects("pods,jobs", f"--selector={SET}={name}")
    pods = [each for each in found if each.get("kind") == "Pod"]
    return pods, [each for each in found if each.get("kind") == "Job"]


def _warnings(kubectl: Kubectl, kind: str) -> list[dict[str, Any]]:
    """The events of the namespace that may say why objects of that kind do not come about."""
    return kubectl.objects("events", f"--field-selector=type=Warning,involvedObject.kind={kind}")


def _kubectl(slot: Mapping[str, str]) -> Kubectl:
    return Kubectl(slot["namespace"], slot.get("context", ""), slot.get("kubeconfig", ""))


def _job_of(pod: words.Thing) -> str:
    return str(pod["metadata"]["labels"].get("batch.kubernetes.io/job-name", ""))


def _index(pod: words.Thing) -> int:
    return int(pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", "0"))


class _Asking:
    """Asks slot holders in pods where they listen, and has each open a TLS port."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        certificate, key = make_certificate()
        door = {"certificate": certificate, "key": key, "token": secrets.token_hex(16)}
        self._line = json.dumps({"door": door}) + "\n"
        self._may_dial = True

    def __call__(self, pod: tuple[SlotJob, words.Thing]) -> Mapping[str, str]:
        return self.about(pod[1], pod[0].container)

    def about(self, pod: words.Thing, container: str) -> Mapping[str, str]:
        """What `slot` of a host says of it: the way in.  Raises ConnectError."""
        name = words.name_of(pod)
        try:
            argv = self._kubectl.exec_words(name, container, "python3", "-c", TOLD)
            text = self._kubectl.run(*argv[argv.index("exec") :], text=self._line, timeout_s=STARTED_S + 30)
            said = json.loads(text.rpartition("slot ")[2])
            slot = {"socket": str(said["socket"]), "way": "exec"}
            if "port" in said:
                slot |= {"address": str(pod["status"].get("podIP", "")), "port": str(said["port"])}
                slot |= {"certificate": str(said["certificate"]), "token": str(said["token"])}
        except KubectlFailed as refused:
            raise error_of(refused, f"nothing can be run in pod {name}") from None
        except (ValueError, KeyError, TypeError):
            raise ConnectError(
                f"kubernetes: the slot holder in pod {name} does not listen",
                f"what it said: kubectl logs {name}",
            ) from None
        if self._may_dial and slot.get("address"):
            try:
                _door(slot).look(DOOR_S)
                slot["way"] = "door"
            except ConnectError:
                self._may_dial = False  # pods have a network of their own, most often
        return slot


def _door(slot: Mapping[str, str]) -> SlotDoor:
    return SlotDoor((slot["address"],), int(slot["port"]), slot["certificate"], slot["token"])


def _in_parallel(
    do: Callable[[tuple[SlotJob, words.Thing]], Mapping[str, str]],
    pods: Sequence[tuple[SlotJob, words.Thing]],
    about: ForWhom,
) -> list[Mapping[str, str]]:
    """What `do` returns for each, in order; Ctrl-C ends the wait."""
    pool = ThreadPoolExecutor(AT_ONCE, "kubectl exec")
    try:
        running = [pool.submit(do, each) for each in pods]
        while not all(each.done() for each in running):
            about.pause(0.05)
        return [each.result() for each in running]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _not_made(refused: KubectlFailed) -> TflaunchError:
    """Why the Jobs were not made."""
    text = str(refused)
    if "denied the request" in text:
        return PlanError(f"kubernetes: the cluster refuses the Job: {text}", "ask who runs it")
    if "exceeded quota" in text:
        return PlanError(f"kubernetes: a quota stands before the Job: {text}", "ask for less")
    if " is invalid: " in text or "strict decoding error" in text or "cannot be handled" in text:
        return UsageError(f"k8s: {text}", "is it right in the template, and in the settings?")
    if "NotFound" in text and "namespaces" in text:
        return UsageError(f"k8s: {text}", "namespace=NAME names one of yours")
    return error_of(refused, "the Job cannot be made")


def _host(pod: words.Thing, handle: Handle, way: Mapping[str, str], container: str, gpus: int) -> Host:
    labels = pod["metadata"]["labels"]
    name = words.name_of(pod)
    return Host(
        name=name,
        connection="k8s",
        ssh_host=name,
        address=str(pod["status"].get("podIP", "")) or None,
        run_dir=f"{way['socket'].rpartition('/')[0]}/runs",
        gpus="auto" if gpus else 0,
        slots_by=f"k8s:{handle['set']}",
        labels={"role": labels[ROLE]} if ROLE in labels else {},
        slot={
            **handle,
            "id": str(pod["metadata"]["uid"]),
            "pod": name,
            "job": _job_of(pod),
            "node": str(pod["spec"].get("nodeName", "")),
            "container": container,
            **way,
        },
    )


ENGINE = Kubernetes()
