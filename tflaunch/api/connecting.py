"""Connect to the hosts of a request, and close the connections at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Host
    from tflaunch.inputs.options.groups import SshOptions
    from tflaunch.remote import Connector
    from tflaunch.runs.visits import Visits
    from tflaunch.sessions.watcher import ProgressWatcher


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
        raise UsageError(f"--ssh-config {ssh_config}: there is no such file")
    options = ConnectOptions(timeout_s=ssh.connect_timeout, accept_new=ssh.accept_new, ssh_config=ssh_config)
    with contextlib.closing(Connector(hosts, options, ask)) as connector:
        if reporter is not None:
            for note in connector.notes:
                reporter.warn_once(note)
        yield connector


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
