"""What the agent, and what it puts on a host, read of a process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tflaunch.agent.host import processes
from tflaunch.in_task import preloader
from tflaunch.slot import holder

CUT = "обучение_модели.py".encode()[:15]  # as Linux names its process: it ends within a letter


@pytest.fixture
def cut_name() -> Iterator[None]:
    """This process has that name meanwhile."""
    comm = Path("/proc/self/comm")
    before = comm.read_bytes().strip()
    comm.write_bytes(CUT)
    yield
    comm.write_bytes(before)


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


@pytest.mark.usefixtures("cut_name")
def test_a_name_that_is_cut_within_a_letter_hides_nothing() -> None:
    test_a_signal_mask_is_read_right()
    assert int(processes.status(os.getpid(), b"NSpid")) > 0
    assert holder.parent_of(str(os.getpid())) == os.getppid()


def test_a_field_that_the_kernel_lacks() -> None:
    with pytest.raises(IndexError):
        processes.status(os.getpid(), b"NoSuchField")


def test_nor_does_that_of_a_thread_end_a_preloader() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(CUT)
        ready.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        ready.wait()
        assert CUT.decode("utf-8", "replace") in preloader.threads()
    finally:
        done.set()
        thread.join()
