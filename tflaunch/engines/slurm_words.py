"""What Slurm says of a job, in words for people: why it waits, why it is over, what can never be."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

from tflaunch.engines import slurm_commands
from tflaunch.engines.slurm_commands import JobFacts, SlurmFailed, is_unreached
from tflaunch.protocol.errors import ConnectError, Gone, PlanError, TflaunchError, UsageError

AGAIN = "start the run again when there is room"
FORGOTTEN = "the job is over, and Slurm has forgotten how"
WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
RUNNING = ("RUNNING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING")
ENDS = {
    "CANCELLED": "was cancelled (scancel)",
    "TIMEOUT": "has reached its time limit",
    "DEADLINE": "has reached its deadline",
    "PREEMPTED": "was preempted by another job",
    "NODE_FAIL": "has lost a node",
    "BOOT_FAIL": "has a node that could not boot",
    "OUT_OF_MEMORY": "has run out of memory",
    "REVOKED": "was taken over by another cluster",
}
# Reasons that waiting does not mend.
NEVER = {
    "PartitionNodeLimit": "it wants more nodes than the partition has, or lets a job have",
    "PartitionTimeLimit": "it wants more time than the partition lets a job have",
    "BadConstraints": "no node meets its constraints",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
}
_NO_LAUNCH = " failed on node "  # srun: error: Task launch for StepId=12.0 failed on node n3: WHY
_MISTAKES = (
    "Invalid partition",
    "Invalid account",
    "Invalid qos",
    "Invalid feature",
    "Invalid generic resource",
    "nvalid option",
    "unrecognized option",
    "Unable to open file",
    "nvalid --",
    "Invalid wckey",
    "reservation is invalid",
)


def waits(facts: JobFacts, now: datetime.datetime) -> str:
    """Why a job waits: `PENDING (Resources), about 14:20`."""
    # As squeue has it: scontrol puts _ for a space.  Names of nodes may have one of their own.
    why, colon, nodes = facts.get("Reason").partition("UnavailableNodes:")
    state, reason = facts.get("JobState"), why.replace("_", " ") + colon + nodes
    words = f"{state} ({reason})" if reason not in ("", "None") else state
    try:
        start = datetime.datetime.fromisoformat(facts.get("StartTime"))
    except ValueError:  # Unknown
        return words
    if state != "PENDING" or start <= now:
        return words
    return (
        f"{words}, about {start:%H:%M}"
        if start.date() == now.date()
        else f"{words}, about {start:%a %d %b %H:%M}"
    )


def never(facts: JobFacts) -> PlanError | None:
    """Why a job that waits can never run; None where it may."""
    for reason in facts.each("Reason"):
        if facts.get("JobState") == "PENDING" and reason in NEVER:
            return PlanError(
                f"slurm: the job can never run: {NEVER[reason]} ({reason})", "ask for what there is: sinfo"
            )
    return None


def end(facts: JobFacts | None, job: str) -> str:
    """Why a job is over, or ends; "" where it is not, or nobody knows yet."""
    if facts is None:
        return FORGOTTEN
    for state in facts.each("JobState"):
        if words := ENDS.get(state):
            limit = f", {facts.get('TimeLimit')}" if state == "TIMEOUT" else ""
            return f"job {job} {words}{limit}" + ("" if state == "CANCELLED" else f" ({state})")
        if state in ("FAILED", "COMPLETED"):
            return (
                leaves(facts, job)
                or f"job {job} is over: {state}, exit code {facts.get('ExitCode').partition(':')[0]}"
            )
    if (
        any(state in ("REQUEUED", "PENDING") for state in facts.each("JobState"))
        and facts.get("Restarts") != "0"
    ):
        return f"job {job} was put into the queue again, {facts.get('JobState')} ({facts.get('Reason')})"
    return leaves(facts, job)


def leaves(facts: JobFacts, job: str) -> str:
    """Why a job that still runs, or completes, is to end; "" where nothing says so."""
    if any(reason == "TimeLimit" for reason in facts.each("Reason")):
        return f"job {job} has reached its time limit, {facts.get('TimeLimit')} (TIMEOUT)"
    if any(time not in ("", "None", "Unknown") for time in facts.each("PreemptTime")):
        return f"job {job} was preempted by another job (PREEMPTED)"
    return ""


def limit_is_near(facts: JobFacts, job: str, now: datetime.datetime, within_s: float) -> str:
    """That a job that runs, or has ended in order, was so near to its time limit; "" where it was not."""
    state = facts.get("JobState")
    limit = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", facts.get("TimeLimit"))
    try:
        start = datetime.datetime.fromisoformat(facts.get("StartTime"))
        then = now if state == "RUNNING" else datetime.datetime.fromisoformat(facts.get("EndTime"))
    except ValueError:
        return ""
    if limit is None or state not in ("RUNNING", "COMPLETED", "FAILED"):
        return ""
    days, hours, minutes, seconds = (int(each or 0) for each in limit.groups())
    ends = start + datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    near = ends - then < datetime.timedelta(seconds=within_s)
    return f"the time limit of job {job}, {facts.get('TimeLimit')}, is near (TIMEOUT)" if near else ""


def not_started(job: str, place: Path, log: Sequence[str] | None) -> ConnectError:
    """Why the slot holders of a job that ran have not come; `log` is what srun and they have written at that place.

    None: nothing is there of theirs.
    """
    if log is None:
        return ConnectError(
            f"slurm: job {job} has written nothing to {place}",
            "do its nodes see that directory? dir=DIRECTORY names another one of yours",
        )
    for line in log:
        if _NO_LAUNCH in line:
            node, _, why = line.partition(_NO_LAUNCH)[2].partition(": ")
            return ConnectError(
                f"slurm: node {node[:80]} has not started its part of job {job}: {why[:200]}",
                "is its slurmd up? ask sinfo -R; options=--exclude=NODE leaves a node out",
            )
    said = slurm_commands.said("\n".join(line for line in log[-6:] if "cpu binding" not in line))
    return ConnectError(
        f"slurm: the slot holders of job {job} have not started: {said or 'nothing says why'}",
        "python=NAME names a Python, 3.8 or newer, of the nodes",
    )


def gone(facts: JobFacts | None, job: str, *, sweeps: bool, ours: bool) -> Gone | None:
    """That the job of a slot is over; None while it is not.

    sweeps: Slurm kills all that a step has started, as it does with cgroups.  ours: it has nothing but slot holders.
    """
    if facts is None:
        return Gone(f"slurm: {FORGOTTEN}", AGAIN, swept=sweeps)
    state = facts.get("JobState")
    if state in RUNNING or state in ("COMPLETING", ""):
        return None
    words = f"slurm: {end(facts, job) or f'job {job} is over: {state}'}"
    if ours and state in ("COMPLETED", "FAILED"):
        code = facts.get("ExitCode").partition(":")[0]
        return Gone(words, AGAIN, in_order=True, code=int(code) if code.isdigit() else None)
    return Gone(words, AGAIN, swept=sweeps and state != "NODE_FAIL")


def refused(error: SlurmFailed) -> TflaunchError:
    """Why sbatch has not taken a job."""
    text = re.sub(r"Batch job submission failed: ", "", str(error))
    if is_unreached(error):
        return ConnectError(f"slurm: the controller does not answer: {text}", "does sinfo work here?")
    if any(words in text for words in _MISTAKES):
        return UsageError(
            f"slurm: sbatch refuses the job: {text}", "sinfo shows the partitions, sacctmgr your accounts"
        )
    return PlanError(f"slurm: sbatch refuses the job: {text}", "ask for what there is: sinfo")
