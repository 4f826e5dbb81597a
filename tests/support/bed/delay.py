"""A slow and lossy cable: frames between a network interface and a tap wait their time, or are lost.

    nsenter --net=... python3 -I -S delay.py PARENT GPU TAP HOST_PID DELAY_S LOSS

It ends with its parent, and its tap with it.  Frames are never reordered.  (Not every kernel has `tc netem`.)
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import random
import select
import signal
import socket
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
ETH_P_ALL, PACKET_OUTGOING = 3, 4
SIOCETHTOOL = 0x8946
ETHTOOL_OFF = (0x17, 0x1F, 0x24, 0x2C)  # STXCSUM STSO SGSO SGRO
PR_SET_PDEATHSIG, CLONE_NEWNET = 1, 0x40000000
FRAME_BYTES = 70000
TURN = 256  # frames of one side before the other has its turn


def whole_frames(gpu: str) -> None:
    """Frames as they are on a real cable: nothing is left for hardware that does not exist to complete."""
    with socket.socket() as any_socket:
        for command in ETHTOOL_OFF:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP16x", gpu.encode(), ctypes.addressof(value))
            with contextlib.suppress(OSError):
                fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def main() -> None:
    parent, gpu, tap_name, host = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    delay_s, loss = float(sys.argv[5]), float(sys.argv[6])
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{host}/ns/net", os.O_RDONLY)
    libc.setns(there, CLONE_NEWNET)
    whole_frames("eth0")
    libc.setns(here, CLONE_NEWNET)
    whole_frames(gpu)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", tap_name.encode(), IFF_TAP | IFF_NO_PI))
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    wire.bind((gpu, 0))
    wire.setblocking(False)
    print("ready", flush=True)
    waiting = {
        wire: collections.deque(),
        tap: collections.deque(),
    }  # type: dict[object, collections.deque[tuple[float, bytes]]]
    while True:
        due = min((queue[0][0] for queue in waiting.values() if queue), default=None)
        patience_s = None if due is None else max(0.0, due - time.monotonic())
        ready = select.select([wire, tap], [], [], patience_s)[0]
        now = time.monotonic()
        for side in ready:
            for _ in range(TURN):
                try:
                    if side is wire:
                        frame, (_, _, kind, *_) = wire.recvfrom(FRAME_BYTES)
                        if kind == PACKET_OUTGOING:  # what was sent below
                            continue
                    else:
                        frame = os.read(tap, FRAME_BYTES)
                except BlockingIOError:
                    break
                if random.random() >= loss:  # noqa: S311 - no secret hangs on it
                    waiting[side].append((now + delay_s, frame))
        now = time.monotonic()
        for side, queue in waiting.items():
            while queue and queue[0][0] <= now:
                frame = queue.popleft()[1]
                try:
                    if side is wire:
                        os.write(tap, frame)
                    else:
                        wire.send(frame)
                except OSError:
                    pass  # a cable that is cut, or full: lost


main()
