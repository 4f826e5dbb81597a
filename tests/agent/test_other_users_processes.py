"""Another user of a host, really another uid, whose processes show of themselves what he likes, in any length."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Host
from tests.support.leases import busy, look
from tests.support.other_users import BECOME, WAIT, nobody
from tflaunch.agent import processes
from tflaunch.agent.foreign import OTHERS_BYTES

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
REGION = 1 << 30
HEAP = 200 << 20  # an agent has some 20 MiB

# Has the kernel take a region of zeros for its command line and environment, as each user may, and locks a file.
ENDLESS = (
    BECOME
    + f"""\
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
begin = libc.mmap(None, {REGION}, 3, 0x4022, -1, 0)
fields = [int(each) for each in open("/proc/self/stat").read().rpartition(")")[2].split()[1:]]
code, data = fields[22:24], fields[41:43]
new = (ctypes.c_uint64 * 13)(
    *code, *data, fields[43], libc.sbrk(0), fields[24], *2 * (begin, begin + {REGION}), 0, 0xFFFFFFFF << 32
)
if libc.prctl(35, 14, new, ctypes.sizeof(new), 0):  # PR_SET_MM, PR_SET_MM_MAP
    print("refused", flush=True)
    sys.exit()
if len(sys.argv) > 1:
    file = open(sys.argv[1])
    fcntl.flock(file, fcntl.LOCK_EX)
"""
    + WAIT
)


# The same, of a program of one's own: a trainer may be anybody's.
OWN = ENDLESS.replace(BECOME, BECOME.splitlines()[0] + "\n")


def heap(pid: int) -> int:
    """The most memory that the agent or visit has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) * 1024


def test_no_visit_reads_on_and_on(gpus: Host) -> None:
    with nobody(ENDLESS) as his:
        with Path(f"/proc/{his.pid}/cmdline").open("rb") as shown:
            assert len(shown.read(2 * OTHERS_BYTES)) == 2 * OTHERS_BYTES
        visit = gpus.open("visit", run="", host="")
        pid = visit.wait("hello")["pid"]
        assert visit.ask("list", all=True, answer="runs")["runs"] == []
        assert visit.ask("measure", answer="usage")["runs"] == []
        assert not visit.ask("finish", run=gpus.run, grace_s=0.0, answer="finished")["found"]
        assert heap(pid) < HEAP


def test_no_agent_reads_on_and_on(gpus: Host, leases: Path) -> None:
    (leases / "GPU-a").touch()
    (leases / "GPU-a").chmod(0o666)
    with nobody(ENDLESS, leases / "GPU-a") as his, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        channel = gpus.start()
        agent = json.loads((gpus.directory / "agent.json").read_text())["pid"]
        assert f"leased to pid {his.pid} of nobody" in busy(look(channel, lease=True))[0]
        found = channel.ask("probe", lease=False, ports=[port, port], count=1, answer="facts")
        assert found["ports_taken"][0].startswith(f"{port}: pid {os.getpid()} (")
        assert heap(agent) < HEAP


def test_what_another_user_shows_is_read_as_far_as_its_limit() -> None:
    with nobody(ENDLESS) as his:
        for read in (processes.command, processes.environment):
            assert len(read(his.pid)) <= OTHERS_BYTES + 1


def test_what_a_program_of_ones_own_shows_is_read_as_far_as_a_program_can_be_given(gpus: Host) -> None:
    with nobody(OWN) as mine:
        assert len(b"\0".join(processes.environment(mine.pid))) < 16 << 20
        visit = gpus.open("visit", run="", host="")
        pid = visit.wait("hello")["pid"]
        assert not visit.ask("finish", run=gpus.run, grace_s=0.0, answer="finished")["found"]
        assert heap(pid) < HEAP
