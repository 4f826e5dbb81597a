"""What tasks need on a host and what takes long to get ready: a virtual environment, the image of a container."""

import os

from tflaunch.agent.host import container
from tflaunch.agent.host.rundir import CONTAINERS, HostError, inner
from tflaunch.agent.tasks.environment import Maker, activation, hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from tflaunch.agent.host.rundir import RunDirectory

PREPARED = "prepared.json"
LOOK_S = 0.5  # how often to look for a new line of the installer
END = 4096  # bytes of its log that are read for that
LINE = 200  # characters of a line that are told


class Preparing:
    """Carries out one message `prepare`."""

    def __init__(self, directory: "RunDirectory", wanted: "Dict[str, Any]") -> None:
        self._directory = directory
        self._wanted = wanted
        self._lock = None  # type: Optional[int]  # on the environment, held as long as the agent lives
        self.setup = []  # type: List[str]  # more lines of setup for every task
        self._scratch = directory.path + "/prepare"
        self._log = os.path.join(self._scratch, "environment.log")
        self._look_at = 0.0
        self._size = 0

    def work(self) -> "Dict[str, Any]":
        """Make what is wanted; runs in a process of its own.  Raises HostError.

        Returns {made, engine, path}: whether anything was made just now, the engine of containers if images are wanted
        (container.find), and where the environment is if one is wanted.
        """
        made = {}  # type: Dict[str, Any]
        if self._wanted["images"]:
            inner(self._scratch)
            engine = container.find(self._wanted["engine"])
            images = self._wanted["images"]
            made["made"] = True in [container.pull(engine, image, self._log) for image in images]
            made["engine"] = engine
        if self._wanted["requirements"]:
            made.update(Maker(self._directory.parent, self._scratch, self._wanted).make())
        return made

    def last_line(self, now: float) -> str:
        """The last line that the installer has written since the last call, "" for none; looks every LOOK_S."""
        if now < self._look_at:
            return ""
        self._look_at = now + LOOK_S
        try:
            log = os.open(self._log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            size = os.fstat(log).st_size
            if size == self._size:
                return ""
            self._size = size
            text = os.pread(log, END, max(0, size - END)).decode("utf-8", "replace")
        finally:
            os.close(log)
        lines = [line.strip() for line in text.splitlines()]  # a return ends a line, too
        return next((line[:LINE] for line in reversed(lines) if line), "")

    def use(self, made: "Dict[str, Any]") -> None:
        """Have the tasks use what `work` has returned.

        Raises HostError, OSError; BlockingIOError when another run is just making the environment anew: then call
        `work` again, which waits for that.
        """
        if made.get("engine"):
            self._directory.write(CONTAINERS, made["engine"])
        if made.get("path"):
            self._lock = hold(made["path"], wait=False)
            self.setup = [activation(made["path"])]
            if self._lock is None:
                raise HostError("the environment was removed as soon as it was made", "start the run again")
