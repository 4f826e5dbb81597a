"""The `tflaunch` command, and `python -m tflaunch`."""

# What `signal` is made of: Python has it loaded already, and to load the rest of that takes 4 ms.
import _signal  # type: ignore[import-not-found]  # typeshed leaves it out
import os


def _leave(number: int, _: object) -> None:
    """End as a shell tells it, without a word: there is nothing to clean up yet, or any more."""
    os._exit(128 + number)


# From the first line on: what follows takes a fifth of a second to load.
_signal.signal(_signal.SIGINT, _leave)
_signal.signal(_signal.SIGTERM, _leave)

import atexit  # noqa: E402
import gc  # noqa: E402
from typing import NoReturn  # noqa: E402

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
