"""What YARN says of applications, in words for people: why slots are not there yet, never will be, or are over."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tflaunch.engines.yarn_applications import YarnSize
from tflaunch.engines.yarn_manager import AppReport, ContainerEnd, YarnNode
from tflaunch.protocol.errors import ConnectError, Gone, NotGiven, TflaunchError, UsageError

AGAIN = "start the run again when there is room"
LONGEST = 400  # characters of what YARN says
TAKEN_BACK = 75  # exit status of a slot holder; greater ones are signals, or nobody's word
FORGOTTEN = "YARN knows that application no more"
# Of the master, `[Sat Nov 28 05:19:43 +0000 2026] `, and of nodes, `[2026-11-28 05:19:43.123]`.
_TIME = r"\[(?:[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d|\d{4}-\d\d-\d\d) [^\]]{1,40}\] ?"
# What a node says of the exit status, once more.
_STATUS = r"\.? (?:Exit code is|Container exited with a non-zero exit code) -?\d{1,4}\b"
_USED = (
    r"Current usage: ([\d.]{1,12} [KMGTP]?B) of ([\d.]{1,12} [KMGTP]?B) physical memory used; "
    r"([\d.]{1,12} [KMGTP]?B) of ([\d.]{1,12} [KMGTP]?B) virtual memory used"
)
# Of which memory it had too much, by YARN's exit status: the number of the first of its groups there.
_OVER = {-104: ("memory", 1), -103: ("virtual memory", 3)}
# What an application that is ACCEPTED waits for, by YARN's words, and which of the figures behind them say how much.
_ACCEPTED = {
    "AM resource limit exceeded": (
        "no room for the master: the queue's share for masters is used up",
        (
            "AM Resource Request",
            "Queue Resource Limit for AM",
            "User AM Resource Limit",
            "Queue AM Resource Usage",
        ),
    ),
    "waiting for resources to be assigned for AM": (
        "no room for the master",
        ("Queue's used capacity (absolute resource)", "Queue's max capacity (absolute resource)"),
    ),
    "waiting for AM container to": ("the master starts", ()),
}
_MISTAKES = (
    "not present in scheduler configuration",
    "unknown queue",
    "cannot submit",
    "does not have permission",
    "Invalid label",
    "Label=",
    "label expression",
    "Invalid resource request",
    "Unrecognized option",
)
# Of a file that was put where nodes are to read it.
_UNSEEN = re.compile(r"File file:(/\S{1,300}) does not exist")
# What HDFS says of the files that nodes are to read, and what mends it.
_FILES = {
    ", inode=": "they go to your home directory in HDFS, which an administrator makes: "
    "hdfs dfs -mkdir /user/NAME, hdfs dfs -chown NAME /user/NAME",
    "in safe mode": "HDFS takes no files before it has left it: hdfs dfsadmin -safemode get",
}
_NODES = "yarn node -list -showDetails shows what nodes have"
_JAVA = "Hadoop's commands need Java: install one, or set JAVA_HOME"
_NO_JAVA = ("JAVA_HOME", "java: not found", "java: No such file")
_FILES_AT_ALL = (
    "nodes read its files from the cluster's file system: do hdfs dfs -ls and yarn node -list work here?"
)


def shortened(diagnostics: str) -> str:
    """YARN's diagnostics in one line, without the time before each, and as long as people read."""
    text = re.sub(_TIME, "", " ".join(diagnostics.split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def waits(reports: Mapping[str, AppReport | None], nodes: Sequence[YarnNode] = ()) -> str:
    """Why slots are not there: of the first application that waits, in YARN's own numbers."""
    for report in reports.values():
        if report is None or report.is_over:
            continue
        if report.state != "RUNNING":
            return _before_it_runs(report)
        if report.pending:
            return f"{', '.join(report.pending)} pending in the queue {report.queue}{_free(nodes)}"
    return "the slot holders start"


def _before_it_runs(report: AppReport) -> str:
    said = re.sub(_TIME, "", " ".join(report.diagnostics.split()))
    head, _, details = said.partition("Details :")
    for words, (why, figures) in _ACCEPTED.items():
        if words in head:
            telling = [each.strip() for each in details.split(";") if each.strip().startswith(figures)]
            return f"{why}{_behind('; '.join(telling))}" if figures else why
    return f"{report.state}: {shortened(said)}" if said else f"the application is {report.state}"


def _free(nodes: Sequence[YarnNode]) -> str:
    free = [f"{node.name} {node.free_mb} MB" for node in nodes if node.free_mb is not None]
    return f"; free: {', '.join(free[:4])}{', ...' if len(free) > 4 else ''}" if free else ""


def not_there(application: str, report: AppReport | None, log: str, made: YarnSize) -> TflaunchError:
    """Why an application is over before its slots were there; `log` is what its containers and its master have said."""
    if report is None:
        return NotGiven(f"yarn: {FORGOTTEN}: {application}", AGAIN)
    said = shortened(report.diagnostics)
    if unseen := _UNSEEN.search(report.diagnostics):
        return ConnectError(
            f"yarn: nodes do not see {unseen[1]}, for the cluster's file system is that of each machine (file:///)",
            "fs.defaultFS of core-site.xml must be HDFS, or your home directory one that all nodes share",
        )
    if report.state == "KILLED":
        return NotGiven(f"yarn: {application} was killed before its slots were there{_behind(said)}", AGAIN)
    return ConnectError(
        f"yarn: {application}, slots of {made.words()}, has ended with {report.final or report.state} before its "
        f"slots were there{_behind(log or said)}",
        f"what it said: yarn logs -applicationId {application}",
    )


def _behind(said: str) -> str:
    return f": {said}" if said else ""


def end(application: str, report: AppReport | None) -> str:
    """Why an application is over; "" while it is not."""
    if report is None:
        return f"{FORGOTTEN}: {application}"
    if not report.is_over:
        return ""
    said = shortened(report.diagnostics)
    if report.state == "KILLED":
        # `Application X was killed by user U at A`, where a user has done it.
        return said if application in said else f"{application} was killed{_behind(said)}"
    return f"{application} is over: {report.state} {report.final}{_behind(said)}"


def exit_code(report: AppReport | None) -> int | None:
    """The exit status of an application's slot holders, as far as YARN tells it."""
    if report is None or report.state != "FINISHED":
        return None
    if report.final == "SUCCEEDED":
        return 0
    found = re.findall(r"[Ee]xit ?[Cc]ode(?: is)?:? (\d{1,3})\b", report.diagnostics)
    return int(found[-1]) if found else None


def gone(
    application: str, container: str, report: AppReport | None, ended: ContainerEnd | None = None
) -> Gone | None:
    """That a slot is over; None while it is not, and where nobody knows.  `ended`: what its node says of it."""
    if report is not None and report.state in ("KILLED", "FAILED"):
        return Gone(f"yarn: {end(application, report)}", AGAIN)
    if ended is not None:
        in_order = 0 <= ended.code < TAKEN_BACK
        return Gone(
            f"yarn: {container_words(container, ended)}",
            AGAIN,
            in_order=in_order,
            code=ended.code if in_order else None,
        )
    if report is None:
        return None
    if report.is_over:
        return Gone(f"yarn: {end(application, report)}", AGAIN, in_order=True, code=exit_code(report))
    # A ResourceManager that was started anew knows no containers for a while: then the state is not RUNNING.
    if report.state != "RUNNING" or report.containers is None or container in report.containers:
        return None
    return Gone(f"yarn: {container} is over", AGAIN)


def container_words(container: str, ended: ContainerEnd) -> str:
    """How a container has ended: `container_1_2_3_4 is over, exit status 137: Container killed on request`."""
    if ended.code in _OVER and (used := re.search(_USED, ended.diagnostics)):
        kind, group = _OVER[ended.code]
        return (
            f"{container} has used {used[group]} of its {used[group + 1]} of {kind}, and YARN has killed it; "
            "memory= asks for more"
        )
    why = re.sub(_STATUS, "", shortened(ended.diagnostics))
    return f"{container} is over, exit status {ended.code}{_behind(why)}"


def refused(error: Exception) -> TflaunchError:
    """Why the distributed shell's client has not submitted an application."""
    text = str(error)
    if any(words in text for words in _MISTAKES):
        of = (
            "mapred queue -showacls lists queues, and what you may do in each"
            if "queue" in text.lower()
            else _NODES
        )
        return UsageError(f"yarn: YARN refuses the application: {text}", of)
    hint = next((hint for words, hint in _FILES.items() if words in text), mends(text, _FILES_AT_ALL))
    return ConnectError(f"yarn: the application cannot be submitted: {text}", hint)


def mends(said: str, otherwise: str) -> str:
    """The hint for a command of Hadoop that has failed and `said` why."""
    return _JAVA if any(words in said for words in _NO_JAVA) else otherwise
