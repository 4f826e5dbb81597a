"""Connect a verb to its hosts: what asks for a passphrase is the terminal."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tflaunch.api import connecting

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Host
    from tflaunch.inputs.options.groups import SshOptions
    from tflaunch.remote import Connector
    from tflaunch.runs.visits import Visits
    from tflaunch.sessions.watcher import ProgressWatcher


def connected(
    hosts: Iterable[Host],
    ssh: SshOptions,
    reporter: Reporter | None = None,
    *,
    known_config: Path | None = None,
) -> AbstractContextManager[Connector]:
    """Connect as tflaunch.api.connecting.connected does; ask for the passphrase of a key on a terminal only."""
    return connecting.connected(hosts, ssh, reporter, known_config=known_config, ask=way_to_ask())


def visiting(
    hosts: Iterable[Host],
    ssh: SshOptions,
    watcher: ProgressWatcher,
    *,
    known_config: Path | None = None,
    as_user: str = "",
) -> AbstractContextManager[Visits]:
    """Visit hosts as tflaunch.api.connecting.visiting does; ask for the passphrase of a key on a terminal only."""
    return connecting.visiting(
        hosts, ssh, watcher, known_config=known_config, as_user=as_user, ask=way_to_ask()
    )


def way_to_ask() -> Callable[[str], str] | None:
    """Return what asks for the passphrase of a key, on a terminal; None elsewhere."""
    gc.freeze()  # what is loaded by now stays loaded; to look for garbage in it takes 50 ms
    return _ask if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty() else None


def _ask(prompt: str) -> str:
    import getpass

    from tflaunch.text.safe import one_line

    return getpass.getpass(one_line(prompt), stream=sys.stderr)
