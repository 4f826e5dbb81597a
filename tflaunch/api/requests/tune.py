"""Make the request of a search for the fastest layout from its options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.api.requests.which_hosts import load_hosts
from tflaunch.frameworks.table import named
from tflaunch.hosts import match
from tflaunch.inputs.kinds import is_job_file
from tflaunch.inputs.options.groups import EndOptions, OutputOptions, WatchOptions
from tflaunch.inputs.options.job_groups import (
    ClusterOptions,
    PlaceChoice,
    RestartOptions,
    ResultOptions,
)
from tflaunch.inputs.options.of_run import RunArguments, RunOptions
from tflaunch.protocol.errors import UsageError
from tflaunch.runs.run_ids import new_run_id
from tflaunch.tuning.layouts import Axes, TaskLayout, doubling, numbers

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.options.of_tune import TuneOptions

LOOKS = 4  # of the agents, in the time over which the rules of slowness judge
SOONEST_S = 2.0  # ... which is no shorter than this


@dataclass(frozen=True)
class TuneRequest:
    """What the user asked for."""

    options: TuneOptions
    hostfile: Hostfile
    layouts: tuple[TaskLayout, ...]
    command: tuple[str, ...]  # for the record

    def run_id(self, kind: str) -> str:
        """A fresh id for the search (`tune`), or for the run of a layout (`layout`)."""
        what, said = self.options.what, self.options.start.name
        return new_run_id(f"{said or Path(what.script or self.options.program.module or 'run').stem}-{kind}")

    @property
    def about(self) -> dict[str, Any]:
        """What must be the same in a search that goes on."""
        what = self.options.what
        return {
            "program": what.script or f"-m {self.options.program.module}",
            "args": list(what.arguments),
            "steps": self.options.measure.steps,
            "layouts": [dataclasses.asdict(each) for each in self.layouts],
        }


def request_of(options: TuneOptions, reporter: Reporter | None, *, command: tuple[str, ...]) -> TuneRequest:
    """Make the request from the options; raises TflaunchError for what is wrong with them."""
    script = options.what.script
    if script is not None and is_job_file(script):
        raise UsageError(
            f"{script}: a job file is for tflaunch run", "name the program, and say the rest by options"
        )
    hostfile = load_hosts(options.what.hosts, options.connection.connection, reporter)
    _check_patterns(options, hostfile)
    return TuneRequest(options, hostfile, _axes(options, hostfile).layouts(), command)


def _check_patterns(options: TuneOptions, hostfile: Hostfile) -> None:
    """Raise UsageError for a pattern that selects no host, before any layout runs."""
    if hostfile.wanted is None:  # an engine's slots have no names yet
        for pattern in (*options.layouts.ps_hosts, *options.layouts.worker_hosts):
            match(pattern, hostfile)


def _axes(options: TuneOptions, hostfile: Hostfile) -> Axes:
    said = options.layouts
    if said.workers and said.workers_per_host:
        raise UsageError("--workers and --workers-per-host say the same thing", "leave one of them out")
    workers = numbers("--workers", said.workers, 1) if said.workers else ()
    if said.workers_per_host:
        count = _hosts(hostfile, said.worker_hosts[0] if len(said.worker_hosts) == 1 else "")
        workers = tuple(count * each for each in numbers("--workers-per-host", said.workers_per_host, 1))
    if said.ps:
        ps = numbers("--ps", said.ps, 0)
    elif named(options.program.framework.value).by_rank:
        ps = ()
    else:
        ps = doubling(max(2, _hosts(hostfile, said.ps_hosts[0] if len(said.ps_hosts) == 1 else "")))
    return Axes(
        ps=ps,
        workers=workers,
        ps_hosts=said.ps_hosts,
        worker_hosts=said.worker_hosts,
        place=tuple(each.value for each in said.place),
        threads=numbers("--threads", said.threads, 1) if said.threads else (),
    )


def _hosts(hostfile: Hostfile, pattern: str) -> int:
    """How many hosts there are, of a pattern if one is given; raises UsageError."""
    if hostfile.wanted is not None:
        return hostfile.wanted.count
    return len(match(pattern, hostfile) if pattern else hostfile.hosts)


def options_of_try(request: TuneRequest, layout: TaskLayout) -> RunOptions:
    """The options of the run that tries this layout."""
    options = request.options
    judged_s = max(SOONEST_S, 0.8 * options.measure.seconds)
    threshold = (f"slow_s={judged_s:g}", f"look_s={judged_s / LOOKS:g}")
    cluster, end = options.cluster, options.end
    return RunOptions(
        what=RunArguments(options.what.hosts, options.what.script, options.what.arguments),
        cluster=ClusterOptions(
            ps=layout.ps,
            workers=layout.workers,
            chief=cluster.chief,
            evaluator=cluster.evaluator,
            ps_hosts=layout.ps_hosts or None,
            worker_hosts=layout.worker_hosts or None,
            place=PlaceChoice(layout.place or "spread"),
            network=cluster.network,
        ),
        gpus=options.gpus,
        start=_replaced(options.start, name="", dry_run=False),
        program=options.program,
        tasks=_replaced(options.tasks, env=(*options.tasks.env, *map("=".join, layout.variables))),
        output=OutputOptions(),
        results=ResultOptions(),
        end=EndOptions(grace=end.grace, ps_grace=end.ps_grace, timeout=end.timeout, lease=end.lease),
        restarts=RestartOptions(),
        watch=WatchOptions(threshold=threshold),
        roles=options.roles,
        connection=options.connection,
    )


def _replaced(group: Any, **values: Any) -> Any:
    return dataclasses.replace(group, **values)
