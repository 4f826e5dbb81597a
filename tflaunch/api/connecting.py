"""Connect to the hosts of a request, and close the connections at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch.inputs.missing_files import no_such_file

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.documents.reporter import Reporter
    from tflaunch.engines.taken_slots import TakenSlots
    from tflaunch.hosts import Host, Hostfile
    from tflaunch.inputs.options.groups import SshOptions
    from tflaunch.remote import Connector
    from tflaunch.runs.visits import Visits
    from tflaunch.sessions.watcher import ProgressWatcher


class SilentReporter:
    """A watcher that shows nothing."""

    can_ask = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


SILENT: Any = SilentReporter()


@dataclass(frozen=True)
class SlotsFor:
    """The run that slots of an engine are for."""

    run_id: str = ""
    limit_s: float | None = None  # how long it may take
    keep: Callable[[Mapping[str, str]], None] = lambda _: None  # gets what it takes to give them back


@contextlib.contextmanager
def connected(
    hosts: Iterable[Host],
    ssh: SshOptions,
    reporter: Reporter | None = None,
    *,
    known_config: Path | None = None,
    ask: Callable[[str], str] | None = None,
) -> Iterator[Connector]:
    """Yield the Connector for these hosts, and close it at the end of the block; `reporter` shows its notes.

    known_config: the ssh_config to read where `ssh` names none.  ask: for the passphrase of an encrypted key, at the
    start; None: nobody can be asked.  Raises UsageError.
    """
    from tflaunch.remote import ConnectOptions, Connector

    ssh_config = ssh.ssh_config or known_config
    if ssh_config is not None and not ssh_config.is_file():
        raise no_such_file("--ssh-config", ssh_config)
    options = ConnectOptions(timeout_s=ssh.connect_timeout, accept_new=ssh.accept_new, ssh_config=ssh_config)
    with contextlib.closing(Connector(hosts, options, ask)) as connector:
        if reporter is not None:
            for note in connector.notes:
                reporter.warn_once(note)
        yield connector


class Reached(NamedTuple):
    """Hosts that are there, and how to connect to them."""

    hostfile: Hostfile
    connector: Connector
    slots: TakenSlots | None  # that an engine has given for this command


@contextlib.contextmanager
def reaching(
    hostfile: Hostfile,
    ssh: SshOptions,
    reporter: Reporter,
    about: SlotsFor | None = None,
    *,
    watcher: ProgressWatcher | None = None,
    ask: Callable[[str], str] | None = None,
) -> Iterator[Reached]:
    """Connect as `connected` does; where an engine gives slots, they are taken before, and given back at the end.

    about: the run that takes them; None: a command that only looks.  watcher: sees how the wait for them goes; None:
    the reporter.  Raises TflaunchError, Stopped.
    """
    if hostfile.wanted is None:
        with connected(hostfile.hosts, ssh, reporter, ask=ask) as connector:
            yield Reached(hostfile, connector, None)
        return
    from tflaunch.engines.taken_slots import ForCommand, taking

    about = about or SlotsFor()
    command = ForCommand(about.run_id, watcher or reporter, about.limit_s, keep=about.keep)
    with taking(hostfile, command) as (there, slots), connected(there.hosts, ssh, reporter) as connector:
        yield Reached(there, connector, slots)


@contextlib.contextmanager
def visiting(
    hosts: Iterable[Host],
    ssh: SshOptions,
    watcher: ProgressWatcher,
    *,
    known_config: Path | None = None,
    as_user: str = "",
    ask: Callable[[str], str] | None = None,
) -> Iterator[Visits]:
    """Yield Visits to these hosts, and close them at the end of the block; the rest is as for `connected`.

    `as_user`: visit the runs of that user; root alone may.
    """
    from tflaunch.runs.visits import Visits

    with (
        connected(hosts, ssh, known_config=known_config, ask=ask) as connector,
        contextlib.closing(Visits(connector, watcher, as_user)) as visits,
    ):
        yield visits
