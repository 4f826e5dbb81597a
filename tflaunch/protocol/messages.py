"""The fields of every message, with their types and limits, and the check of each message that comes in.

`tflaunch.protocol.wire` says what the messages mean.  The other end may lie.  After `check`, each field has the type
and the range that `tflaunch.protocol.fields` describes, and fields that are not listed here are gone.
"""

from tflaunch.protocol.facts import MachineFacts, record
from tflaunch.protocol.fields import (
    Each,
    OneOf,
    RuledRecord,
    a_digest,
    a_directory_name,
    a_flag,
    a_number,
    a_path,
    a_port,
    a_signal,
    a_task,
    a_text,
    a_time,
    a_whole_number,
    a_word,
    an_address,
    an_argument,
    an_attempt,
    an_empty_text,
    an_event_number,
    an_exit_code,
    an_integer,
    anything,
    misfit,
    nothing,
    one_of,
    or_null,
    quoted,
    the_only_module,
)
from tflaunch.protocol.wire import Message, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Mapping

    Table = Mapping[str, Any]


def _ended_once(exit: "Mapping[str, Any]") -> bool:
    return (exit["code"] is None) != (exit["signal"] is None)


_run = OneOf(an_empty_text, a_directory_name)
_gpus_left = [{"text": a_text, "own": a_flag}]
# `lacks`: a module that the launcher must send before the next probe.
_facts = dict(record(MachineFacts), lacks=OneOf(an_empty_text, the_only_module))
_interface = {
    "name": a_word,
    "addresses": [an_address],
    "mtu": or_null(a_whole_number),
    "?mbit_s": or_null(a_whole_number),
    "?networks": [a_word],
}
_disk = {"path": a_path, "free_bytes": a_whole_number, "free_files": or_null(a_whole_number)}
# tflaunch.agent.tasks.look.  A flow is a connection of a task: peer's address and port, own port, bytes that the peer
# has acknowledged, bytes received, bytes in the send queue, retransmits of the oldest one that is not acknowledged,
# round-trip time in ms.
_flow = (
    an_address,
    a_whole_number,
    a_whole_number,
    a_whole_number,
    a_whole_number,
    a_whole_number,
    a_whole_number,
    a_time,
)
# Of one of these flows: segments sent again, segments with data, ms since data was last sent, and received.
_pace = (a_whole_number, a_whole_number, a_whole_number, a_whole_number)
# How often lines with this sign were in the log since the task's start, the last one, and how long ago it came.
_sign = (a_whole_number, a_text, a_time)
_look = {
    "listens": or_null(a_flag),
    "connected": or_null([(an_address, a_whole_number)]),
    "calling": [(an_address, a_whole_number)],
    "processes": [(a_whole_number, a_word, a_word)],
    "waits_in": a_word,
    "cpu_s": a_number,
    "quiet_s": a_number,
    "log_bytes": a_whole_number,
    "says": a_text,
    "?flows": or_null([_flow]),
    "?listens_on": or_null([a_port]),
    "?signs": Each(a_word, _sign),
    "?io": or_null(a_whole_number),
    "?wrote": or_null(a_whole_number),
    "?turns": a_whole_number,
    # tflaunch.agent.tasks.pace
    "?paces": [_pace],
    "?least_rtts": [a_time],  # of the same flows, in ms
    "?waited_s": a_time,
    "?held_s": a_time,
    "?cores": a_time,
    "?disk": (a_whole_number, a_whole_number),
    "?memory": (a_whole_number, a_whole_number),
    "?faults": a_whole_number,
    "?step": a_whole_number,
    "?masks": [(a_whole_number, a_text)],  # tflaunch.agent.tasks.masks
}
# tflaunch.agent.host.load, tflaunch.agent.tasks.disks
_machine = {
    "swapped": a_whole_number,
    "?cores": a_whole_number,
    "?others": [(a_whole_number, a_word, a_time)],
    "?disks": Each(a_word, (a_whole_number, a_whole_number, a_whole_number, a_word)),
    "?pressure": Each(a_word, a_whole_number),
    "?own_pressure": Each(a_word, a_whole_number),
}
# tflaunch.agent.gpus.use
_gpu_use = {
    "use": or_null(a_whole_number),
    "power_w": or_null(a_number),
    "limit_w": or_null(a_number),
    "memory_bytes": a_whole_number,
    "pids": or_null([a_whole_number]),
    "?slowed_by": [a_word],
    "?heat_ms": or_null(a_whole_number),
    "?energy_j": or_null(a_whole_number),
    "?lanes": or_null((a_whole_number, a_whole_number)),
    "?pcie": or_null((a_whole_number, a_whole_number)),
    "?nvlinks": or_null([a_whole_number]),
    "?gpm": or_null((a_time, a_time, a_time)),
    "error": a_text,
}
# What a thread waits in: its number, name, state as in ps(1), kernel function ("" where it is hidden), CPU seconds.
_thread = (a_whole_number, a_word, a_word, a_word, a_time)
# A frame of a Python stack, the innermost first: file, line, function.
_frame = (a_text, a_whole_number, a_text)
_inspection = {
    "pid": a_whole_number,
    "name": a_word,
    "threads": [_thread],
    "stacks": or_null([{"main": a_flag, "frames": [_frame], "?count": a_whole_number}]),
    "why_none": a_text,
    "?native": [(a_whole_number, a_number)],
    "?age_s": a_time,
}
# tflaunch.agent.tasks.exit_facts
EXIT_FACTS = {
    "?left_running": [a_word],
    "?nothing_left": (a_whole_number, a_word),
    "?dialled": [(a_word, a_port, a_word)],
    "?xids": [(a_whole_number, a_whole_number)],
    "?oom_kills": a_whole_number,
    "?oom_kills_cgroup": a_whole_number,
    "?memory_limit": a_whole_number,
    "?peak_bytes": a_whole_number,
    "?memory_bytes": a_whole_number,
    "?memory_available_bytes": a_whole_number,
    "?shm_bytes": a_whole_number,
    "?shm_free_bytes": a_whole_number,
    "?open_files": a_whole_number,
    "?warned": a_flag,
    "?cpu": [a_word],
    "?disks": [_disk],
    "?read_only": a_path,
    "?python": a_word,
    "?packages": Each(a_word, a_word),
}
_exit = {
    "task": a_task,
    "host": a_word,
    "code": or_null(an_exit_code),
    "signal": or_null(a_word),
    "seconds": a_number,
    "stopped": a_flag,
    "attempt": an_attempt,
}
# tflaunch.protocol.outcome.outcome_data
_outcome = {
    "status": one_of("succeeded", "failed", "interrupted"),
    "exit_code": an_exit_code,
    "seconds": a_number,
    "exits": [_exit],
    "first_failure": OneOf(
        nothing,
        _exit,
        {
            "reason": a_text,
            "tasks": [a_task],
            "states": [a_text],
            "?exit_code": an_exit_code,
            "?host": a_word,
        },
        {"host": a_word, "reason": a_text},
    ),
    "unverified": Each(a_word, a_text),
    "survivors": Each(a_word, [a_text]),
    "?gpus": Each(a_word, _gpus_left),
    "?host_logs": Each(a_task, a_path),
    "?restarts": a_whole_number,
}


def _of_the_launcher(outcome: "Any") -> bool:
    """Its own outcome: the agent passes it on unread, but for the exit code; it tells of each task to each host."""
    return isinstance(outcome, dict) and an_exit_code(outcome.get("exit_code"))


# tflaunch.launch.request.about_run: what a launcher, maybe an older one, has left on the hosts
_about = {
    "?command": [an_argument],
    "?launcher": a_word,
    "?planned": a_number,
    "?hosts": [a_word],
    "?tasks": Each(a_task, a_word),
    "?left_out": Each(a_word, a_text),
    "?moved": a_text,
    "?detached": a_flag,
}
_end = {
    "?code": or_null(an_exit_code),
    "?signal": or_null(a_signal),
    "?signal_name": or_null(a_word),
    "?seconds": or_null(a_number),
    "?stopped": or_null(a_flag),
    "?attempt": an_attempt,
    "?ended": or_null(a_number),
    "?facts": or_null(EXIT_FACTS),
}
_task = dict(
    _end,
    **{
        "task": a_task,
        "state": one_of("waiting", "staged", "running", "exited", "lost", "unknown"),
        "attempts": a_whole_number,
        "port": or_null(a_port),
        "gpus": [a_word],
        "gpu_labels": or_null([a_word]),
        "?cpus": a_text,
        "log": a_path,
        "log_bytes": a_whole_number,
        "output": or_null(a_number),
        "before": [_end],
        "?tail": a_text,
        "?pid": a_whole_number,
        "?since": a_number,
    },
)
_share = {
    "run": a_directory_name,
    "host": a_directory_name,
    "state": one_of("alive", "strays", "ended", "lost", "elsewhere"),
    "directory": a_path,
    "agent": a_whole_number,
    "user": a_word,
    "started": or_null(a_number),
    "ended": or_null(a_number),
    "?restarted": or_null(a_number),
    "about": _about,
    "outcome": {("" if name.startswith("?") else "?") + name: spec for name, spec in _outcome.items()},
    "tasks": [_task],
    "strays": [a_text],
    "?holds": or_null({"age_s": a_time, "sentences": [a_text], "blind": [a_text]}),
    "?stopped_by": a_text,
    "?why": a_text,
    "?lease_s": a_time,
}
_kept = {
    "run": a_directory_name,
    "here": [a_word],
    "hosts": [a_word],
    "ended": a_flag,
    "bytes": a_whole_number,
    "idle_s": a_number,
    "alive": a_flag,
    "keep": a_text,
    "unread": [a_text],
}
_freed = {"files": a_whole_number, "bytes": a_whole_number}
_stream = {"stream": a_whole_number}


def _event(**fields: "Any") -> "Dict[str, Any]":
    return dict(fields, **{"n": an_event_number, "?time": a_number})


_streams = {
    "bytes": _stream,
    "taken": dict(_stream, bytes=a_whole_number),
    "cut": _stream,
}  # type: Dict[str, Dict[str, Any]]

# From an agent, or a visit, to a launcher or a coordinator.
FROM_AGENT = dict(
    _streams,
    lacks={},
    hello={
        "run": _run,
        "host": _run,
        "pid": a_whole_number,
        "directory": a_path,
        "?alive": a_flag,
        "?ports": a_flag,
    },
    facts=_facts,
    clock={"sent": a_number, "time": a_number},
    checked={
        "interfaces": [_interface],
        "infiniband": [a_word],
        "disks": [_disk],
        "logout": {"kills": a_flag, "session": a_word, "user": a_word, "linger": a_flag},
    },
    code={"have": a_flag, "lacks": or_null([a_whole_number])},
    preparing={"line": a_word},
    prepared={"made": a_flag, "seconds": a_time},
    staged={"?keras": a_word},
    dialled={
        "results": [OneOf(a_time, (a_word, a_text))],
        "addresses": Each(a_word, [an_address]),
        "?ways": [or_null((a_time, a_whole_number))],
        "?asker": a_word,
        "?names": a_word,
    },
    pushed={
        "bytes": a_whole_number,
        "seconds": a_time,
        "rtt_ms": a_time,
        "lost": a_whole_number,
        "failed": or_null((a_word, a_text)),
    },
    looked={
        "tasks": Each(a_task, _look),
        "?gpus": Each(a_word, _gpu_use),
        "?gpus_age_s": a_time,
        "?xids": [(a_word, a_whole_number, a_whole_number, a_time)],
        "?fabrics": or_null((a_whole_number, a_whole_number)),
        "?machine": _machine,
    },
    inspected={"tasks": Each(a_task, [_inspection]), "?asker": a_word},
    found={
        "files": [(a_path, a_whole_number, an_integer, a_flag)],
        "left": [(a_path, a_text, a_flag)],
        "there": [a_path],
        "last": a_flag,
    },
    piece={
        "path": a_path,
        "offset": a_whole_number,
        "digest": a_flag,
        "size": a_whole_number,
        "modified": an_integer,
        "why": a_text,
        "gone": a_flag,
    },
    tensorboard={"state": one_of("starting", "up", "failed"), "why": a_text, "lines": [a_text]},
    failed={"reason": a_text, "?hint": a_text, "?again": a_flag},
    log={"task": a_task, "attempt": an_attempt, "offset": a_whole_number, "?cut": a_time},
    through={},
    entrusted={"port": a_port, "wide": a_flag},
    detach={},
    handed={"reason": a_text, "hint": a_text},
    coordinating={"missing": Each(a_word, a_text)},
    beat={},
    started=_event(task=a_task, attempt=an_attempt, pid=a_whole_number),
    exit=RuledRecord(
        _event(
            **{
                "task": a_task,
                "attempt": an_attempt,
                "code": or_null(an_exit_code),
                "signal": or_null(a_signal),
                "signal_name": a_word,
                "seconds": a_number,
                "stopped": a_flag,
                "?log_bytes": a_whole_number,
                "?facts": EXIT_FACTS,
            }
        ),
        _ended_once,
        "an exit with either a code or a signal",
    ),
    expired=_event(**{"reason": a_text, "asked": a_flag, "?by": a_text, "?ends_in": a_time}),
    swept=_event(
        killed=[a_text],
        survivors=[a_text],
        gpus=_gpus_left,
        logs=Each(a_task, (an_attempt, a_whole_number)),
    ),
    said=_event(**{"text": a_text, "?replanned": a_flag, "?moved": [a_task]}),
    outcome=_event(outcome=_outcome),
    gone=_event(reason=a_text),
    runs={
        "machine": (a_word, a_word),
        "place": a_word,
        "clock": a_number,
        "runs": [_share],
        "others": [a_directory_name],
        "?ended": [{"run": a_directory_name, "host": a_directory_name, "killed": [a_text]}],
    },
    samples={},
    usage={
        "machine": (a_word, a_word),
        "place": a_word,
        "directory": a_path,
        "runs": [_kept],
        "code_bytes": a_whole_number,
        "environment_bytes": a_whole_number,
        "rest_bytes": a_whole_number,
    },
    cleaned={
        "removed": Each(a_directory_name, a_whole_number),
        "left": Each(a_directory_name, a_text),
        "code": _freed,
        "environments": _freed,
        "rest_bytes": a_whole_number,
    },
    finished={
        "known": a_flag,
        "found": a_flag,
        "killed": [a_text],
        "survivors": [a_text],
        "unsure": a_flag,
        "?unsure_why": a_text,
        "gpus": _gpus_left,
        "?restarted": a_number,
    },
)  # type: Table

_request = {
    "id": a_task,
    "argv": [an_argument],
    "env": Each(a_text, anything),
    "cwd": or_null(a_path),
    "setup": [a_text],
    "?decided": [a_word],
    "?port": or_null(a_port),
    "?shares_port": a_flag,
    "?rendezvous": [a_word],
    "?yielding": [a_word],
    "?gpus": [a_word],
    "?gpu_labels": [a_word],
    "?cpus": a_text,
    "?numactl": a_word,
    "?stacks": a_flag,
    "?container": OneOf(nothing, an_empty_text, {"image": a_word, "mounts": [a_path]}),
}

# tflaunch.planning.spare_moves: where the tasks of one host would be on one spare
_spot = {"address": a_word, "ports": Each(a_task, or_null(a_port)), "gpus": Each(a_task, [a_word])}

# From a launcher, a viewer or the coordinator to an agent.
TO_AGENT = dict(
    _streams,
    connect=dict(_stream, **{"?port": a_port}),
    probe={
        "ports": or_null((a_port, a_port)),
        "count": a_whole_number,
        "lease": OneOf(a_flag, [a_word]),
        "?ask_gpus": a_flag,
        "?within_s": a_time,
    },
    queue={"since": a_number, "wants": a_whole_number, "gpus": [a_word], "planning": a_flag},
    let_go={},
    keep={"gpus": [a_word]},
    module={"name": the_only_module},
    clock={"sent": a_number},
    check={"directories": [a_path]},
    code={"digest": a_digest},
    manifest={"last": a_flag},
    blob={"packed": a_flag, "last": a_flag},
    prepare={
        "requirements": anything,
        "images": [a_word],
        "engine": a_word,
        "python": a_path,
        "?uv": a_path,
        "setup": [a_text],
        "env": Each(a_text, an_argument),
    },
    stage={
        "tasks": [_request],
        "attempt": an_attempt,
        "code": or_null(a_digest),
        "ports": [a_port],
        "gpus": [a_word],
        "door": a_flag,
        "?about": Each(a_word, anything),
        "?programs": Each(a_word, or_null({"file": a_path, "read_by": a_word})),
        "?keras": a_flag,
        "?dial_key": a_word,
        "?passing": a_flag,
        "?preload": {"modules": [a_word], "own": [a_word], "text": an_argument},
        "?moves": {
            "marks": Each(a_word, a_word),
            "seats": Each(a_word, Each(a_word, _spot)),
            "requests": Each(a_word, [_request]),
        },
    },
    move={"places": Each(a_word, a_word), "tasks": [a_task], "attempt": an_attempt},
    dial={
        "key": a_word,
        "targets": [(a_word, a_port, a_word)],
        "patience_s": a_time,
        "?load": OneOf(a_flag, [a_whole_number]),
        "?names": [a_word],
        "?asker": a_word,
    },
    push={"key": a_word, "target": (a_word, a_port, a_word), "seconds": a_time},
    inspect={"tasks": [a_task], "stacks": a_flag, "?asker": a_word, "?on_demand": a_flag, "?signals": a_flag},
    release={},
    watch={
        "after": a_whole_number,
        "logs": or_null(Each(a_task, (an_attempt, a_whole_number))),
        "?window": a_whole_number,
        "client": a_word,
        "?tasks": or_null([a_task]),
        "?tail": or_null(a_whole_number),
        "?since": or_null(a_number),
    },
    credit={"bytes": a_whole_number},
    renew={"lease_s": a_time},
    stop={"tasks": or_null([a_task]), "grace_s": a_time},
    signal={"tasks": Each(a_task, an_attempt)},
    restart={"tasks": Each(a_task, an_attempt)},
    add={"tasks": [_request], "attempt": an_attempt},
    look={"?gpus_s": a_time},
    end={"grace_s": a_time, "?stacks": a_flag, "?by": a_word},
    find={"patterns": [(a_text, a_flag)], "roots": [a_path]},
    read={"path": a_path, "offset": a_whole_number, "size": a_whole_number, "digest": a_flag},
    tensorboard={"logdir": a_path},
    said={"text": a_text, "?replanned": a_flag},
    holds={"sentences": [a_text], "blind": [a_text]},
    outcome={"outcome": _of_the_launcher},
    memory={"offset": a_whole_number, "last": a_flag},
    bye={},
    entrust={"secret": a_digest, "address": a_word, "?later": a_flag},
    coordinate={
        "members": Each(a_word, (a_word, a_port, a_digest)),
        "state": Each(a_word, anything),
        "lease_s": a_time,
        "started": a_number,
        "watchdog": Each(a_word, anything),
        "?moves": Each(a_word, Each(a_word, _spot)),
        "?clock": a_number,
        "?trial": a_flag,
    },
    detach={},
    stay={"reason": a_text, "hint": a_text},
    coordinating={"missing": Each(a_word, a_text)},
)  # type: Table

# From the coordinator on another host, which an intruder may control: it may send no program, and read no logs.
_PEERS = (
    "watch",
    "renew",
    "stop",
    "signal",
    "restart",
    "move",
    "look",
    "dial",
    "inspect",
    "end",
    "said",
    "holds",
    "outcome",
    "bye",
)
FROM_PEER = {name: TO_AGENT[name] for name in _PEERS}  # type: Dict[str, Any]
FROM_PEER["watch"] = dict(FROM_PEER["watch"], logs=nothing)
FROM_PEER["outcome"] = {"outcome": _outcome}

# To a visit, until it shows a run.
TO_VISIT = {
    "attach": {"run": a_directory_name, "host": a_directory_name},
    "tensorboard": {"run": a_directory_name, "host": a_directory_name, "logdir": a_path},
    "list": {
        "?all": a_flag,
        "?run": a_word,
        "?tail_bytes": a_whole_number,
        "?running_tails": a_flag,
        "?tidy": a_flag,
    },
    "measure": {"?tidy": a_flag},
    "samples": {"run": a_directory_name, "offset": a_whole_number},
    "clean": {"runs": [a_directory_name], "code_older_s": or_null(a_time), "dry_run": a_flag},
    "finish": {"run": a_word, "grace_s": a_time, "?by": a_word},
    "probe": {"topology": a_flag, "?within_s": a_time},
    "module": {"name": the_only_module},
    "renew": {"lease_s": a_time},
    "credit": {"bytes": a_whole_number},
    "bye": {},
}  # type: Table


def check(message: Message, table: "Table") -> Message:
    """That message, without fields that its record in `table` does not have; raises WireError where it does not fit."""
    record = table.get(message.type)
    if record is None:
        raise WireError("a message of the type %s is not expected here" % quoted(message.type))
    fault = misfit(record, message.fields, "")
    if fault:
        raise WireError("in a message of the type %s, %s" % (message.type, fault))
    return message


def is_event(event: "Dict[str, Any]") -> bool:
    """Whether that entry of a journal is an event that an agent of this version may send."""
    spec = FROM_AGENT.get(event["type"])
    fields = {name: value for name, value in event.items() if name != "type"}
    return spec is not None and not misfit(spec, fields, "")


def tasks_of(message: Message) -> "Iterable[str]":
    """The tasks that a message from an agent is about."""
    fields = message.fields
    if "task" in fields:
        return [fields["task"]]
    of_many = {"swept": "logs", "looked": "tasks", "inspected": "tasks"}.get(message.type)
    return list(fields[of_many]) if of_many else []


def fits(message_type: str, field: str, entry: "Any") -> bool:
    """Whether `entry` fits into the list `field` of a message from an agent; its unknown fields are removed."""
    return not misfit(FROM_AGENT[message_type][field][0], entry, "")
