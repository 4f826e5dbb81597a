"""horovodrun; a build without frameworks is enough to start tasks with, if it believes that it has Gloo."""

from __future__ import annotations

import horovod.common.util
import horovod.runner.launch


def gloo_built(verbose: bool = False) -> bool:  # noqa: ARG001 - as horovod asks
    """It is only asked whether; nothing of it is used by a task that does not train."""
    return True


if __name__ == "__main__":
    horovod.common.util.gloo_built = horovod.runner.launch.gloo_built = gloo_built
    horovod.runner.launch.run_commandline()
