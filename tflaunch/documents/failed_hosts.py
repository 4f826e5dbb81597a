"""What is said of hosts that failed."""

from __future__ import annotations

from collections.abc import Mapping

from tflaunch.protocol.errors import ConnectError, ConnectErrors, DialError, LaunchError
from tflaunch.text.numbers import agreeing


def headline(errors: ConnectErrors | LaunchError) -> str:
    """Return how many hosts failed at what, and whether anything is left on them."""
    if isinstance(errors, ConnectErrors):
        return "the only host could not be used" if errors.total == 1 else errors.message
    count = len(errors.failures)
    if isinstance(errors, DialError):
        hosts = "1 host does not reach" if count == 1 else f"{count} hosts do not reach"
        hosts += f" every peer that {agreeing(count, 'its', 'their')} tasks will call"
        return hosts if errors.unconfirmed else f"{hosts}; nothing was started"
    hosts = "1 host could not start its tasks" if count == 1 else f"{count} hosts could not start their tasks"
    return hosts if errors.unconfirmed else f"{hosts}; nothing is left running"


def unconfirmed_hosts(errors: ConnectErrors | LaunchError) -> dict[str, str]:
    """Return the hosts on which something may still run, each with the reason why the check failed."""
    return errors.unconfirmed if isinstance(errors, LaunchError) else {}


def unreachable_data(failures: Mapping[str, ConnectError]) -> dict[str, dict[str, str]]:
    """Return why each of these hosts did not answer, as JSON has it."""
    return {host: each.data_for(host) for host, each in failures.items()}
