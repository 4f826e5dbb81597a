"""What tasks need on a host and what takes long to get ready: a virtual environment, the image of a container."""

from tflaunch.agent.files.rundir import HostError
from tflaunch.agent.tasks import container
from tflaunch.agent.tasks.environment import Maker, activation, hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from tflaunch.agent.files.rundir import RunDirectory

PREPARED = "prepared.json"


class Preparing:
    """Carries out one message `prepare`."""

    def __init__(self, directory: "RunDirectory", wanted: "Dict[str, Any]") -> None:
        self._directory = directory
        self._wanted = wanted
        self._lock = None  # type: Optional[int]  # on the environment, held as long as the agent lives
        self.setup = []  # type: List[str]  # more lines of setup for every task

    def work(self) -> "Dict[str, Any]":
        """Make what is wanted; runs in a process of its own.  Raises HostError.

        Returns {made, engine, path}: whether anything was made just now, the engine of containers if images are wanted
        (container.find), and where the environment is if one is wanted.
        """
        made = {}  # type: Dict[str, Any]
        if self._wanted["images"]:
            engine = container.find(self._wanted["engine"])
            made["made"] = True in [container.pull(engine, image) for image in self._wanted["images"]]
            made["engine"] = engine
        if self._wanted["requirements"]:
            made.update(Maker(self._directory.parent, self._directory.path + "/prepare", self._wanted).make())
        return made

    def use(self, made: "Dict[str, Any]") -> None:
        """Have the tasks use what `work` has returned.

        Raises HostError, OSError; BlockingIOError when another run is just making the environment anew: then call
        `work` again, which waits for that.
        """
        if made.get("engine"):
            self._directory.write(container.RECORD, made["engine"])
        if made.get("path"):
            self._lock = hold(made["path"], wait=False)
            self.setup = [activation(made["path"])]
            if self._lock is None:
                raise HostError("the environment was removed as soon as it was made", "start the run again")
