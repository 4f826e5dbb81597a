"""Connect to the hosts of a request, and close the connections at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.api.options.groups import SshOptions
    from tflaunch.console.reporter import Reporter
    from tflaunch.hosts import Host
    from tflaunch.remote import Connector


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
