"""How the run uses its GPUs: `gpus` and `fabrics` of a `looked` message.

    gpus         UUID -> use (percent), power_w, limit_w: null where the GPU does not say, as MIG instances do not;
                 memory_bytes; pids of the processes on it, null where a container or the driver hides them; error
    gpus_age_s   how long ago NVML was asked
    fabrics      [bytes sent, bytes received] by all InfiniBand ports of this host, null without one

A child process asks NVML: a call into a sick driver may take long, or never come back.
"""

import os
import time

from tflaunch.agent.files.journal import note
from tflaunch.agent.guard import close_all_but
from tflaunch.agent.net.channel import write_all
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

ANSWER_S = 15.0  # how long the child may take
LEAST_S = 1.0  # between two children
ANSWER_BYTES = 512 * 1024
MOST = 2**56  # what a port can have counted
INFINIBAND = "/sys/class/infiniband"


class GpuUse:
    """What NVML last said of these GPUs."""

    def __init__(self, uuids: "List[str]") -> None:
        self._uuids = uuids
        self._child = 0  # 0: none
        self._pipe = -1
        self._answer = b""
        self._asked_at = -1e9
        self._found = {}  # type: Dict[str, Dict[str, Any]]
        self._found_at = 0.0

    def look(self, every_s: float) -> "Dict[str, Any]":
        """The fields of `looked`; ask NVML anew if that was `every_s` ago: a later look has the answer."""
        now = time.monotonic()
        self._read(now)
        if self._uuids and not self._child and now - self._asked_at >= max(LEAST_S, every_s):
            self._ask(now)
        fields = {"fabrics": fabric_bytes()}  # type: Dict[str, Any]
        if self._found:
            fields.update(gpus=self._found, gpus_age_s=round(now - self._found_at, 1))
        return fields

    def _ask(self, now: float) -> None:
        self._asked_at, self._answer = now, b""
        try:
            self._pipe, pipe = os.pipe()
        except OSError as error:  # no descriptor is left
            note("GPUs: %s" % error)
            return
        os.set_blocking(self._pipe, False)
        try:
            self._child = os.fork()
        except OSError as error:  # no process more is allowed
            note("GPUs: %s" % error)
            os.close(pipe)
            self._close()
            return
        if self._child == 0:
            self._probe(pipe)  # does not come back
        os.close(pipe)

    def _read(self, now: float) -> None:
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 65536)
            except BlockingIOError:
                if now - self._asked_at > ANSWER_S:
                    self._give_up()
                return
            self._answer += data
            if len(self._answer) > ANSWER_BYTES:
                self._give_up()
            elif not data:
                self._close()
                try:
                    self._found, self._found_at = wire.loads(self._answer.decode("ascii")), self._asked_at
                except ValueError:
                    pass  # it has ended before

    def _give_up(self) -> None:
        self._close()
        self.stop()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def stop(self) -> None:
        """Have the child end, if it lives."""
        if self._child:  # not reaped yet: the pid is its own
            os.kill(self._child, signal.SIGKILL)

    def reaped(self, pid: int) -> None:
        """A child process has ended, maybe this one."""
        if pid == self._child:
            self._child = 0

    def _probe(self, pipe: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            close_all_but(pipe)  # a sick driver may keep this process for ever, but not leases and ports
            from tflaunch.gpu_probe import Look

            write_all(pipe, wire.dumps(Look().loads(self._uuids)).encode("ascii"))
        except BaseException:  # the last line of defence: agent.log must have this
            import traceback

            traceback.print_exc()
        finally:
            os._exit(0)


def fabric_bytes(place: str = INFINIBAND) -> "Optional[List[int]]":
    """[bytes sent, bytes received] by all ports of the InfiniBand devices in `place`, as far as they count them."""
    found = None  # type: Optional[List[int]]
    try:
        devices = sorted(os.listdir(place))
    except OSError:
        return None
    for device in devices:
        ports = os.path.join(place, device, "ports")
        try:
            numbers = sorted(os.listdir(ports))
        except OSError:
            continue
        for number in numbers:
            try:
                words = []
                for name in ("port_xmit_data", "port_rcv_data"):
                    with open(os.path.join(ports, number, "counters", name)) as counter:
                        words.append(int(counter.read()))
            except (OSError, ValueError):
                continue
            if max(words) > MOST:  # a sick adapter answers with ones
                continue
            sent, received = found or (0, 0)
            found = [sent + 4 * words[0], received + 4 * words[1]]  # they count words of four bytes
    return found
