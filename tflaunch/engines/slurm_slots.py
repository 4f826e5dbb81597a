"""Slots from Slurm: one step of a job holds all of them, a slot holder on each node.

    tflaunch run slurm:4x8,partition=gpu trainer.py     # from a login node: a job of its own
    tflaunch run slurm: trainer.py                      # inside salloc or sbatch: that job, by a step

The holders' program has secrets, and lies in a file that only its user can read, until the holders have read it.  They
say where they listen in the job's output; wires go to their doors, and cost no step.  Where nothing leads to a door,
wires are steps of srun.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tflaunch.engines import slurm_words as words
from tflaunch.engines.door import SlotDoor, make_certificate
from tflaunch.engines.engine import ForWhom, GivenSlots, Handle
from tflaunch.engines.holder_text import relay_text, slurm_text
from tflaunch.engines.slurm_commands import Slurm, SlurmFailed
from tflaunch.engines.slurm_in_job import InJob
from tflaunch.engines.slurm_jobs import KEPT, KEYS, NOTICE_S, sbatch_words, script, step_words
from tflaunch.engines.slurm_look import LOOK_S, JobLook
from tflaunch.engines.slurm_place import CODE, LOG, PROGRAM, TOLD, lines, log, own_place, write
from tflaunch.hosts import Host
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.engine_words import WantedSlots
from tflaunch.protocol.errors import ConnectError, Gone, NotGiven
from tflaunch.sessions.process_wire import ProcessWire
from tflaunch.sessions.wires import Advice, Wire

SOON_S = 10.0  # on nodes that are free, holders are there sooner
READ_S = (
    0.1,
    0.25,
)  # between two looks at what they have said, in that time and later; no question to the controller
FIRST_LOOK_S = 1.0
STARTED_S = 180.0  # for the slot holders to listen, once the job runs
DOOR_S = 4.0  # for a door to answer, before srun is the way in
LEFT_S = (0.2, 0.4, 0.8, 1.6)  # before each look whether it has
LEAVE_S = 3.0  # for a slot holder to be told that the run is over
ENDED_S = 4.0  # for a step's srun to end
GRACE_S = 30.0  # KillWait where the cluster does not say
AT_ONCE = 16
# How the step has ended is kept: Slurm forgets that at once.
TELL_CODE = 'umask 077; "$@"; echo $? >"$0"'
BY_SRUN = "srun led to its slots, and Slurm ends srun at once: the last lines of tasks may be missing"
ADVICE = Advice(
    silence=": the node is too busy, or srun does not get a step there",
    start_up="what starts before the agent there must not read its input or write to its output: look at sitecustomize",
    no_shell="commands are run by /bin/sh there",
    ended="does srun --overlap work in the job? is a python3, 3.8 or newer, on the PATH there?",
    large_packets="are large packets lost between here and the node (MTU)?",
    cut="was the node or its slurmd restarted? see sinfo",
)


class SlurmEngine:
    """The engine, in the launcher's process."""

    keys = KEYS
    place = ""
    stays = ""
    at_once = AT_ONCE
    forgets = True

    def __init__(self) -> None:
        self._looks: dict[str, JobLook] = {}
        self._steps: dict[str, subprocess.Popen[bytes]] = {}  # those that this process has started
        self._lock = threading.Lock()

    def take(self, wanted: WantedSlots, about: ForWhom) -> GivenSlots:
        conf = os.environ.get("SLURM_CONF", "")
        name = f"tflaunch-{secrets.token_hex(4)}"
        place = own_place(wanted.settings) / name
        inside = None if wanted.groups else InJob.here(os.environ)
        if inside is None:
            sbatch_words(wanted, name, place)  # nothing is asked for what cannot be
        slurm = Slurm(conf)
        with ThreadPoolExecutor(1, "config") as pool:
            asked = pool.submit(slurm.config)
            certificate, key = make_certificate()  # to load what makes it takes as long as the controller
        config = asked.result()
        secret = {"certificate": certificate, "token": secrets.token_hex(16)}
        handle = {
            "set": name,
            "place": str(place),
            "conf": conf,
            "cluster": config.get("ClusterName", ""),
            "sweeps": "yes" if "cgroup" in config.get("ProctrackType", "") else "",
            "notice": str(_seconds(wanted.settings, "notice", NOTICE_S)),
            "job": inside.job if inside else "",
            "ours": "" if inside else "yes",
            "python": wanted.settings.get("python", "python3"),
        }
        about.note(handle)
        try:
            place.mkdir(mode=0o700, parents=True)
            # A file server may hide a name for long that was not there at our first look.
            write(place / TOLD, "")
            write(place / PROGRAM, _program(wanted, config, {**secret, "key": key}))
            if inside is None:
                handle = {**handle, "job": self._submit(slurm, wanted, name, place)}
                about.note(handle)
            else:
                self._start_step(slurm, wanted, inside, handle)
            count = wanted.count or len(inside.nodes if inside else ())
            told = self._told(slurm, handle, count, about)
            (place / PROGRAM).unlink()
            roles = [group.role for group in wanted.groups] or [""]
            sizes = [group.gpus for group in wanted.groups] or [-1]
            said = {
                "handle": handle,
                "run": about.run_id,
                "secret": secret,
                "roles": roles,
                "gpus": sizes,
                "told": told,
            }
            said["allotted"] = inside.allotted() if inside else {}
            said["by_srun"] = self._without_door(said, about)
            write(place / KEPT, json.dumps(said))
            hosts = _hosts(said)
            self._look(hosts[0].slot).is_there()
            return GivenSlots(handle, hosts, about.run_id)
        except BaseException:
            self.release(handle, ())
            raise

    @staticmethod
    def _submit(slurm: Slurm, wanted: WantedSlots, name: str, place: Path) -> str:
        try:
            made = slurm.run(*sbatch_words(wanted, name, place), text=script(wanted, place / PROGRAM))
        except SlurmFailed as refused:
            raise words.refused(refused) from None
        if (found := re.match(r"\d+", made.strip())) is None:  # 12;cluster
            raise ConnectError(
                f"slurm: sbatch has not named the job: {made.strip()[:100]}", "does sbatch work here?"
            )
        return found[0]

    def _start_step(self, slurm: Slurm, wanted: WantedSlots, inside: InJob, handle: Handle) -> None:
        """Have srun hold the slots, in a session of its own: it outlives this process, as a run may."""
        place = Path(handle["place"])
        python = wanted.settings.get("python", "python3")
        argv = step_words(inside.job, inside.nodes, handle["set"], python)
        with (
            (place / PROGRAM).open("rb") as program,
            (place / TOLD).open("wb") as told,
            open(os.open(place / LOG, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as noted,  # noqa: PTH123 - for its mode
        ):
            try:
                self._steps[handle["set"]] = subprocess.Popen(
                    ("/bin/sh", "-c", TELL_CODE, str(place / CODE), *argv),
                    stdin=program,
                    stdout=told,
                    stderr=noted,
                    env=slurm.env(inside.job),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise ConnectError(
                    f"slurm: srun cannot be started here: {error.strerror}",
                    "is Slurm installed on this node?",
                ) from None

    def _told(self, slurm: Slurm, handle: Handle, count: int, about: ForWhom) -> list[dict[str, Any]]:
        """What the slot holders have said, all of them."""
        place, job = Path(handle["place"]), handle["job"]
        begun = time.monotonic()
        look_at = begun + FIRST_LOOK_S
        running_since: float | None = None
        why = "Slurm has the job" if handle["ours"] else "srun starts the slot holders"
        while True:
            told = lines(place / TOLD)
            if len(told) >= count:
                return told
            if time.monotonic() > look_at:
                look_at = time.monotonic() + LOOK_S
                why, runs = self._look_at(slurm, handle, why)
                running_since = (running_since or time.monotonic()) if runs else None
            srun = self._steps.get(handle["set"])
            late = running_since is not None and time.monotonic() > running_since + STARTED_S
            if (srun is not None and srun.poll() is not None and len(lines(place / TOLD)) < count) or late:
                raise words.not_started(job, place, log(place))
            about.waits(len(told), count, why)
            about.pause(READ_S[time.monotonic() > begun + SOON_S])

    def _look_at(self, slurm: Slurm, handle: Handle, why: str) -> tuple[str, bool]:
        """Why the slots are not there, and whether the job runs.  Raises NotGiven, PlanError, ConnectError."""
        job = handle["job"]
        try:
            facts = slurm.job(job)
        except SlurmFailed as refused:
            return f"the controller does not answer: {refused}", False
        if facts is None:
            raise NotGiven("slurm: the job was over before its slots were there", words.AGAIN)
        state = facts.get("JobState")
        if (error := words.never(facts)) is not None:
            raise error
        if state in words.WAITING:
            return words.waits(facts, datetime.datetime.now()), False
        if state in words.RUNNING:
            return "the slot holders start", True
        if state == "COMPLETING":
            return why, False
        if state in ("FAILED", "COMPLETED") and handle["ours"]:
            place = Path(handle["place"])
            raise words.not_started(job, place, log(place))
        raise NotGiven(f"slurm: {words.end(facts, job)} before its slots were there", words.AGAIN)

    @staticmethod
    def _without_door(said: Mapping[str, Any], about: ForWhom) -> list[int]:
        """The slots whose doors cannot be dialled from here, by their place in what the holders have said."""

        def answers(host: Host) -> bool:
            try:
                _door(host.slot).look(DOOR_S)
            except ConnectError:
                return False
            return True

        pool = ThreadPoolExecutor(AT_ONCE, "dial")
        try:
            running = [pool.submit(answers, host) for host in _hosts({**said, "by_srun": []})]
            while not all(each.done() for each in running):
                about.pause(0.02)
            return [index for index, each in enumerate(running) if not each.result()]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def open(self, host: Host, command: str, first: bytes, timeout_s: float) -> Wire:
        slot = host.slot
        over = partial(self.over, host)
        if slot["way"] == "door":
            return _door(slot).open_unless(over, command, first, timeout_s)
        if (gone := over()) is not None:
            raise gone
        relay = (slot["python"], "-c", relay_text(), slot["socket"], command)
        return ProcessWire(Slurm(slot["conf"]).wire_words(slot["job"], slot["node"], *relay), first, ADVICE)

    def over(self, host: Host) -> Gone | None:
        return self._look(host.slot).gone(host.slot)

    def why(self, host: Host) -> str | None:
        said = self._look(host.slot).why(host.slot)
        missing = f"; {BY_SRUN}" if said and host.slot["way"] == "srun" else ""
        return said and f"slurm: {said}{missing}"

    def release(self, handle: Handle, hosts: Sequence[Host]) -> None:
        slurm = Slurm(handle.get("conf", ""))
        with contextlib.suppress(SlurmFailed, ConnectError):
            self._give_back(slurm, handle, hosts)
        if (srun := self._steps.pop(handle.get("set", ""), None)) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                srun.wait(ENDED_S)
        place = Path(handle.get("place", ""))
        if place.name == handle.get("set"):
            shutil.rmtree(place, ignore_errors=True)

    def _give_back(self, slurm: Slurm, handle: Handle, hosts: Sequence[Host]) -> None:
        by_door = [host for host in hosts if host.slot["way"] == "door"]

        def leave(host: Host) -> bool:
            try:
                _door(host.slot).leave("the run is over", LEAVE_S)
            except ConnectError:
                return False
            return True

        # A job whose holders end by themselves stands as COMPLETED in Slurm's books, one of scancel as CANCELLED.
        with ThreadPoolExecutor(AT_ONCE, "leave") as pool:
            left = all(pool.map(leave, by_door))
        what = handle["job"] if handle["ours"] else _step_of(slurm, handle, hosts)
        if left and by_door and len(by_door) == len(hosts):
            for pause in LEFT_S:
                time.sleep(pause)
                if not self._is_there(slurm, handle, what):
                    return
        if what:
            slurm.run("scancel", what)
        elif handle["ours"]:
            slurm.run("scancel", f"--name={handle['set']}")  # sbatch was asked, and has not answered
        elif (srun := self._steps.get(handle["set"])) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(srun.pid, signal.SIGTERM)

    @staticmethod
    def _is_there(slurm: Slurm, handle: Handle, what: str) -> bool:
        if not handle["ours"]:
            return what in slurm.steps(handle["job"])
        facts = slurm.job(what)
        return facts is not None and facts.get("JobState") in (*words.RUNNING, *words.WAITING, "COMPLETING")

    def there(self, settings: Mapping[str, str]) -> Sequence[GivenSlots]:
        slurm = Slurm(os.environ.get("SLURM_CONF", ""))
        try:
            alive = set(slurm.run("squeue", "--noheader", "--me", "--format=%A").split())
        except SlurmFailed as refused:
            raise ConnectError(
                f"slurm: your jobs cannot be listed: {refused}", "does squeue work here?"
            ) from None
        found = []
        for path in sorted(own_place(settings).glob(f"*/{KEPT}")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                said = json.loads(path.read_text("utf-8"))
                if said["handle"]["conf"] != slurm.conf:
                    continue  # of another cluster
                if said["handle"]["job"] in alive:
                    found.append(GivenSlots(said["handle"], _hosts(said), said["run"]))
                else:
                    shutil.rmtree(path.parent, ignore_errors=True)
        return found

    def _look(self, slot: Mapping[str, str]) -> JobLook:
        with self._lock:
            return self._looks.setdefault(slot["set"], JobLook(slot))


def _program(wanted: WantedSlots, config: Mapping[str, str], secret: Mapping[str, str]) -> str:
    """The program of all slot holders, with their secrets."""
    found = re.match(r"\d+", config.get("KillWait", ""))
    kill_wait = float(found[0]) if found else GRACE_S
    gpus = "step" if not wanted.groups or any(group.gpus for group in wanted.groups) else "none"
    return slurm_text(
        {
            **secret,
            "door": True,
            "grace_s": max(kill_wait - 1.0, kill_wait / 2),
            "warn_s": _seconds(wanted.settings, "notice", NOTICE_S),
            "idle_s": _seconds(wanted.settings, "idle", 20.0),
            "gpus": gpus,
            # Jobs run as their user, in whose own store on the node no other user writes.
            "code": "/var/tmp",  # noqa: S108
        },
        managed="gpu" in config.get("GresTypes", ""),
    )


def _hosts(said: Mapping[str, Any]) -> tuple[Host, ...]:
    """The slots of which their holders have said that."""
    told = said["told"]
    names = [each["where"]["node"] for each in told]
    return tuple(
        _host(
            said, each, names[index] if names.count(names[index]) == 1 else f"{names[index]}-{index}", index
        )
        for index, each in enumerate(told)
    )


def _host(said: Mapping[str, Any], told: Mapping[str, Any], name: str, index: int) -> Host:
    where, handle = told["where"], said["handle"]
    role = said["roles"][where["group"]]
    allotted = said["allotted"].get(where["node"], {})
    has_gpus = (
        said["gpus"][where["group"]] if said["gpus"][where["group"]] >= 0 else allotted.get("gpus", True)
    )
    return Host(
        name=name,
        connection="slurm",
        ssh_host=name,
        address=str(told["addresses"][0]),
        run_dir=f"{told['directory']}/runs",
        gpus="auto" if has_gpus else 0,
        slots=allotted.get("slots"),
        slots_by=allotted.get("by") or f"slurm:{handle['job']}",
        labels={"role": role} if role else {},
        slot={
            **handle,
            **said["secret"],
            "id": f"{handle['set']}.{where['group']}.{where['task']}",
            "node": where["node"],
            "step": where["step"],
            "addresses": ",".join(map(str, told["addresses"])),
            "port": str(told["port"]),
            "socket": str(told["socket"]),
            "way": "srun" if index in said["by_srun"] else "door",
        },
    )


def _door(slot: Mapping[str, str]) -> SlotDoor:
    return SlotDoor(
        tuple(slot["addresses"].split(",")), int(slot["port"]), slot["certificate"], slot["token"]
    )


def _step_of(slurm: Slurm, handle: Handle, hosts: Sequence[Host]) -> str:
    """The step that has the slots in a job of the user's own; "" where there is none."""
    if hosts:
        return f"{handle['job']}.{hosts[0].slot['step']}"
    steps = slurm.steps(handle["job"]) if handle["job"] else {}
    return next((step for step, name in steps.items() if name == handle["set"]), "")


def _seconds(settings: Mapping[str, str], key: str, default: float) -> float:
    return seconds(settings[key]) if key in settings else default


ENGINE = SlurmEngine()
