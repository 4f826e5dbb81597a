"""The options that several verbs have, in groups; job_groups has those of the verbs that start tasks."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tflaunch.inputs.options.declared import FILES, NOWHERE, In, option
from tflaunch.inputs.options.values import TimeParser, read_threshold

OUTPUT = "Output"


@dataclass(repr=False, eq=False)
class SshOptions:
    """How to connect to the hosts by SSH."""

    panel = "Connection"
    also_in = In.CONFIG | In.TOP | In.API
    also_of = ("up", "sweep")

    accept_new: bool = option(
        False, help="Accept unknown host keys and write them to known_hosts; changed keys are refused."
    )
    connect_timeout: float = option(
        30.0,
        parser=TimeParser(1),
        help="Time limit to connect to a host: name lookup, TCP, log-in and the first answer together. While a run "
        "starts, an agent may also be silent for so long.",
    )
    ssh_config: Path | None = option(
        None, "--ssh-config", "-F", help="Read this file instead of ~/.ssh/config.", example="~/.ssh/lab"
    )

    @property
    def config_path(self) -> str | None:
        """The absolute path of the ssh_config that the user named, for records."""
        return str(self.ssh_config.absolute()) if self.ssh_config else None


@dataclass(repr=False, eq=False)
class ConnectionOptions(SshOptions):
    """How to connect to the hosts of a hostfile."""

    connection: str = option(
        "",
        metavar="HOW",
        help="ssh, or openssh (the system's `ssh`), where the hostfile does not say [$TFLAUNCH_CONNECTION, ssh]",
        choices=("ssh", "openssh"),
    )


@dataclass(repr=False, eq=False)
class ReachOptions(SshOptions):
    """How to find and connect to the hosts of a run."""

    hosts: str | None = option(
        None,
        "--hosts",
        "-H",
        metavar="HOSTS",
        help="The hosts to look on [those in this machine's record of the run]",
        rich_help_panel=None,
        also_in=NOWHERE,
    )


@dataclass(repr=False, eq=False)
class OutputOptions:
    """What to show of a run."""

    panel = OUTPUT
    also_in = In.CONFIG

    raw: bool = option(
        False,
        help="On a terminal, show also the lines that TensorFlow writes at each start, and those that several "
        "tasks write alike.",
    )
    quiet: bool = option(False, "--quiet", "-q", help="Do not show what the tasks print.", also_of=("up",))
    only: tuple[str, ...] = option(
        (),
        metavar="TASK",
        help="Show only the output of this task: worker/0; repeatable.",
        complete="tasks",
        also_in=NOWHERE,
    )
    show_host: bool = option(False, help="Show the host's name in each line.", also_of=("up",))
    json: bool = option(
        False,
        help="Print one JSON object per line on stdout, for programs.",
        also_in=NOWHERE,
        also_of=("up", "sweep"),
    )


@dataclass(repr=False, eq=False)
class LogOptions:
    """Which lines to show of what the tasks have printed."""

    panel = OUTPUT
    also_in = NOWHERE

    since: float | None = option(None, help="Only lines printed in the last TIME: 10m (to within 5 s).")
    tail: int | None = option(
        None, "--tail", "-n", min=0, help="Only the last N lines of each task.", also_in=In.CONFIG
    )
    grep: str | None = option(None, metavar="PATTERN", help="Only lines that match this regular expression.")


class DoneChoice(str, Enum):
    """Values of --done."""

    auto = "auto"
    chief = "chief"
    workers = "workers"
    all = "all"
    never = "never"


@dataclass(repr=False, eq=False)
class WatchOptions:
    """How the run is watched over for tasks that hang."""

    panel = "Hangs"

    threshold: tuple[str, ...] = option(
        (),
        metavar="NAME=VALUE",
        help="Change from when on a hang is told: wait_s=120; repeatable.  A wrong NAME lists them all.",
        also_of=("up",),
        adds=True,
        example=["wait_s=120"],
    )
    no_stacks: bool = option(
        False, help="Never have a task print its Python stacks while it runs.", also_of=("up",)
    )

    require_gpu: bool = option(
        False, help="End the run, with 65, if a task that has GPUs does not use them; plan none without."
    )
    stop_on_nan: bool = option(False, help="End the run, with 1, if the loss stays NaN.")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the watchdog (tflaunch.lifecycle.watchdog) that were given; raises UsageError."""
        return {
            "thresholds": dict(map(read_threshold, self.threshold)),
            "stacks": not self.no_stacks,
            "require_gpu": self.require_gpu,
            "stop_on_nan": self.stop_on_nan,
        }


@dataclass(repr=False, eq=False)
class EndOptions:
    """When a run ends, and how its tasks are stopped."""

    panel = "The end"

    done: DoneChoice = option(
        DoneChoice.auto,
        help="Which tasks end the run when they succeed; auto: the workers, but the chief where the program's "
        "text says that it coordinates.",
    )
    grace: float = option(
        10.0, help="Time between SIGTERM and SIGKILL when tasks are stopped.", also_of=("up", "sweep")
    )
    ps_grace: float = option(3.0, help="Time for ps to end by themselves when the work is done.")
    timeout: float = option(0.0, help="End the run after this time; 0: no limit.", also_of=("sweep",))
    warn_before: float = option(
        0.0,
        help="Send the program of each task SIGUSR1 so long before --timeout ends the run, so that it can save; one "
        "without a handler for SIGUSR1 dies of it.",
    )
    startup_timeout: float = option(
        0.0,
        help="End the run if a task has not opened its port after this time; 0: no limit.",
        also_of=("up",),
    )
    stall_timeout: float = option(
        0.0, help="End the run if no task has printed anything for this time; 0: no limit."
    )
    stop_idle: float = option(
        0.0, help="End the run if no GPU of it has done anything for this time; 0: no limit."
    )
    on_end: str = option(
        "",
        metavar="COMMAND",
        help="When the run has ended, well or not, run this shell command on this machine; $TFLAUNCH_RUN, "
        "$TFLAUNCH_STATUS, $TFLAUNCH_EXIT_CODE and others tell how.",
        also_of=("sweep",),
        example='mail -s "$TFLAUNCH_RUN $TFLAUNCH_STATUS" me@example.org',
    )
    lease: float | None = option(
        None,
        parser=TimeParser(5),
        help="Hosts end the run after this time without word from the launcher or coordinator [60s; detached 10m]",
        also_of=("up", "sweep"),
    )
    detach: bool = option(
        False,
        "--detach",
        "-d",
        help="Start the run and return; its hosts go on with it, without this machine.",
        also_in=FILES,
        also_of=("sweep",),
    )
