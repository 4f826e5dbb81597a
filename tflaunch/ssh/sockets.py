"""TCP connections, with a time limit for what the system does without one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from tflaunch.ssh.config_match import FAMILIES
from tflaunch.ssh.deadline import BindError, Deadline, NameTimeout
from tflaunch.ssh.resolver import look_up
from tflaunch.ssh.target import Target


def dial_tcp(target: Target, deadline: Deadline, last_address: Callable[[], None]) -> socket.socket:
    """A connection to the first of the target's addresses that answers.

    `last_address()` is called when only the last address is left to answer.  Raises OSError, ValueError and
    OverflowError for what the system refuses, NameTimeout when no name server answers,
    BindError for a BindAddress that this machine does not have.
    """
    addresses = _resolve(target, deadline)
    last: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        if tried == len(addresses) - 1:
            last_address()
        connecting = socket.socket(family, kind, protocol)
        try:
            if target.bind_address:
                _bind(connecting, target.bind_address, deadline)
            # An address that does not answer leaves time for the next one.
            connecting.settimeout(deadline.left() / (len(addresses) - tried))
            connecting.connect(address)
            return connecting
        except OSError as error:
            connecting.close()
            last = error
    raise last


def _bind(connecting: socket.socket, name: str, deadline: Deadline) -> None:
    """Have the connection begin at the first address of its family that BindAddress names, as ssh does."""
    try:
        [*_, address], *_ = look_up(name, None, connecting.family, deadline.left())
        connecting.bind(address)
    except NameTimeout:
        raise
    except (OSError, UnicodeError) as error:
        raise BindError(*error.args) from error


def _resolve(target: Target, deadline: Deadline) -> list[Any]:
    return look_up(target.hostname, target.port, FAMILIES[target.family], deadline.left())
