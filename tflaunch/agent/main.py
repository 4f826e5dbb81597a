"""Serves the channel that sshd gave to this process, as the agent of a new run or as a visit."""

import gc
import os
import sys
import time

from tflaunch.agent import slot
from tflaunch.agent.host.rundir import (
    HostError,
    RunDirectory,
    explain,
    is_there,
    parent_directory,
)
from tflaunch.agent.net.channel import Channel, hold, own_channel, write_all
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from tflaunch.agent.host.guard import Beats

LEAVING_S = 3.0  # how long to wait until an earlier agent of the same run, now planned again, has left


def main(arguments: "List[str]", early: bytes = b"") -> None:
    """Serve the channel on descriptors 0 and 1; `early` holds the bytes that were already read from it.

    The `arguments` are verb, run, host and the configured `run_dir`.  Verb `start`: become the agent of this run on
    this host.  Verb `visit`: answer messages about any run of this user, living or not.
    """
    slot.enter(os.environ)
    verb, run, host, configured = arguments
    channel_in, channel_out = own_channel()
    try:
        if not os.path.exists("/proc/self/stat"):
            raise HostError("this host has no /proc", "tflaunch runs tasks on Linux only")
        for descriptor in os.listdir("/proc/self/fd"):  # tasks must not inherit what this process has open
            try:
                os.set_inheritable(int(descriptor), int(descriptor) <= 2)
            except OSError:
                pass  # the descriptor of the listing itself
        parent = parent_directory(configured)
        there = is_there(parent)
        if verb == "visit":
            from tflaunch.agent.visit import Visit

            gc.freeze()
            gc.enable()
            Visit(parent, channel_in, channel_out).run(early)
            return
        directory = RunDirectory(parent, run, host)
        deadline = time.monotonic() + LEAVING_S
        connection = directory.connect() if there else None
        while connection is not None and time.monotonic() < deadline:
            connection.close()
            time.sleep(0.1)
            connection = directory.connect()
        if connection is not None:
            raise HostError("an agent of run %s lives on this host already" % run, "tflaunch stop %s" % run)
        holder = _start(directory, channel_in, channel_out, early)
    except HostError as error:
        write_all(channel_out, wire.encode("failed", reason=error.reason, hint=error.hint))
        return
    hold(holder)


def _start(directory: RunDirectory, channel_in: int, channel_out: int, early: bytes) -> socket.socket:
    from tflaunch.agent.gpus import driver_child
    from tflaunch.agent.host.guard import under_guard

    directory.create()
    ours, theirs = socket.socketpair()

    def agent(beats: "Beats") -> None:
        driver_child.begin_early()
        from tflaunch.agent.daemon import Daemon

        ours.close()
        daemon = Daemon(directory, Channel(channel_in, channel_out, theirs), early, beats)
        begun.append(daemon)
        gc.freeze()  # no collection looks at what is loaded by now, and so has its pages copied
        gc.enable()
        daemon.run()

    def failed(error: OSError) -> None:
        if not begun:  # otherwise the daemon may have written part of a frame to the channel
            known = explain(error, directory.path)
            write_all(channel_out, wire.encode("failed", reason=known.reason, hint=known.hint))

    begun = []  # type: List[object]
    sys.stdout.flush()
    under_guard(directory, agent, failed)
    theirs.close()
    return ours
