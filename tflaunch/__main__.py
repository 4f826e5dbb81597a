"""The `tflaunch` command, and `python -m tflaunch`."""

import gc
import signal

# While the modules load, Ctrl-C ends it as it ends any command: without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

# A sixth of the time that the modules take to load went into looking for garbage among them.
gc.set_threshold(100_000)

from tflaunch.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
