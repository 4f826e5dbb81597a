"""Slots from YARN: containers of Hadoop's distributed shell, a slot holder in each.

    tflaunch run yarn:ps=1x0+worker=4x1,memory=8g,queue=ml trainer.py

There is an application for each size.  The launcher counts the slots itself, for YARN knows no all or none.  Holders
tell where they listen in the log of their container, which `yarn logs` has, and to the launcher, if they can dial it.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tflaunch.engines.client_command import in_parallel
from tflaunch.engines.door import make_certificate
from tflaunch.engines.engine import EngineKey, ForWhom, GivenSlots, Handle
from tflaunch.engines.yarn_applications import (
    KEYS,
    SETTINGS,
    TAG,
    Submission,
    check_limits,
    check_nodes,
    client_words,
    sizes,
)
from tflaunch.engines.yarn_asked import AskedSet, PartialSet
from tflaunch.engines.yarn_board import YarnBoard, read_log
from tflaunch.engines.yarn_cluster import YarnCluster
from tflaunch.engines.yarn_commands import Yarn, YarnFailed, config, configured, here
from tflaunch.engines.yarn_hosts import by_node, door_of, hosts_of, named
from tflaunch.engines.yarn_look import YarnLook
from tflaunch.engines.yarn_manager import AppReport, Manager
from tflaunch.hosts import Host
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.engine_words import WantedSlots
from tflaunch.protocol.errors import ConnectError, Gone, NotGiven
from tflaunch.sessions.wires import Wire

AGAIN_S = (20.0, 60.0)  # until all are asked for again
LEAVE_S = 3.0  # for a slot holder to be told that the run is over
ENDED_S = 7.0  # for the applications to end by themselves then
AT_ONCE = 16


class YarnEngine:
    """The engine, in the launcher's process."""

    keys: Sequence[EngineKey] = KEYS
    place = ""
    stays = ""
    at_once = AT_ONCE
    forgets = False

    def __init__(self) -> None:
        self._looks: dict[str, YarnLook] = {}
        self._boards: dict[str, YarnBoard] = {}
        self._lock = threading.Lock()

    def take(self, wanted: WantedSlots, about: ForWhom) -> GivenSlots:
        made = sizes(wanted)
        name = f"tflaunch-{secrets.token_hex(4)}"
        settings = wanted.settings
        # Nothing is asked of the cluster for what cannot be.
        client_words(made[0], Submission(name, (), "", settings), Path("/"))
        cluster = in_parallel([partial(YarnCluster.here, settings)], about.pause)[0]
        [nodes] = in_parallel([cluster.nodes], about.pause)
        check_nodes(made, nodes)
        in_parallel([partial(check_limits, made, cluster.manager.largest)], about.pause)
        certificate, key = make_certificate()
        secret = {"certificate": certificate, "token": secrets.token_hex(16)}
        asked = AskedSet(cluster, made, settings, name, about, {**secret, "key": key})
        about.note(asked.handle)
        board = YarnBoard(certificate, key, secret["token"])
        with self._lock:
            self._boards[name] = board
        until = time.monotonic() + (seconds(settings["wait"]) if "wait" in settings else 0.0)
        try:
            while True:
                try:
                    asked.submit(board)
                    hosts = asked.hosts(board)
                    break
                except PartialSet as partial_set:
                    self._give_back(asked.handle, ())
                    if time.monotonic() > until:
                        raise NotGiven(f"yarn: {partial_set}; nothing was kept", _ALONE) from None
                    self._again(str(partial_set), sum(each.count for each in made), about)
                    asked = asked.anew()
            board.fill()
            return GivenSlots(asked.handle, hosts, about.run_id)
        except BaseException:
            self.release(asked.handle, ())
            raise

    @staticmethod
    def _again(why: str, count: int, about: ForWhom) -> None:
        """Leave the room that was there to others for a while: two who each have a part would wait for ever."""
        until = time.monotonic() + random.uniform(*AGAIN_S)  # noqa: S311 - no secret
        while (left := until - time.monotonic()) > 0:
            about.waits(0, count, f"{why}; given back, and asked for again in {left:.0f} s")
            about.pause(min(1.0, left))

    def open(self, host: Host, command: str, first: bytes, timeout_s: float) -> Wire:
        return door_of(host.slot).open_unless(partial(self.over, host), command, first, timeout_s)

    def over(self, host: Host) -> Gone | None:
        return self._look(host.slot).gone(host.slot)

    def why(self, host: Host) -> str | None:
        said = self._look(host.slot).why(host.slot)
        return f"yarn: {said}" if said else said

    def release(self, handle: Handle, hosts: Sequence[Host]) -> None:
        self._give_back(handle, hosts)
        with self._lock:
            board = self._boards.pop(handle.get("set", ""), None)
            self._looks.pop(handle.get("set", ""), None)
        if board is not None:
            board.close()

    def _give_back(self, handle: Handle, hosts: Sequence[Host]) -> None:
        yarn, name = Yarn(handle.get("conf", "")), handle.get("set", "")
        if not name:
            return
        # Its files are of use to nobody any more: all containers have them.
        remove = threading.Thread(target=_quietly, args=[partial(yarn.remove, name)], daemon=True)
        remove.start()
        _quietly(partial(_end_all, yarn, handle, hosts))
        remove.join()
        if not hosts:
            _quietly(partial(yarn.remove, name))  # an application may have been on its way

    def there(self, settings: Mapping[str, str]) -> Sequence[GivenSlots]:  # noqa: ARG002 - of every engine
        yarn = here()
        try:
            found = [each for each in yarn.listed(TAG).items() if each[1].startswith(f"{TAG}-")]
            looks = [partial(_found, yarn, name, application) for application, name in found]
            each_app = in_parallel(looks, time.sleep)
        except YarnFailed as refused:
            raise ConnectError(
                f"yarn: your applications cannot be listed: {refused}",
                "does yarn application -list work here?",
            ) from None
        sets: dict[str, list[GivenSlots]] = {}
        for one in filter(None, each_app):
            sets.setdefault(one.handle["set"], []).append(one)
        return [_together(parts) for parts in sets.values()]

    def _look(self, slot: Mapping[str, str]) -> YarnLook:
        with self._lock:
            return self._looks.setdefault(slot["set"], YarnLook(slot))


_ALONE = "ask for less, or wait=2h asks again and again, until there is room for all at once"


def _end_all(yarn: Yarn, handle: Handle, hosts: Sequence[Host]) -> None:
    """End the applications: in order, where their slot holders can be told, else by force."""
    applications = [each for each in handle.get("applications", "").split(",") if each]
    if hosts and applications:
        manager = Manager(yarn, config(configured(yarn.classpath())))
        leave = [partial(_leave, host) for host in hosts]
        if all(in_parallel(leave, time.sleep)):
            until = time.monotonic() + ENDED_S
            while time.monotonic() < until:
                applications = [each for each in applications if not _is_over(manager.report(each))]
                if not applications:
                    return
                time.sleep(0.3)
    elif len(applications) < int(handle.get("sizes", "1")):
        # The client was ended before it told the id.
        applications += [each for each, name in yarn.listed(TAG).items() if name == handle["set"]]
    if applications:
        yarn.kill(list(dict.fromkeys(applications)))


def _leave(host: Host) -> bool:
    try:
        door_of(host.slot).leave("the run is over", LEAVE_S)
    except ConnectError:
        return False
    return True


def _is_over(report: AppReport | None) -> bool:
    return report is None or report.is_over


def _quietly(do: Callable[[], object]) -> None:
    with contextlib.suppress(YarnFailed, ConnectError, OSError, ValueError, LookupError):
        do()


def _found(yarn: Yarn, name: str, application: str) -> GivenSlots | None:
    """The slots of one application, by what lies in the user's home and in its logs; None where it is another's."""
    try:
        said = json.loads(yarn.read(f"{name}/{application}/{SETTINGS}"))
        told = read_log(yarn.logs(application, "stdout"))
        handle = {"set": name, "conf": yarn.conf, "applications": application, "sizes": "1"}
        about = {**said, "secret": said["holder"]}
        hosts = hosts_of(handle, sorted(told, key=by_node), application, about)
    except (YarnFailed, ValueError, LookupError, TypeError):
        return None
    return GivenSlots(handle, named(hosts), str(said["run"])) if hosts else None


def _together(parts: Sequence[GivenSlots]) -> GivenSlots:
    """The slots of all applications of a set."""
    applications = ",".join(part.handle["applications"] for part in parts)
    handle = {**parts[0].handle, "applications": applications, "sizes": str(len(parts))}
    hosts = named([host for part in parts for host in part.hosts], applications)
    return GivenSlots(handle, hosts, parts[0].run_id)


ENGINE = YarnEngine()
