"""The report of runs as metrics: OpenMetrics text without times, for a directory of Prometheus' node exporter.

A metric has the newest value that is known: that of the last sample, or of the end.  No series is written twice, by
which Prometheus would refuse the whole file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.json_reports import ReportedRunData

_Labels = Mapping[str, str]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Metric(NamedTuple):
    name: str
    unit: str  # the end of its name
    says: str


# A column of the samples -> its metric.
_OF_COLUMNS = {
    "cores": _Metric("tflaunch_task_cores", "", "Processor time that the task uses in a second"),
    "sent": _Metric("tflaunch_task_sent_bytes_per_second", "", "Bytes that it sends in a second"),
    "received": _Metric("tflaunch_task_received_bytes_per_second", "", "Bytes that it receives in a second"),
    "peers": _Metric(
        "tflaunch_task_peer_bytes_per_second", "", "Bytes to and from tasks of the run in a second"
    ),
    "files": _Metric("tflaunch_task_file_bytes_per_second", "", "Bytes that it reads and writes in a second"),
    "quiet_s": _Metric("tflaunch_task_quiet_seconds", "seconds", "Time since the last line of its log"),
    "step": _Metric("tflaunch_task_step", "", "The last step that its log named"),
    "loss": _Metric("tflaunch_task_loss", "", "The last loss that its log named"),
    "gpu": _Metric("tflaunch_task_gpu_busy_percent", "", "Time in which its GPUs computed, their mean"),
    "watts": _Metric("tflaunch_task_gpu_power_watts", "watts", "Power of its GPUs together"),
    "gpu_bytes": _Metric("tflaunch_task_gpu_memory_bytes", "bytes", "Memory in use on its GPUs together"),
    "sm": _Metric("tflaunch_task_gpu_sm_percent", "", "SMs of its GPUs that computed, their mean"),
    "tensor": _Metric(
        "tflaunch_task_gpu_tensor_percent", "", "Time in which the tensor cores of its GPUs computed"
    ),
    "dram": _Metric("tflaunch_task_gpu_dram_percent", "", "Speed of the memory of its GPUs that was used"),
}
_OF_HOST_COLUMNS = {
    "cpu_pressure": _Metric(
        "tflaunch_host_cpu_pressure_percent", "", "Time in which programs waited for a processor"
    ),
    "memory_pressure": _Metric(
        "tflaunch_host_memory_pressure_percent", "", "Time in which programs waited for memory"
    ),
    "io_pressure": _Metric(
        "tflaunch_host_io_pressure_percent", "", "Time in which programs waited for a disk"
    ),
}
_STEPS_S = _Metric("tflaunch_task_steps_per_second", "", "Steps in a second, by those that its log names")
_RESTARTS = _Metric("tflaunch_task_restarts", "", "How often the task was started again")
_STATUS = _Metric("tflaunch_run_status", "", "1 for the state that the run is in")
_EXIT_CODE = _Metric("tflaunch_run_exit_code", "", "Exit code of the run, once it is over")
_SECONDS = _Metric("tflaunch_run_seconds", "seconds", "How long the run took, once it is over")
_BEGAN = _Metric("tflaunch_run_began_timestamp_seconds", "seconds", "When the run began")


def openmetrics(document: ReportDocument) -> str:
    """The text."""
    values: dict[_Metric, dict[str, float]] = {}
    for run in document["runs"]:
        for metric, labels, value in _of_run(run):
            values.setdefault(metric, {})[_written(labels)] = value
    lines = []
    for metric, found in values.items():
        lines.append(f"# TYPE {metric.name} gauge")
        if metric.unit:
            lines.append(f"# UNIT {metric.name} {metric.unit}")
        lines.append(f"# HELP {metric.name} {metric.says}.")
        lines += [f"{metric.name}{{{labels}}} {value!r}" for labels, value in found.items()]
    return "\n".join([*lines, "# EOF", ""])


def _of_run(run: ReportedRunData) -> Iterator[tuple[_Metric, _Labels, float]]:
    name = {"run": run["run_id"]}
    yield _STATUS, {**name, "status": run["status"]}, 1
    yield _BEGAN, name, run["began"]
    if run["exit_code"] is not None:
        yield _EXIT_CODE, name, run["exit_code"]
    if run["seconds"] is not None:
        yield _SECONDS, name, run["seconds"]
    samples = run["samples"]
    last = _last_values(samples["columns"], samples["tasks"], samples["bins"]) if samples else {}
    for task in run["tasks"]:
        labels = {**name, "task": task["task"], "host": task["host"]}
        yield _RESTARTS, labels, task["restarts"]
        if task["steps_s"] is not None:
            yield _STEPS_S, labels, task["steps_s"]
        for column, metric in _OF_COLUMNS.items():
            if (value := last.get(task["task"], {}).get(column)) is not None:
                yield metric, labels, value
    if samples:
        of_hosts = _last_values(samples["host_columns"], samples["hosts"], samples["host_bins"])
        for host, known in of_hosts.items():
            for column, value in known.items():
                yield _OF_HOST_COLUMNS[column], {**name, "host": host}, value


def _last_values(
    columns: Iterable[str], subjects: Sequence[str], bins: Iterable[Sequence[Any]]
) -> dict[str, dict[str, float]]:
    """Task, or host -> column -> its value in its last bin; step and loss of an earlier one, too."""
    names = list(columns)
    found: dict[str, dict[str, float]] = {}
    for _, *rows in bins:
        for number, *values in rows:
            known = dict(zip(names, values, strict=False))
            before = found.get(subjects[number], {})
            kept = {name: before[name] for name in ("step", "loss") if name in before}
            found[subjects[number]] = kept | {
                name: value for name, value in known.items() if value is not None
            }
    return found


def _written(labels: _Labels) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
