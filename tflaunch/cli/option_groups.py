"""The options that several verbs have, in groups; those of verbs that start tasks are in job_option_groups."""

# Without `from __future__ import annotations`: these are read when the program runs, and so they need no second look.

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tflaunch.cli.options import option
from tflaunch.cli.values import time_of

OUTPUT = "Output"

Hosts = Annotated[
    str | None,
    typer.Argument(
        metavar="HOSTS",
        help="A hostfile, or host1,host2, or slurm: [$TFLAUNCH_HOSTS, ./hosts.yaml, ~/.config/tflaunch/hosts.yaml]",
        show_default=False,
    ),
]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]", help="The run's id, or how it begins [the only one alive]", show_default=False
    ),
]
JsonDocument = Annotated[
    bool, typer.Option("--json", help="Everything, as one JSON document.", rich_help_panel=OUTPUT)
]


@dataclass(repr=False, eq=False)
class SshOptions:
    """How SSH reaches the hosts."""

    panel = "Connection"

    accept_new: bool = option(False, help="Write unknown host keys to known_hosts; changed ones are refused.")
    connect_timeout: float = option(
        30.0,
        parser=time_of(1),
        metavar="TIME",
        help="For name, TCP, banner and log-in of one host, in all.",
    )
    ssh_config: Path | None = option(None, "--ssh-config", "-F", help="Use this file, not ~/.ssh/config.")

    @property
    def config_path(self) -> str | None:
        """The ssh_config that was named, for records."""
        return str(self.ssh_config.absolute()) if self.ssh_config else None


@dataclass(repr=False, eq=False)
class ConnectionOptions(SshOptions):
    """How hosts are reached that a hostfile names."""

    connection: str = option(
        "",
        metavar="HOW",
        help="ssh, or openssh: the system's `ssh`; for hosts whose hostfile does not say [$TFLAUNCH_CONNECTION, ssh]",
        show_default=False,
    )


@dataclass(repr=False, eq=False)
class ReachOptions(SshOptions):
    """How the hosts of a run are found and reached."""

    hosts: str | None = option(
        None,
        "--hosts",
        "-H",
        metavar="HOSTS",
        help="Where to look [this machine's record]",
        rich_help_panel=None,
    )


@dataclass(repr=False, eq=False)
class OutputOptions:
    """What is shown of a run."""

    panel = OUTPUT

    quiet: bool = option(False, "--quiet", "-q", help="Show no output of the tasks.")
    only: tuple[str, ...] = option((), metavar="TASK", help="Show the output of worker/0 only; repeatable.")
    show_host: bool = option(False, help="Name the host in each line.")
    json: bool = option(False, help="One JSON object a line on stdout, for programs.")


@dataclass(repr=False, eq=False)
class LogOptions:
    """Which of the lines that tasks have written."""

    panel = OUTPUT

    since: float | None = option(
        None, parser=time_of(), metavar="TIME", help="What was written in the last 10m (to within 5 s)."
    )
    tail: int | None = option(None, "--tail", "-n", min=0, metavar="N", help="The last N lines of each task.")
    grep: str | None = option(None, metavar="PATTERN", help="Only lines with this regular expression.")


class DoneChoice(str, Enum):
    """Values of --done."""

    chief = "chief"
    workers = "workers"
    all = "all"
    never = "never"


@dataclass(repr=False, eq=False)
class EndOptions:
    """When a run ends, and how."""

    panel = "The end"

    done: DoneChoice = option(DoneChoice.workers, help="Whose success ends the run.")
    grace: float = option(10.0, parser=time_of(), metavar="TIME", help="Between TERM and KILL.")
    ps_grace: float = option(
        3.0, parser=time_of(), metavar="TIME", help="For ps to end by themselves when the work is done."
    )
    timeout: float = option(0.0, parser=time_of(), metavar="TIME", help="End the run after so long.")
    startup_timeout: float = option(
        0.0, parser=time_of(), metavar="TIME", help="End it when a task has not opened its port by then."
    )
    stall_timeout: float = option(
        0.0, parser=time_of(), metavar="TIME", help="End it when no task has written anything for so long."
    )
    lease: float | None = option(
        None,
        parser=time_of(5),
        metavar="TIME",
        help="Hosts end the run when nobody who decides was heard of for so long [60s; detached 10m]",
        show_default=False,
    )
    detach: bool = option(False, "--detach", "-d", help="Start it and leave: it goes on by itself.")
