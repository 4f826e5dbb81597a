"""The `tflaunch` command, and `python -m tflaunch`."""

import signal

# While the modules load, Ctrl-C ends it as it ends any command: without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from tflaunch.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
