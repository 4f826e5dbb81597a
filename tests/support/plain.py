"""An engine for tests: its slots are processes of a Scheduler (tests/support/scheduler.py), on any machine.

Its settings: `at=DIRECTORY`, where it and the scheduler leave each other files, and `door=socket`, which has wires go
by a relay that the "engine" starts at the slot, as `kubectl exec` does; else the slot holder's TLS port is dialled.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tflaunch.engines.door import SlotDoor, make_certificate
from tflaunch.engines.engine import EngineKey, ForWhom, GivenSlots, Handle
from tflaunch.engines.holder_text import holder_text, relay_text
from tflaunch.hosts import Host
from tflaunch.inputs.engine_words import WantedSlots
from tflaunch.protocol.errors import ConnectError, Gone, NotGiven, PlanError
from tflaunch.sessions.process_wire import ProcessWire
from tflaunch.sessions.wires import Advice, Wire

ADVICE = Advice(
    silence="",
    start_up="look at what the plain engine says of the slot {host}",
    no_shell="has the node of {host} a /bin/sh?",
    ended="look at the log of the slot {host}",
    large_packets="are large packets lost between here and the node?",
    cut="has the node lost its network?",
)
PYTHON = "python3"


def put(path: Path, what: Mapping[str, Any]) -> None:
    """Write it there, whole or not at all, for this user alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    new.touch(0o600)
    new.write_text(json.dumps(what))
    new.rename(path)


def get(path: Path) -> dict[str, Any]:
    """What is written there; {} if nothing is."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


class Plain:
    """The engine, in the launcher's process."""

    keys = (
        EngineKey("at", "The directory of the scheduler.", example="/tmp/plain"),
        EngineKey("door", "tls or socket.", example="socket"),
        EngineKey("idle", "Seconds until an idle slot holder ends.", "count", "20"),
        EngineKey("grace", "Seconds from TERM to the end of a slot.", "count", "10"),
        EngineKey("node", "The node for these slots."),
    )
    place = ""
    stays = ""
    at_once = 64
    forgets = True

    def take(self, wanted: WantedSlots, about: ForWhom) -> GivenSlots:
        at = Path(wanted.settings["at"])
        job = f"job{secrets.token_hex(3)}"
        certificate, key = make_certificate()
        token = secrets.token_hex(16)
        slots: list[dict[str, Any]] = []
        for group in wanted.groups:
            said = {**wanted.settings, **group.settings}
            for _ in range(group.count):
                name = f"s{len(slots)}"
                text = holder_text(
                    {
                        "token": token,
                        "certificate": certificate,
                        "key": key,
                        "door": said.get("door") != "socket",
                        "idle_s": float(said.get("idle", "20")),
                        "grace_s": float(said.get("grace", "5")),
                        "slot": name,
                        "gpus": f"index:{','.join(map(str, range(group.gpus)))}" if group.gpus else "none",
                    }
                )
                slots.append(
                    {
                        "name": name,
                        "role": group.role,
                        "gpus": group.gpus,
                        "node": said.get("node", ""),
                        "text": text,
                    }
                )
        handle = {"at": str(at), "job": job}
        about.note(handle)
        put(at / "requests" / f"{job}.json", {"run": about.run_id, "slots": slots})
        try:
            given = self._given(at, job, wanted.count, about)
        except BaseException:
            self.release(handle, ())
            raise
        secret = {"token": token, "certificate": certificate}
        hosts = tuple(
            self._host(slot, told, {**handle, **secret}) for slot, told in zip(slots, given, strict=True)
        )
        return GivenSlots(handle, hosts, about.run_id)

    def _given(self, at: Path, job: str, count: int, about: ForWhom) -> list[dict[str, Any]]:
        while True:
            answer = get(at / "answers" / f"{job}.json")
            if words := answer.get("never"):
                raise PlanError(f"plain: {words}", "ask for less")
            if words := answer.get("cancelled"):
                raise NotGiven(f"plain: {words}", "start it again")
            if (at / "released" / f"{job}.json").exists():
                raise NotGiven(f"plain: {job} was given back by another command", "start it again")
            given: list[dict[str, Any]] = answer.get("given", [])
            if len(given) == count:
                return given
            about.waits(len(given), count, answer.get("why", "the scheduler has not answered"))
            about.pause(0.1)

    @staticmethod
    def _host(slot: Mapping[str, Any], told: Mapping[str, Any], about: Mapping[str, str]) -> Host:
        return Host(
            name=told["name"],
            connection="plain",
            ssh_host=told["name"],
            address=told["addresses"][0],
            run_dir=f"{told['directory']}/runs",
            gpus="auto" if slot["gpus"] else 0,
            slots_by=f"plain:{about['job']}",
            labels={"role": slot["role"]} if slot["role"] else {},
            slot={
                **about,
                "id": f"{about['job']}.{slot['name']}",
                "node": told["node"],
                "index": slot["name"],
                "addresses": ",".join(told["addresses"]),
                "port": str(told["port"]),
                "socket": told["socket"],
                "exec": json.dumps(told["exec"]),
            },
        )

    def open(self, host: Host, command: str, first: bytes, timeout_s: float) -> Wire:
        slot = host.slot
        if (error := self.over(host)) is not None:
            raise error
        if slot["port"] == "0":
            words = [*json.loads(slot["exec"]), PYTHON, "-c", relay_text(), slot["socket"], command]
            return ProcessWire(words, first, ADVICE)
        wire = self._door(slot).open_unless(partial(self.over, host), command, first, timeout_s)
        wire.advice = ADVICE
        return wire

    def why(self, host: Host) -> str | None:  # noqa: ARG002 - as of every engine
        return None

    def over(self, host: Host) -> Gone | None:
        slot = host.slot
        over = get(Path(slot["at"]) / "over" / f"{slot['job']}.{slot['index']}.json")
        if not over:
            return None
        words, in_order = f"plain: {over['words']}", over.get("in_order", False)
        return Gone(
            words, "start the run again", swept=over["swept"], in_order=in_order, code=over.get("code")
        )

    def release(self, handle: Handle, hosts: Sequence[Host]) -> None:
        for host in hosts:
            if host.slot["port"] != "0":
                with contextlib.suppress(ConnectError):
                    self._door(host.slot).leave("the run is over", 2.0)
        with contextlib.suppress(OSError):
            put(Path(handle["at"]) / "released" / f"{handle['job']}.json", {"released": True})

    def there(self, settings: Mapping[str, str]) -> Sequence[GivenSlots]:
        at = Path(settings["at"])
        found = []
        for path in (at / "given").glob("*.json"):
            said = get(path)
            if (at / "released" / path.name).exists():
                continue
            handle = {"at": str(at), "job": path.stem}
            slots = [{"name": told["index"], "gpus": 0, "role": ""} for told in said["slots"]]
            # Whoever has no record has no token: the engine itself leads to the slot.
            by_exec = [{**told, "port": 0} for told in said["slots"]]
            hosts = tuple(self._host(*each, handle) for each in zip(slots, by_exec, strict=True))
            found.append(GivenSlots(handle, hosts, said["run"]))
        return found

    @staticmethod
    def _door(slot: Mapping[str, str]) -> SlotDoor:
        return SlotDoor(
            tuple(slot["addresses"].split(",")), int(slot["port"]), slot["certificate"], slot["token"]
        )


ENGINE = Plain()
