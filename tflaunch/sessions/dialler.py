"""Opens the wires to many hosts at once, each with an agent on its way through it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions import payload
from tflaunch.sessions.session import Ended, unexpected
from tflaunch.sessions.wires import Opener, Wire

CONNECT_THREADS = 64
REFUSED_PAUSE_S = 0.3  # before a host that refuses the connection is dialled again


class Connected(NamedTuple):
    """A wire to a host is open and the agent is on its way."""

    host: Host
    channel: Wire


class Boot(NamedTuple):
    """What the agent is started for."""

    verb: str
    run: str
    as_user: str  # act for this user, on hosts where the log-in is root's
    first: Callable[[Host], bytes]  # what that host gets right behind the loader

    def line(self, host: Host) -> str:
        """The command that starts the loader there."""
        return payload.boot_line(
            self.verb, self.run, host.name, host.run_dir or "", host.python or "", as_user=self.as_user
        )


def dial(
    hosts: Collection[Host],
    boot: Boot,
    opener: Opener,
    put: Callable[[Connected | Ended], None],
    insists_s: float,
) -> None:
    """Begin to connect to all of `hosts`, CONNECT_THREADS at once; `put` gets Connected or Ended for each of them.

    A host that refuses the connection is dialled again for `insists_s`: its sshd may be starting.
    """
    loader = payload.loader()  # made once, not in each thread
    pending = queue.SimpleQueue[Host]()
    for host in hosts:
        pending.put(host)

    def work(more: int) -> None:
        # Each thread starts the next: start() waits until the new thread runs, after all the others.
        if more:
            with contextlib.suppress(RuntimeError):  # no more threads can be had: these do all the work
                threading.Thread(target=work, args=[more - 1], name=f"connect {more}", daemon=True).start()
        while True:
            try:
                host = pending.get_nowait()
            except queue.Empty:
                return
            try:
                put(
                    Connected(
                        host, _open(host, boot.line(host), loader + boot.first(host), opener, insists_s)
                    )
                )
            except ConnectError as error:
                put(Ended(host.name, error))
            except Exception as error:  # a defect must not look like a host that is slow
                put(Ended(host.name, unexpected(error)))

    if number := min(CONNECT_THREADS, len(hosts)):
        try:
            threading.Thread(target=work, args=[number - 1], name="connect 0", daemon=True).start()
        except RuntimeError as error:
            while not pending.empty():
                put(Ended(pending.get().name, unexpected(error)))


def _open(host: Host, line: str, first: bytes, opener: Opener, insists_s: float) -> Wire:
    give_up = time.monotonic() + insists_s
    while True:
        try:
            return opener.open(host, line, first)
        except ConnectError as error:
            if not (error.absent and error.again) or time.monotonic() >= give_up:
                raise
        time.sleep(REFUSED_PAUSE_S)
