"""Packets that are lost in the middle of a run: on the bed, with programs that talk over TCP as TensorFlow does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bed import Bed
from tests.support.far_impatient import Impatient
from tests.support.patience import until

# Each worker sends to the ps what it has, and gets as much back; it waits 20 s at most where the environment says so.
TRAINER = """
    import json, os, socket, threading, time
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    port = int(config["cluster"][job][index].rpartition(":")[2])
    server = socket.create_server(("", port), reuse_port=True)

    def serve(caller):
        while data := caller.recv(65536):
            caller.sendall(data)

    def accept():
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    if job == "ps":
        threading.Event().wait()
    host, _, port = config["cluster"]["ps"][0].rpartition(":")
    while True:
        try:
            caller = socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.2)
    if "GIVES_UP" in os.environ:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20000)
    for step in range(10**9):
        caller.sendall(bytes(20000))
        left = 20000
        while left:
            left -= len(caller.recv(left))
        if step % 100 == 0:
            print("step", step, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def impatient(tmp_path: Path, bed: Bed) -> Iterator[Impatient]:
    made = Impatient(tmp_path, bed)
    yield made
    made.close()


def words(far: Impatient, bed: Bed, *more: str) -> tuple[str | Path, ...]:
    bed.up(2)
    hosts = far.hostfile(bed.hosts, ports=[22000, 22009], python=sys.executable)
    where = ("--ps=1", "--workers=1", "--ps-hosts=host1", "--worker-hosts=host2", "--grace=2")
    return ("run", hosts, far.script(TRAINER), *where, *more)


def test_a_way_that_loses_large_packets_from_now_on(bed: Bed, impatient: Impatient) -> None:
    with impatient.start(*words(impatient, bed)) as running:
        until(lambda: "step 100" in running.out, "the training")
        bed.narrow(*bed.hosts, 1400)
        until(lambda: "have been lost" in running.err, "the sentence", 120.0)
        bed.heal()
        until(lambda: "arrive again, after" in running.err, "the end", 120.0)
        running.interrupt()
        running.done().ran(130)
    [said] = [line for line in running.err.splitlines() if "have been lost" in line]
    assert said.startswith("! packets between ")
    assert "worker/0 on host2" in said
    assert "ps/0 on host1" in said
    assert (
        "a new connection opens, but packets of more than 1400 bytes get lost; `ping -M do -s 1372 host"
        in said
    )


def test_a_cut_link_is_named_and_so_it_is_when_a_task_fails_for_it(bed: Bed, impatient: Impatient) -> None:
    with impatient.start(*words(impatient, bed, "--env=GIVES_UP=1")) as running:
        until(lambda: "step 100" in running.out, "the training")
        bed.cut(*bed.hosts)
        done = running.done(120.0)
    assert done.code == 1
    assert "a new connection is silently dropped, too; `ping host" in done.sentences
    assert "! worker/0 on host2 may have failed for this: packets between " in done.err
    assert done.err.index("have been lost for") < done.err.index("may have failed for this")
