"""Has the slot holder run a command on the stdio of this process, and ends as the command does.

    python3 -c TEXT SOCKET COMMAND

The command gets this process's own descriptors, so not a byte is copied on the way; it outlives this process.
"""

import json
import os
import socket
import struct
import sys

OVER = 75  # the slot is over: another try there has no use


def dial(path: str) -> socket.socket:
    """A connection to the slot holder, whatever the length of the path to its socket; raises OSError."""
    endpoint = socket.socket(socket.AF_UNIX)
    place = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        endpoint.connect("/proc/self/fd/%d/%s" % (place, os.path.basename(path)))
    finally:
        os.close(place)
    uid = struct.unpack("3i", endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    if uid != os.geteuid():
        raise PermissionError(0, "uid %d listens there" % uid)
    return endpoint


def main(path: str, command: str) -> None:
    """Pass on 0, 1 and 2, and end with the exit status of the command."""
    try:
        holder = dial(path)
        line = json.dumps({"start": command}).encode("ascii") + b"\n"
        sent = holder.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))])
        holder.sendall(line[sent:])
    except OSError as error:
        print("slot: the slot holder does not answer: %s" % error.strerror, file=sys.stderr)
        sys.exit(OVER)
    # The stream to the command ends when the command closes it, not with this process.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    said = b""
    while not said.endswith(b"\n"):
        try:
            data = holder.recv(65536)
        except OSError:
            data = b""
        if not data:
            print("slot: the slot holder has ended", file=sys.stderr)
            sys.exit(OVER)
        said += data
    answer = json.loads(said.decode("utf-8"))
    if "why" in answer:
        print("slot: %s" % answer["why"], file=sys.stderr)
    sys.exit(answer["ended"])


if __name__ == "__main__":
    main(*sys.argv[1:3])
