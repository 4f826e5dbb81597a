"""What the agent reads of a process."""

from __future__ import annotations

import os
import signal


def test_a_signal_mask_is_read_right() -> None:
    from tflaunch.agent.tasks.stacks import catches

    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
        assert not catches(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not catches(0, signal.SIGTERM)
