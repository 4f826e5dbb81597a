"""What several verbs share: options, the hostfile that is meant, the way to the hosts, Ctrl-C."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflaunch.cli.values import time_of
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_UNCLEAN, TflaunchError, UsageError

if TYPE_CHECKING:
    from tflaunch.console.reporter import Reporter
    from tflaunch.hosts import Host, Hostfile
    from tflaunch.remote import Connector

FAREWELL_S = 2.0  # for the last lines after Ctrl-C
PATIENT_S = 1.0  # what nobody needs to be told the reason of

OUTPUT, CONNECTION = "Output", "Connection"

AcceptNew = Annotated[
    bool,
    typer.Option(
        "--accept-new",
        help="Write unknown host keys to known_hosts; changed ones are refused.",
        rich_help_panel=CONNECTION,
    ),
]
ConnectTimeout = Annotated[
    float,
    typer.Option(
        parser=time_of(1),
        metavar="TIME",
        help="For name, TCP, banner and log-in of one host, in all.",
        rich_help_panel=CONNECTION,
    ),
]
SshConfig = Annotated[
    Path | None,
    typer.Option("--ssh-config", "-F", help="Use this file, not ~/.ssh/config.", rich_help_panel=CONNECTION),
]
ConnectionOption = Annotated[
    str,
    typer.Option(
        "--connection",
        metavar="HOW",
        help="ssh, or openssh: the system's `ssh`; for hosts whose hostfile does not say [$TFLAUNCH_CONNECTION, ssh]",
        show_default=False,
        rich_help_panel=CONNECTION,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object a line on stdout, for programs.", rich_help_panel=OUTPUT),
]
Grace = Annotated[
    float,
    typer.Option(parser=time_of(), metavar="TIME", help="Between TERM and KILL.", rich_help_panel="The end"),
]


def command_line() -> tuple[str, ...]:
    """This command for people and records, also where it was `python -m tflaunch`.

    The values of --env and --job-env are left out: they may be secrets, which nobody else is to see.
    """
    from tflaunch.runs.hidden_values import without_values

    return ("tflaunch", *without_values(sys.argv[1:]))


def default_hosts() -> str | None:
    """The hostfile that is meant when none is named, if there is one."""
    from tflaunch.hosts import find_default

    return find_default(os.environ, Path.cwd())


def load_hosts(source: str | None, connection: str = "", reporter: Reporter | None = None) -> Hostfile:
    """The hostfile that was named, or the default one, which `reporter` tells; raises HostfileError, UsageError.

    `connection` is what --connection says.
    """
    from tflaunch import hosts

    if source == "":  # a variable of the shell that is not set, and no wish for whatever hosts there are
        raise UsageError("HOSTS is empty", "name hosts, or leave that word out for the default hostfile")
    found = source or default_hosts()
    if found is None:
        raise UsageError(
            "no hostfile: $TFLAUNCH_HOSTS, ./hosts.yaml and ~/.config/tflaunch/hosts.yaml do not exist",
            "make one: tflaunch init; or name one: a file, host1,host2, slurm: or pbs:",
        )
    hostfile = hosts.load(found, connection=connection)
    if reporter is not None and not source:
        count = len(hostfile.hosts)
        named = "$TFLAUNCH_HOSTS" if os.environ.get("TFLAUNCH_HOSTS") else "none was named"
        reporter.note(f"hosts: {found} ({named}): {count} host{'' if count == 1 else 's'}")
    return hostfile


def connector(
    hosts: Iterable[Host], accept_new: bool, timeout_s: float, ssh_config: Path | None
) -> Connector:
    """The way to the hosts; an encrypted key asks here, at the start, and only on a terminal."""
    from tflaunch.remote import ConnectOptions, Connector

    if ssh_config is not None and not ssh_config.is_file():
        raise UsageError(f"--ssh-config {ssh_config}: there is no such file")
    can_ask = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    options = ConnectOptions(timeout_s=timeout_s, accept_new=accept_new, ssh_config=ssh_config)
    gc.freeze()  # what is loaded by now stays to the end; to look for garbage among it takes 50 ms
    return Connector(hosts, options, _ask if can_ask else None)


def _ask(prompt: str) -> str:
    import getpass

    from tflaunch.sessions.log_lines import one_line

    return getpass.getpass(one_line(prompt), stream=sys.stderr)


class Show:
    """The reporter of this command, and the exit code that it will end with."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.exit_code = 0


class Patient:
    """Shows what is waited for, once that takes longer than a moment; in front of a JSON document never."""

    def __init__(self, reporter: Reporter, json: bool) -> None:
        self._reporter = reporter
        self._lock = threading.Lock()
        self._last = ("", 0, 0, "")
        self._shown = False
        if not json:  # a timer: a host that does not answer is no news
            timer = threading.Timer(PATIENT_S, self._show)
            timer.daemon = True
            timer.start()

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        """As the reporter's."""
        with self._lock:
            self._last = (name, done, total, note)
            if self._shown:
                self._reporter.phase(*self._last)

    def settle(self) -> None:
        """Leave the screen to the answer, until there is another phase."""
        with self._lock:
            self._last = ("", 0, 0, "")
        self._reporter.settle()

    def _show(self) -> None:
        with self._lock:
            _, done, total, _ = self._last
            self._shown = True
            if done < total:
                self._reporter.phase(*self._last)


@contextlib.contextmanager
def reporting(stopped: str, reporter: Reporter | None = None, /, **options: Any) -> Iterator[Show]:
    """Inside, errors are shown by the reporter that is given; at the end the command exits with its code.

    `stopped` is what Ctrl-C has done when it comes before there is a run to stop.
    """
    from tflaunch.console.reporter import open_reporter
    from tflaunch.sessions.group import Stopped

    show = Show(reporter or open_reporter(**options))
    wait = True
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # from here on there is something to clean up
        yield show
    except Stopped as error:
        show.exit_code = 128 + error.interrupted.signal
        if error.unconfirmed:  # which ones has been said
            show.exit_code = EXIT_UNCLEAN
        else:
            show.reporter.say(stopped)
    except TflaunchError as error:
        show.reporter.error(error)
        show.exit_code = error.exit_code
    except KeyboardInterrupt:
        show.exit_code = EXIT_INTERRUPTED
        wait = False
    finally:
        if show.exit_code in (EXIT_INTERRUPTED, EXIT_STOPPED):
            # Whoever pressed Ctrl-C does not wait for a terminal that takes nothing (Ctrl-S, a pager).
            hurry = threading.Timer(FAREWELL_S, show.reporter.close, kwargs={"wait": False})
            hurry.daemon = True
            hurry.start()
        try:
            show.reporter.close(wait)
        except KeyboardInterrupt:  # the terminal does not take what is left, and the user does not want it
            show.reporter.close(wait=False)
        signal.signal(signal.SIGINT, before)
    raise typer.Exit(show.exit_code)
