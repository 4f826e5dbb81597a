"""Connect a verb to its hosts, and close the connections at its end."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.api.options.groups import SshOptions
    from tflaunch.console.reporter import Reporter
    from tflaunch.hosts import Host
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
) -> Iterator[Connector]:
    """Yield the Connector for these hosts, and close it at the end of the block; `reporter` shows its notes.

    `known_config` is the ssh_config to read where the user named none.  Asks for the passphrase of an encrypted key
    here, at the start, and only on a terminal.  Raises UsageError.
    """
    from tflaunch.api import connecting

    can_ask = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    gc.freeze()  # what is loaded by now stays loaded; to look for garbage in it takes 50 ms
    ask = _ask if can_ask else None
    with connecting.connected(hosts, ssh, reporter, known_config=known_config, ask=ask) as connector:
        yield connector


@contextlib.contextmanager
def visiting(
    hosts: Iterable[Host],
    ssh: SshOptions,
    watcher: ProgressWatcher,
    *,
    known_config: Path | None = None,
    as_user: str = "",
) -> Iterator[Visits]:
    """Yield Visits to these hosts, and close them at the end of the block; the rest is as for `connected`.

    `as_user`: visit the runs of that user; root alone may.
    """
    from tflaunch.runs.visits import Visits

    with connected(hosts, ssh, known_config=known_config) as connector:
        visits = Visits(connector, watcher, as_user)
        try:
            yield visits
        finally:
            visits.close()


def _ask(prompt: str) -> str:
    import getpass

    from tflaunch.sessions.log_lines import one_line

    return getpass.getpass(one_line(prompt), stream=sys.stderr)
