"""The `tflaunch` command, and `python -m tflaunch`."""

import atexit
import gc
import os
import signal
from typing import NoReturn

# While the modules load, Ctrl-C ends it as it ends any command: without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)
# A sixth of the time that the modules take to load went into looking for garbage among them.
gc.set_threshold(100_000)

from tflaunch.cli import main  # noqa: E402


def command() -> NoReturn:
    """Run it, and leave: to take all modules down in order would take longer than a small run."""
    code = main()
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    command()
