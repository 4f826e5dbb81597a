"""Work that the agent has a child do."""

from __future__ import annotations

import subprocess
import sys


def test_what_is_done_aside_ends_once() -> None:
    """Of a task's orphans, which the agent reaps, one may have the number that it had."""
    script = (
        "import os\n"
        "from tflaunch.agent.host.aside import Aside\n"
        "work = Aside(lambda: None)\n"
        "os.waitpid(work.pid, 0)\n"
        "print(work.reaped(1), work.alive, work.reaped(work.pid), work.alive, work.reaped(work.pid))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "False", "False"], done.stderr


def test_what_is_done_aside_can_be_stopped_as_soon_as_it_begins() -> None:
    script = (
        "import os, signal, time\n"
        "from tflaunch.agent.host.aside import Aside\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"  # as the agent has it
        "for _ in range(5):\n"
        "    work = Aside(lambda: time.sleep(3))\n"
        "    work.stop()\n"
        "    print(os.WEXITSTATUS(os.waitpid(work.pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"] * 5, done.stderr
