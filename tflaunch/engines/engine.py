"""What each engine does, and the values that go to it and come from it."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tflaunch.hosts import Host
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.documents import PlacedText
from tflaunch.inputs.engine_words import SIZES, WantedSlots
from tflaunch.protocol.errors import Gone, HostfileError, Problem
from tflaunch.sessions.wires import Wire

Handle = Mapping[str, str]  # what an engine needs to know a request of ours again; it goes into the record


@dataclass(frozen=True)
class EngineKey:
    """A setting of an engine: `partition=gpu`, or below `settings:` of a hostfile."""

    name: str
    help: str
    kind: Literal["text", "count", "time", "words"] = "text"
    example: str = ""

    def fault(self, value: str) -> str:
        """Why the value cannot be, as a phrase that follows it; "" if nothing is wrong with it."""
        if not value or not value.isprintable():
            return "is empty" if not value else "holds a line break or a control character"
        if self.kind == "count" and not re.fullmatch(r"[1-9][0-9]{0,8}", value):
            return "is not a whole number, 1 or more"
        if self.kind == "time":
            try:
                seconds(value)
            except ValueError as error:
                return str(error)
        return ""


class ForWhom(Protocol):
    """The command for which slots are taken, and how it hears of them."""

    run_id: str
    limit_s: float | None  # how long the run may take; None: no limit is known

    def note(self, handle: Handle) -> None:
        """Keep what it takes to give the request back: the engine has it from now on, or will in a moment."""

    def waits(self, given: int, wanted: int, why: str) -> None:
        """Show that so many slots are there, and why the others are not."""

    def pause(self, seconds: float) -> None:
        """Wait.  Raises Stopped when the user ends the command."""


@dataclass(frozen=True)
class GivenSlots:
    """A set of slots that one command has got."""

    handle: Handle
    # Named as the engine names them, each with `connection` and `slot`; a slot has what is in the handle, too,
    # and an `id` that no other slot of the engine has.
    hosts: tuple[Host, ...]
    run_id: str = ""


class Engine(Protocol):
    """What gives slots and takes them back."""

    keys: Sequence[EngineKey]  # the settings that it knows
    place: str  # the setting that what stands before the sizes is, as `//h1:7077` in `spark://h1:7077,4`; "": none
    stays: str  # why a run in its slots cannot go on without its launcher; "": it can
    at_once: int  # so many wires may be opened at a time
    forgets: bool  # once slots are given back, it does not tell any more how their run has ended

    def take(self, wanted: WantedSlots, about: ForWhom) -> GivenSlots:
        """Ask for the slots and wait until all are there: all or none.

        Raises PlanError where they can never be, ConnectError where the engine cannot be asked, Stopped; what was asked
        for is given back before.
        """

    def open(self, host: Host, command: str, first: bytes, timeout_s: float) -> Wire:
        """Run `command` in that slot and send `first` to it.  Raises ConnectError; Gone if the slot is over."""

    def over(self, host: Host) -> Gone | None:
        """That the engine says of that slot that it is over; None while it does not, and where it cannot be asked."""

    def why(self, host: Host) -> str | None:
        """Why that slot, which its holder says is taken back, is: in the engine's words; "" while it does not know yet.

        None: it has no better words than the slot holder.
        """

    def release(self, handle: Handle, hosts: Sequence[Host]) -> None:
        """Give the slots, or the request for them, back, as well as can be: idempotent, silent.

        Slot holders end by themselves, too.
        """

    def there(self, settings: Mapping[str, str]) -> Sequence[GivenSlots]:
        """One's own slots, as the engine knows them without a record on this machine.  Raises ConnectError."""


def check(wanted: WantedSlots, engine: Engine, where: str) -> WantedSlots:
    """The same slots, their place among the settings.

    Raises HostfileError for settings that the engine does not know, or whose values cannot be.
    """
    if wanted.place:
        if not engine.place:
            sizes = f"is neither sizes, {SIZES}, nor KEY=VALUE"
            raise HostfileError([Problem(where, 0, 0, f"{wanted.place[:60]!r} {sizes}")])
        wanted = dataclasses.replace(
            wanted, settings={engine.place: wanted.place, **wanted.settings}, place=""
        )
    known = {key.name: key for key in engine.keys}
    problems = [
        Problem(
            where,
            0,
            0,
            f"{group.role}={group.count}x{group.gpus} are slots for the role {group.role}, which is "
            f"the name of a setting: write {group.role}=VALUE",
        )
        for group in wanted.groups
        if group.role in known
    ]
    for settings in (wanted.settings, *(group.settings for group in wanted.groups)):
        for name, value in settings.items():
            line, column = (value.line, value.column) if isinstance(value, PlacedText) else (0, 0)
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                meant = f"; did you mean {near[0]}?" if near else f"; it knows {', '.join(known) or 'none'}"
                said = f"{name}: {wanted.engine} has no such setting{meant}"
            elif fault := known[name].fault(value):
                example = f", for example {known[name].example}" if known[name].example else ""
                said = f"{name}: {value[:60]!r} {fault}{example}"
            else:
                continue
            problems.append(Problem(where, line, column, said))
    if problems:
        raise HostfileError(problems)
    return wanted
