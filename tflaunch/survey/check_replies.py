"""What the agents of a check send: the last message of each type from each host, or why a host does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from tflaunch.hosts import fold
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions.absent_hosts import AbsentHosts
from tflaunch.sessions.group import AWAITED_SHOWN, Sessions, Stopped, interruption
from tflaunch.sessions.session import Said
from tflaunch.survey.check_answers import HostAnswer

SILENT_S = 10.0  # an agent sends something every few seconds
LATE = ConnectError("its agent did not answer in time", "is the host overloaded? try again")
SILENT = ConnectError(
    f"its agent has sent nothing for {SILENT_S:g} s", "is it frozen, or the network gone? ssh {host} true"
)


class Replies:
    """Waits for what the agents of one check send, and keeps it."""

    def __init__(
        self,
        sessions: Sessions,
        answers: Mapping[str, HostAnswer],
        phase: Callable[..., None],
        connect_s: float,
    ) -> None:
        """`answers` says which hosts have sent their facts; `phase` shows the user what the launcher waits for."""
        self._sessions = sessions
        self._answers = answers
        self._phase = phase
        self._connect_s = connect_s
        self._said: dict[tuple[str, str], wire.Message] = {}  # (host, type) -> its last message of that type
        self._failed: dict[str, ConnectError] = {}  # host -> why it cannot answer the last request

    def get(self, host: str, type: str) -> wire.Message | None:
        """The last message of that type from `host`; None: it sent none."""
        return self._said.get((host, type))

    def forget(self, type: str, hosts: Collection[str]) -> None:
        """Drop the messages of that type from `hosts`, so that the next `wait` waits for new ones."""
        for host in hosts:
            self._said.pop((host, type), None)

    def forget_failures(self) -> None:
        """A new request begins: a host that could not answer the last one may answer this one."""
        self._failed.clear()

    def is_lost(self, host: str) -> bool:
        """Whether `host` answers no request any more: its agent is silent, or the connection ended."""
        return host in self._sessions.ended or self.why_not(host) is SILENT

    def why_not(self, host: str) -> ConnectError:
        """Why `host` did not send the message that `wait` waited for."""
        return self._failed.get(host) or self._sessions.ended.get(host) or self._too_late(host)

    def _too_late(self, host: str) -> ConnectError:
        session = self._sessions.by_host.get(host)
        if session is None:
            return ConnectError(f"no connection within {self._connect_s:g} s")
        return LATE if self._answers[host].facts is not None else session.silent(self._connect_s)

    def wait(
        self,
        type: str,
        hosts: Collection[str],
        timeout_s: float,
        phase: str = "",
        *,
        hear: Callable[[str, wire.Message], None] | None = None,
        absent: AbsentHosts | None = None,
    ) -> None:
        """Wait until each of `hosts` has sent a message of that type or cannot, or `timeout_s` is over.

        `phase` is what the user is shown meanwhile; `hear` gets each such message as it comes; `absent` gives up hosts
        that do not answer on TCP.  Raises Stopped.
        """
        line = ""
        deadline = self._sessions.awake_s + timeout_s
        while missing := set(hosts) - self._settled(type):
            if phase:
                named = fold(sorted(missing)) if len(missing) <= AWAITED_SHOWN else ""
                self._phase(phase, len(hosts) - len(missing), len(hosts), named, line=line)
            now, until = time.monotonic(), deadline + self._sessions.slept_s
            if now >= until:
                break
            if absent and (gone := absent.given_up(missing)) and self._sessions.by_host:
                self._sessions.stop_waiting(gone)
                continue
            match self._sessions.next(min(until, now + 1.0)):
                case Said(name, message) if message.type == "failed":
                    self._failed[name] = ConnectError(message["reason"], message.fields.get("hint", ""))
                case Said(name, message) if message.type == "expired" and not message["asked"]:
                    self._failed[name] = ConnectError(message["reason"])
                case Said(_, message) if message.type == "expired" and type == "swept":
                    pass  # another `tflaunch stop` ends the check too
                case item if interrupted := interruption(item):
                    raise Stopped(interrupted)
                case Said(name, message) if message.type == "preparing":
                    line = f"{name}: {message['line']}"
                case Said(name, message):
                    self._said[name, message.type] = message
                    if hear is not None and message.type == type:
                        hear(name, message)
        if phase and (answered := sum((name, type) in self._said for name in hosts)):
            self._phase(phase, answered, answered, "")  # the findings name the hosts that did not answer

    def _settled(self, type: str) -> set[str]:
        """The hosts that have sent a message of that type, or cannot any more."""
        for name, at in self._sessions.heard.items():
            if self._answers[name].facts is not None and time.monotonic() - at > SILENT_S:
                self._failed.setdefault(name, SILENT)
        answered = {name for name, said in self._said if said == type}
        return answered | self._failed.keys() | self._sessions.ended.keys()
