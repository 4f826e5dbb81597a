"""What the ResourceManager says of nodes and applications: by its web service, else by the `yarn` command.

The web service answers in milliseconds, and says what is pending.  Where it wants a login of its own (Kerberos), the
command has to do: each question is a JVM.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Generic, TypeVar

from tflaunch.engines.yarn_commands import Yarn, YarnFailed
from tflaunch.protocol.errors import ConnectError

GPU = "yarn.io/gpu"
OVER = ("FINISHED", "FAILED", "KILLED")
REST_S = 4.0  # for the web service to answer
AGAIN_S = 30.0  # until one that has not answered is asked again
Answer = TypeVar("Answer")
ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class YarnNode:
    """A node that runs."""

    name: str
    has: Mapping[str, int]  # memory (MB), vCores, yarn.io/gpu, ...
    free_mb: int | None  # None: not known
    labels: tuple[str, ...]


@dataclass(frozen=True)
class AppReport:
    """How an application is."""

    state: str  # ACCEPTED, RUNNING, FINISHED, ...
    final: str = ""  # SUCCEEDED, FAILED, KILLED, UNDEFINED
    diagnostics: str = ""
    queue: str = ""
    pending: tuple[str, ...] | None = None  # the containers that wait for room; None: not known
    containers: frozenset[str] | None = None  # those that run; None: not known

    @property
    def is_over(self) -> bool:
        return self.state in OVER


@dataclass(frozen=True)
class ContainerEnd:
    """How a container has ended."""

    code: int  # its exit status, 128 + n for signal n; YARN's own are negative
    diagnostics: str


class Manager:
    """The ResourceManager of a cluster; any thread may ask."""

    def __init__(self, yarn: Yarn, settings: Mapping[str, str]) -> None:
        self.yarn = yarn
        self._addresses = addresses(settings)
        self._silent_until = 0.0

    def nodes(self) -> list[YarnNode]:
        """The nodes that run.  Raises YarnFailed, ConnectError."""
        said = self._ask("nodes?states=RUNNING")
        if said is not None:
            return [_node(each) for each in _listed(said["nodes"], "node")]
        return nodes_of(self.yarn.run("node", "-list", "-showDetails"))

    def largest(self, queue: str) -> Mapping[str, int]:
        """The most that a container may have in that queue ("": in any), as far as the web service says it."""
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            said = self._ask("scheduler")
            return largest_in(said["scheduler"]["schedulerInfo"], queue) if said is not None else {}
        return {}

    def report(self, application: str) -> AppReport | None:
        """How an application is; None where YARN knows none of that name.  Raises YarnFailed, ConnectError."""
        try:
            said = self._ask(f"apps/{application}")
        except KeyError:
            return None
        if said is not None:
            app = said["app"]
            report = report_from(app, None)
            if report.state == "RUNNING" and _is_shown(app):
                with contextlib.suppress(KeyError):
                    return report_from(app, self._containers(application))
            return report
        try:
            return report_of(self.yarn.run("application", "-status", application))
        except YarnFailed as refused:
            if "doesn't exist" in str(refused):
                return None
            raise

    def _containers(self, application: str) -> frozenset[str] | None:
        attempts = self._ask(f"apps/{application}/appattempts")
        if not (listed := _listed((attempts or {}).get("appAttempts"), "appAttempt")):
            return None
        last = max(listed, key=lambda each: int(each["id"]))
        name = str(last["appAttemptId"])
        said = self._ask(f"apps/{application}/appattempts/{name}/containers")
        if said is None:
            return None
        found = _listed(said.get("containers") or said, "container")
        return frozenset(str(each["containerId"]) for each in found)

    def _ask(self, what: str) -> dict[str, Any] | None:
        """What the web service says; None where there is none for us.  Raises KeyError for what it does not know."""
        if time.monotonic() < self._silent_until:
            return None
        for address in self._addresses:
            try:
                return asked(f"{address}/ws/v1/cluster/{what}")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    raise KeyError(what) from None
            except (OSError, HTTPException, ValueError, RecursionError):
                continue  # the other one may be the active one
        self._silent_until = time.monotonic() + AGAIN_S
        return None


def container_end(web: str, container: str) -> ContainerEnd | None:
    """How a container has ended, as its NodeManager says for some seconds; None where it does not, or it runs."""
    try:
        said = asked(f"http://{web}/ws/v1/node/containers/{container}")["container"]
        if said["state"] in ("NEW", "LOCALIZING", "SCHEDULED", "RUNNING", "PAUSED", "REINITIALIZING"):
            return None
        return ContainerEnd(int(said["exitCode"]), " ".join(str(said.get("diagnostics", "")).split()))
    except (OSError, HTTPException, ValueError, RecursionError, LookupError, TypeError):
        return None


def asked(url: str) -> dict[str, Any]:
    """What a web service of YARN says.  Raises OSError, HTTPException, ValueError."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - http(s), as made here
    # Proxies are for the world outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=REST_S) as reply:
        return dict(json.loads(reply.read(ANSWER_BYTES)))


class SharedLook(Generic[Answer]):
    """What is asked in a thread of its own, once for all who want to know at a time."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._changed = threading.Condition()
        self._asking = False
        self._at = float("-inf")
        self._found: Answer | None = None
        self.error = ""  # why the last question has no answer

    def fresh(self, age_s: float, wait_s: float) -> Answer | None:
        """The last answer, which is so old at most, or all that has come within `wait_s`; None: nobody knows."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            if time.monotonic() > self._at + age_s and not self._asking:
                self._asking = True
                threading.Thread(target=self._work, name="ask YARN", daemon=True).start()
            while self._asking and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._found

    def _work(self) -> None:
        found, error = None, ""
        try:
            found = self._ask()
        except (YarnFailed, ConnectError, LookupError, TypeError, ValueError) as failed:
            error = str(failed)
        with self._changed:
            self._found, self.error, self._at, self._asking = found, error, time.monotonic(), False
            self._changed.notify_all()


def addresses(settings: Mapping[str, str]) -> list[str]:
    """Where the ResourceManagers' web services are, as yarn-site.xml has it."""
    secure = settings.get("yarn.http.policy") == "HTTPS_ONLY"
    key = "yarn.resourcemanager.webapp.https.address" if secure else "yarn.resourcemanager.webapp.address"
    port = 8090 if secure else 8088
    found = []
    ids = settings.get("yarn.resourcemanager.ha.rm-ids", "")
    for end in [f".{each.strip()}" for each in ids.split(",") if each.strip()] or [""]:
        host = settings.get(f"yarn.resourcemanager.hostname{end}")
        address = settings.get(f"{key}{end}") or (f"{host}:{port}" if host else "")
        if address and "${" not in address:
            found.append(f"{'https' if secure else 'http'}://{address}")
    return found


def resources(text: str) -> dict[str, int]:
    """The numbers of `<memory:2048, vCores:8, yarn.io/gpu: 2>`."""
    pairs = (part.strip(" <>").rpartition(":") for part in text.split(","))
    return {name.strip(): int(number) for name, _, number in pairs if number.strip().isdecimal()}


def nodes_of(text: str) -> list[YarnNode]:
    """The nodes that `yarn node -list -showDetails` prints."""
    found: list[YarnNode] = []
    name, has = "", {}
    used: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        key, _, value = line.strip().partition(" : ")
        if len(words) == 4 and words[1] == "RUNNING":
            name = words[0].partition(":")[0]
        elif key == "Configured Resources":
            has = resources(value)
        elif key == "Allocated Resources":
            used = resources(value)
        elif line.strip().startswith("Node-Labels :"):
            labels = tuple(each.strip() for each in value.split(",") if each.strip())
            found.append(YarnNode(name, has, has.get("memory", 0) - used.get("memory", 0), labels))
    return found


def report_of(text: str) -> AppReport:
    """What `yarn application -status` prints.  Raises YarnFailed for what is no report."""
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        key, colon, value = line.partition(" : ")
        if line.startswith("\t") and colon:
            last = key.strip()
            fields[last] = value.strip()
        elif last == "Diagnostics":
            fields[last] += f" {line.strip()}"
    if "State" not in fields:
        raise YarnFailed("yarn application -status has printed no state")
    return AppReport(
        fields["State"], fields.get("Final-State", ""), fields.get("Diagnostics", ""), fields.get("Queue", "")
    )


def _listed(said: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The things of that name: a single one is no list in some answers."""
    found = (said or {}).get(name) or []
    return [found] if isinstance(found, Mapping) else list(found)


def _amounts(said: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of a resource, as `resources` has them."""
    found = {name: int(said[name]) for name in ("memory", "vCores") if name in said}
    more = _listed(said.get("resourceInformations"), "resourceInformation")
    return found | {str(each["name"]): int(each["value"]) for each in more}


def largest_in(scheduler: Mapping[str, Any], queue: str) -> dict[str, int]:
    """The most that a container may have in that queue ("": in any), as a scheduler says; {}: it does not."""
    found: dict[str, Mapping[str, Any]] = {}
    _limits(scheduler, found)
    return _amounts(found.get(queue) or found.get("root") or {})


def _limits(queue: Mapping[str, Any], found: dict[str, Mapping[str, Any]]) -> None:
    """Note the largest container of a queue, and of those below it, by their names and their paths."""
    if limit := queue.get("maximumAllocation"):
        found.update(dict.fromkeys([str(queue.get(key)) for key in ("queueName", "queuePath")], limit))
    for below in _listed(queue.get("queues"), "queue"):
        _limits(below, found)


def _node(said: Mapping[str, Any]) -> YarnNode:
    total = said.get("totalResource") or {}
    has = _amounts(total)
    if not total:  # Hadoop 2
        has["memory"] = int(said["availMemoryMB"]) + int(said["usedMemoryMB"])
    labels = said.get("nodeLabels") or ()
    if isinstance(labels, Mapping):
        labels = labels.get("nodeLabel") or ()
    return YarnNode(
        str(said["nodeHostName"]), has, int(said["availMemoryMB"]), tuple(map(str, filter(None, labels)))
    )


def _is_shown(app: Mapping[str, Any]) -> bool:
    """Whether the web service shows all of it: where YARN has ACLs, it does so to few, and does not know who asks."""
    return int(app.get("startedTime") or 0) > 0


def _pending(app: Mapping[str, Any]) -> tuple[str, ...] | None:
    if _is_shown(app):
        return tuple(
            f"{each['numContainers']} x {size_of(each.get('capability') or {})}"
            for each in _listed(app, "resourceRequests")
            if each.get("resourceName") == "*" and int(each["numContainers"]) > 0
        )
    used = _listed(app.get("resourceInfo"), "resourceUsagesByPartition")
    sums = [each["pending"] for each in used if "pending" in each]
    if not sums:
        return None
    return tuple(f"{size_of(each)} in all" for each in sums if int(each["memory"]) > 0)


def report_from(app: Mapping[str, Any], containers: frozenset[str] | None) -> AppReport:
    """How an application is, as the web service says."""
    return AppReport(
        str(app["state"]),
        str(app.get("finalStatus", "")),
        str(app.get("diagnostics", "")),
        str(app.get("queue", "")),
        _pending(app),
        containers,
    )


def size_of(capability: Mapping[str, Any]) -> str:
    """A container's size, as YARN writes it: `<memory:1536, vCores:1>`."""
    more = _listed(capability.get("resourceInformations"), "resourceInformation")
    others = [
        f"{each['name']}:{each['value']}"
        for each in more
        if each["name"] not in ("memory-mb", "vcores") and int(each["value"])
    ]
    parts = [f"memory:{capability.get('memory')}", f"vCores:{capability.get('vCores')}", *others]
    return f"<{', '.join(parts)}>"
