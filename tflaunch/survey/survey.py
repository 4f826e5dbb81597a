"""Asking many hosts for their facts, once or again and again; no host waits for another."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tflaunch.hosts import Host
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.events import Interrupted
from tflaunch.sessions.dialler import CONNECT_THREADS
from tflaunch.sessions.group import NVML_SHARE, RETRY_S, Item, Sessions, Stopped
from tflaunch.sessions.session import Ended, Said
from tflaunch.sessions.wires import Opener
from tflaunch.survey.gpu_overview import Answer

TICK_S = 0.25  # the shortest time between two updates for the caller


@dataclass
class _Contact:
    """What is known of one host, and what the launcher waits for."""

    host: Host
    facts: HostFacts | None = None
    facts_at: float = 0.0  # when they came (monotonic); all other times are Sessions.awake_s
    error: ConnectError | None = None
    until: float | None = None  # the launcher waits for an answer until then; None: it does not wait
    asked: bool = False  # a question is not answered yet, though the launcher may no longer wait
    greeted: bool = False  # the agent is up
    given_up: bool = False  # the launcher ended the connection; `error` says why
    tries: int = 0
    retry_at: float | None = None


class Survey:
    """Visits to many hosts, over connections that stay open until `close`."""

    def __init__(
        self, opener: Opener, hosts: Sequence[Host], timeout_s: float, topology: bool = False
    ) -> None:
        """`timeout_s` is what a host may take to connect and to answer; `topology`: ask how its GPUs are connected."""
        self._sessions = Sessions(opener, lambda *_: None)
        self._contacts = {host.name: _Contact(host) for host in hosts}
        self._timeout_s = timeout_s
        self._topology = topology
        self.interrupts = self._sessions.interrupts

    def answers(self) -> list[Answer]:
        """What is known now, in the order of the hosts."""
        now = time.monotonic()
        return [
            Answer(name, each.facts, now - each.facts_at if each.facts else 0.0, each.error)
            for name, each in self._contacts.items()
        ]

    def once(self) -> Iterator[None]:
        """Ask every host; yields whenever there is news, and ends when all have answered or failed.  Raises Stopped."""
        self._dial(list(self._contacts.values()))
        while self._awaits():
            if self._hear(self._sessions.awake_s + self._timeout_s):
                yield

    def watch(self, every_s: float) -> Iterator[bool]:
        """Ask every host every `every_s`, for ever; a host whose connection is lost is dialled again.

        Yields True once in each round, when every host has answered or failed, and False for news in between.  Raises
        Stopped.
        """
        self._dial(list(self._contacts.values()))
        while True:
            due = self._sessions.awake_s + every_s
            round_over = False
            while (now := self._sessions.awake_s) < due:
                if not round_over and not self._awaits():
                    round_over = True
                    yield True
                elif self._hear(due) and now < due:
                    yield False
            if not round_over:
                yield True
            self._ask_again()

    def stop(self) -> None:
        """Have `once` or `watch`, in another thread, raise Stopped as for Ctrl-C."""
        self._sessions.put(Interrupted(signal.SIGINT))

    def close(self) -> None:
        """End all visits."""
        self._sessions.close()

    def _awaits(self) -> bool:
        return any(each.until is not None for each in self._contacts.values())

    def _dial(self, contacts: list[_Contact]) -> None:
        waves = -(-len(contacts) // CONNECT_THREADS)  # CONNECT_THREADS hosts connect at a time
        until = self._sessions.awake_s + self._timeout_s * waves
        for each in contacts:
            each.asked, each.until, each.retry_at = True, until, None
            each.greeted = each.given_up = False
        hosts = [each.host for each in contacts]
        self._sessions.connect(
            hosts, "visit", "", lambda _: wire.encode("probe", **self._probe(self._topology))
        )

    def _ask_again(self) -> None:
        now = self._sessions.awake_s
        lost = [
            each for each in self._contacts.values() if each.retry_at is not None and each.retry_at <= now
        ]
        if lost:
            self._dial(lost)
        for name, each in self._contacts.items():
            if not each.asked and each.retry_at is None:
                each.asked, each.until = True, now + self._timeout_s
                fields = self._probe(False)  # how GPUs are connected never changes
                self._sessions.send([name], "probe", **fields)

    def _probe(self, topology: bool) -> dict[str, Any]:
        return {"topology": topology, "within_s": NVML_SHARE * self._timeout_s}

    def _hear(self, deadline: float) -> bool:
        """Take messages until the deadline or, once one is news, for TICK_S; returns whether there is news."""
        news = False
        while (now := self._sessions.awake_s) < deadline:
            wake = min(
                [deadline, *(each.until for each in self._contacts.values() if each.until is not None)]
            )
            came = self._take(self._sessions.next(wake + self._sessions.slept_s))
            came = self._give_up_late() or came
            if not self._awaits() and came:
                return True
            if came and not news:
                news, deadline = True, min(deadline, now + TICK_S)
        return news

    def _take(self, item: Item | None) -> bool:
        match item:
            case Interrupted():
                raise Stopped(item)
            case Said(name, message):
                return self._take_message(self._contacts[name], message)
            case Ended(name, error):
                self._lose(self._contacts[name], error)
                return True
        return False

    def _take_message(self, contact: _Contact, message: wire.Message) -> bool:
        """Take a message of a host; returns whether it is news."""
        name = contact.host.name
        match message.type:
            case "hello":
                contact.greeted = True
            case "failed":
                self._give_up(contact, ConnectError(message["reason"], message.fields.get("hint", "")))
                return True
            case "facts":
                facts = HostFacts.from_wire(name, message.fields)
                contact.facts = _with_links(facts, contact.facts)
                contact.facts_at = time.monotonic()
                contact.error, contact.until, contact.asked, contact.tries = None, None, False, 0
                return True
        return False

    def _give_up_late(self) -> bool:
        """Stop waiting for hosts whose time is up, though a slow one may still answer; returns whether any was."""
        now = self._sessions.awake_s
        late = [each for each in self._contacts.values() if each.until is not None and each.until <= now]
        for each in late:
            each.until = None
            session = self._sessions.by_host.get(each.host.name)
            if each.greeted:
                each.error = ConnectError(
                    f"its GPUs did not answer within {self._timeout_s:g} s",
                    "a sick driver or a busy host? look there with nvidia-smi, or wait longer: --timeout",
                )
            elif session is not None:
                self._give_up(each, session.silent(self._timeout_s))
            else:
                each.error = ConnectError(f"no connection within {self._timeout_s:g} s")
        return bool(late)

    def _give_up(self, contact: _Contact, error: ConnectError) -> None:
        contact.error, contact.given_up, contact.until = error, True, None
        self._sessions.by_host[contact.host.name].close_by(time.monotonic())

    def _lose(self, contact: _Contact, error: ConnectError) -> None:
        """Its connection ended, or never came about: dial again later."""
        if not contact.given_up:
            contact.error = error
        session = self._sessions.by_host.pop(contact.host.name, None)
        if session is not None:
            session.close()
        contact.until, contact.asked = None, False
        first, most = RETRY_S
        contact.retry_at = self._sessions.awake_s + min(most, first * 2**contact.tries)
        contact.tries += 1


def _with_links(facts: HostFacts, before: HostFacts | None) -> HostFacts:
    """These facts with the topology of `before`: only the first probe asks for it."""
    links = {gpu.uuid: gpu.links for gpu in before.gpus} if before else {}
    gpus = tuple(
        gpu if gpu.links else dataclasses.replace(gpu, links=links.get(gpu.uuid, {})) for gpu in facts.gpus
    )
    return dataclasses.replace(facts, gpus=gpus)
