"""GPU leases: locks (flock) that all users of this host see, on the kernel's own files where it has such.

    /sys/bus/pci/devices/<bus id>/vendor           of a GPU: root's, all may open it, no user can delete it
    /proc/driver/nvidia/capabilities/.../access    of a MIG instance: likewise
    /var/tmp/tflaunch-leases/<uuid>                a lease file, of either (lease_files): it says which run has the
                                                   device since when

The kernel frees a lock when its holder ends, whatever ends it; the files stay, and mean nothing by themselves.  Any
user may lock a file that he may open: /proc/locks then names him.  What a lease file says about its holder is for
people to read; nothing else relies on it.
"""

import errno
import os
import stat
import time

from tflaunch.agent.files.unaged import Unaged
from tflaunch.agent.gpus import lease_files
from tflaunch.agent.gpus.lease_files import DIRECTORY, OWN, Taken
from tflaunch.agent.gpus.locks import Busy, lock_alone, lockers, look_at
from tflaunch.agent.host import processes
from tflaunch.agent.host.foreign import user_name
from tflaunch.agent.host.rundir import HostError
from tflaunch.protocol import wire
from tflaunch.protocol.directories import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, Iterable, List, Optional, Tuple

DEVICES = os.path.join(OWN, "devices") if OWN else ""  # in front of the paths of the kernel's files
TEXT_LIMIT = 255
TOUCH_S = 3600.0


class Leases:
    """The devices that this agent holds."""

    def __init__(self, run: str) -> None:
        self._run = run
        # By UUID: the descriptor of the kernel's file, or -1, and the lease files, which the former can do without.
        self._held = {}  # type: Dict[str, Tuple[int, Optional[Taken]]]
        self._yours = {}  # type: Dict[str, bool]  # sentences about files of this user's, and whether they were told
        self._planning = {}  # type: Dict[str, bool]
        self._since = {}  # type: Dict[str, float]
        self._unaged = Unaged()
        self._touched = 0.0

    @property
    def held(self) -> "Collection[str]":
        """Their UUIDs."""
        return self._held.keys()

    def take(self, uuid: str, device: str = "") -> "Optional[Dict[str, Any]]":
        """Take the lease of a GPU or MIG instance; None when this agent has it now, else who holds it.

        `device` is the path of the kernel's own file for it, if it has one.  Raises HostError.
        """
        if uuid in self._held:
            return None
        kernels = _device(device)
        try:
            if kernels >= 0:
                lock_alone(kernels)
            try:
                files = Taken(uuid)  # type: Optional[Taken]
            except HostError:
                if kernels < 0:
                    raise
                files = None  # the kernel's file is locked: that is enough
        except BaseException as error:
            if kernels >= 0:
                os.close(kernels)
            if isinstance(error, Busy):
                return _who(uuid, error.info)
            raise
        self._planning[uuid], self._since[uuid] = True, time.time()
        self._hold(uuid, kernels, files)
        self._unaged.add(DIRECTORY)
        return None

    def _hold(self, uuid: str, kernels: int, files: "Optional[Taken]") -> None:
        self._held[uuid] = kernels, files
        if files is not None:
            self._sign(uuid, files)
            if files.yours:
                self._yours.setdefault(files.yours, False)

    def keep(self, uuids: "Iterable[str]") -> None:
        """Give up all other leases; these are the run's until the agent ends."""
        wanted = set(uuids)
        for uuid, (kernels, files) in list(self._held.items()):
            if uuid in wanted:
                self._planning[uuid] = False
                if files is not None:
                    self._sign(uuid, files)
                continue
            del self._held[uuid]
            if files is not None:
                # Else they would name this run as the next holder's, until that has signed.
                files.write(b"", everywhere=True)
                files.close()
            if kernels >= 0:
                os.close(kernels)

    def check(self, now: float) -> "List[str]":
        """Take lease files anew that another user has removed; returns sentences for the user, each once."""
        touch = now - self._touched >= TOUCH_S
        self._touched = now if touch else self._touched
        self._unaged.check()
        sentences = [text for text, told in self._yours.items() if not told]
        self._yours.update(dict.fromkeys(sentences, True))
        for uuid, (kernels, files) in list(self._held.items()):
            gone = files.gone() if files is not None else ""
            if files is not None and gone:
                sentences.append(self._mend(uuid, kernels, files, gone))
            elif files is not None and touch:
                files.touch()
            elif touch:
                try:
                    self._hold(uuid, kernels, Taken(uuid))
                except (HostError, Busy):
                    pass  # the user has been told before
        return sentences

    def _mend(self, uuid: str, kernels: int, files: Taken, path: str) -> str:
        """Take the lease file anew; returns a sentence for the user about it."""
        files.close()
        self._held[uuid] = kernels, None
        said = "%s was removed while this run held it" % path
        try:
            self._hold(uuid, kernels, Taken(uuid))
        except HostError as error:
            return "%s, and cannot be taken anew: %s" % (said, error.reason)
        except Busy as error:
            who = _who(uuid, error.info)
            other = "%s's run %s" % (who["user"] or "another user", who["run"])
            if kernels >= 0:
                return "%s; %s holds the new one, but not the GPU's own lock, which is this run's" % (
                    said,
                    other,
                )
            return "%s, and %s has taken that GPU: two runs are on it" % (said, other)
        return "%s; it is taken anew" % said

    def _sign(self, uuid: str, files: Taken) -> None:
        about = {
            "user": user_name(os.getuid()),
            "run": self._run,
            "since": self._since[uuid],
            "planning": self._planning[uuid],
        }
        files.write(wire.dumps(about).encode("ascii"))


def holder(uuid: str, device: str = "") -> "Optional[Dict[str, Any]]":
    """Who holds the lease of that device, or None; takes nothing.  Raises HostError."""
    kernels = _device(device)
    try:
        if kernels >= 0:
            look_at(kernels)
        try:
            lease_files.look(uuid)
        except HostError:
            if kernels < 0:
                raise
    except Busy as busy:
        return _who(uuid, busy.info)
    finally:
        if kernels >= 0:
            os.close(kernels)
    return None


# -- the kernel's own files


def _device(path: str) -> int:
    """The kernel's file, open; -1 where there is none.  Raises HostError."""
    if not path:
        return -1
    try:
        descriptor = os.open(DEVICES + path, os.O_RDONLY | FILE)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise HostError("%s: %s" % (path, os.strerror(error.errno))) from error
        return -1
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return -1


# -- who it is


def _who(uuid: str, info: os.stat_result) -> "Dict[str, Any]":
    """Who has locked that file of that device: what the kernel says, else what is written in its lease file.

    `pid` is 0 for an agent, and the process's own for any other program.
    """
    said = _said(uuid)
    for pid in lockers(info):
        try:
            user = user_name(os.stat("/proc/%d" % pid).st_uid)
        except OSError:
            continue  # the process has left its lock to a child, or /proc hides it
        run = processes.serves(processes.command(pid))
        if not fit(run):
            run = ""
        if said["user"] == user and said["run"] and run in ("", said["run"]):
            return said
        since = processes.started(pid)
        return {"user": user, "run": run, "since": since, "planning": bool(run), "pid": 0 if run else pid}
    return said


def _said(uuid: str) -> "Dict[str, Any]":
    # One that has not signed yet has only just taken it.
    about = {"user": "", "run": "", "since": 0.0, "planning": True, "pid": 0}  # type: Dict[str, Any]
    for text in lease_files.read(uuid):
        try:
            said = wire.loads(text.decode("utf-8", "replace"))
            fits = fit(said["user"]) and fit(said["run"]) and is_time(said["since"])
            if fits and isinstance(said["planning"], bool):
                about.update((each, said[each]) for each in ("user", "run", "since", "planning"))
                break
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
    return about


def fit(text: "Any") -> bool:
    """Whether that can be a name: any user may write anything into such a file."""
    return isinstance(text, str) and len(text) <= TEXT_LIMIT and text.isprintable()


def is_time(value: "Any") -> bool:
    """Whether that can be a time in epoch seconds; NaN cannot."""
    return isinstance(value, float) and 0 <= value < 1e10
