"""Agents among themselves: who does not know the run's secret gets nowhere, and nobody in between changes a byte."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator

import pytest

from tflaunch.agent.net import peers
from tflaunch.agent.net.peers import HELLO, MAC, NONCE, Door, Handshake, PeerError, SealedStream

SECRET = os.urandom(32)
BIG = os.urandom(3 * peers.RECORD_LIMIT + 17)
_open: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


@pytest.fixture
def port() -> Iterator[int]:
    """A port that this process holds, as an agent does."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@pytest.fixture
def door(port: int) -> Iterator[Door]:
    door = Door("127.0.0.1", port, SECRET)
    yield door
    door.listener.close()


def dialled(door: Door) -> tuple[socket.socket, socket.socket]:
    """A connection: the end that dials, and the one that the door has taken in."""
    client = connection(door.listener.getsockname())
    readable(door.listener)
    accepted = door.listener.accept()[0]
    assert door.welcome(accepted)
    _open.append(accepted)
    return client, accepted


def connection(address: tuple[str, int]) -> socket.socket:
    """A connection to that address; it is closed with the test."""
    _open.append(socket.create_connection(address))
    return _open[-1]


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection; they are closed with the test."""
    ends = socket.socketpair()
    _open.extend(ends)
    return ends


def readable(*sockets: socket.socket) -> None:
    assert select.select(sockets, [], [], 10.0)[0]


def met(door: Door) -> tuple[SealedStream, SealedStream]:
    """Both ends of a connection whose ends have proved themselves: who dialled, who answered."""
    client, accepted = dialled(door)
    handshake = Handshake(client, SECRET, answers=False)
    mine = theirs = None
    while mine is None or theirs is None:
        if mine is None and select.select([client], [], [], 0.01)[0]:
            mine = handshake.step()
        if theirs is None and select.select([accepted], [], [], 0.01)[0]:
            theirs = door.proved(accepted)
    return mine, theirs


def everything(stream: SealedStream, size: int, sender: SealedStream | None = None) -> bytes:
    """`size` bytes from a stream; the sender may have more to send on."""
    found = b""
    while len(found) < size:
        if sender is not None:
            sender.flush()
        with contextlib.suppress(BlockingIOError):
            data = stream.recv(65536)
            assert data
            found += data
    return found


def test_both_ways_any_size(door: Door) -> None:
    client, server = met(door)
    for sender, receiver in ((client, server), (server, client)):
        assert sender.send(b"x") == 1
        assert everything(receiver, 1) == b"x"
        left, found = bytearray(BIG), b""
        while left or sender.pending:
            with contextlib.suppress(BlockingIOError):
                del left[: sender.send(left)]
            with contextlib.suppress(BlockingIOError):
                found += receiver.recv(65536)
        found += everything(receiver, len(BIG) - len(found))
        assert found == BIG


@pytest.mark.parametrize("wrong", ["client", "server"])
def test_who_does_not_know_the_secret_gets_nowhere(port: int, wrong: str) -> None:
    door = Door("127.0.0.1", port, SECRET if wrong == "client" else os.urandom(32))
    try:
        client, accepted = dialled(door)
        handshake = Handshake(client, os.urandom(32) if wrong == "client" else SECRET, answers=False)
        readable(client)
        assert handshake.step() is None
        readable(accepted)
        with pytest.raises(PeerError, match="does not know the secret"):
            door.proved(accepted)
        readable(client)
        assert client.recv(1) == b""  # it is told nothing more
    finally:
        door.listener.close()


def test_a_server_that_only_pretends_is_not_believed() -> None:
    client, pretender = pair()
    handshake = Handshake(client, SECRET, answers=False)
    pretender.sendall(HELLO + bytes(NONCE))
    readable(client)
    assert handshake.step() is None
    assert len(pretender.recv(4096)) == NONCE + MAC
    pretender.sendall(bytes(MAC))
    readable(client)
    with pytest.raises(PeerError, match="does not know the secret"):
        handshake.step()


def test_the_servers_own_proof_sent_back_is_none(door: Door) -> None:
    """Who knows nothing and repeats what it hears: the two directions prove different things."""
    client, accepted = dialled(door)
    readable(client)
    theirs = client.recv(4096)[len(HELLO) :]
    client.sendall(theirs + peers._mac(os.urandom(32), theirs))
    readable(accepted)
    with pytest.raises(PeerError):
        door.proved(accepted)


def test_a_proof_of_another_connection_is_none(door: Door) -> None:
    client, accepted = dialled(door)
    Handshake(client, SECRET, answers=False).step()
    readable(accepted)
    heard = accepted.recv(4096, socket.MSG_PEEK)
    assert door.proved(accepted) is not None
    again, accepted = dialled(door)
    again.sendall(heard)
    readable(accepted)
    with pytest.raises(PeerError, match="does not know the secret"):
        door.proved(accepted)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 8, b"\0" * 512])
def test_garbage_at_the_door(door: Door, garbage: bytes) -> None:
    client, accepted = dialled(door)
    client.sendall(garbage)
    readable(accepted)
    with pytest.raises(PeerError):
        door.proved(accepted)
    assert not door.late(1e12)  # it is not waited for any more


def test_something_else_answers() -> None:
    client, other = pair()
    handshake = Handshake(client, SECRET, answers=False)
    other.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    readable(client)
    with pytest.raises(PeerError, match=r"something else answers there: b'SSH-2\.0"):
        handshake.step()


@pytest.mark.parametrize("sent", [b"", HELLO[:4]])
def test_one_that_hangs_up(sent: bytes) -> None:
    client, other = pair()
    handshake = Handshake(client, SECRET, answers=False)
    other.sendall(sent)
    if sent:
        assert handshake.step() is None
    other.close()
    with pytest.raises(PeerError, match="hung up"):
        handshake.step()


def raw(stream: SealedStream, *pieces: bytes) -> list[bytes]:
    """These records as they go over the line; nothing is sent."""
    records = []
    for piece in pieces:
        mac = peers._mac(stream._keys[0], stream._next(0), piece)
        records.append(struct.pack("!I", len(piece)) + mac + piece)
    return records


def line(stream: SealedStream) -> socket.socket:
    """What a stream is sent over, for who is in between."""
    return stream._socket


@pytest.mark.parametrize("what", ["flipped", "replayed", "left out", "swapped", "its own, sent back"])
def test_what_is_changed_on_the_way_is_noticed(door: Door, what: str) -> None:
    client, server = met(door)
    first, second = raw(client, b"one", b"two")
    if what == "flipped":
        data = first[:-1] + bytes([first[-1] ^ 1])
    elif what == "replayed":
        data = first + first
    elif what == "left out":
        data = second
    elif what == "swapped":
        data = second + first
    else:
        server.send(b"one")
        readable(line(client))
        data = line(client).recv(4096)
    line(client).sendall(data)
    readable(line(server))
    with pytest.raises(OSError, match="no agent of this run has sent"):
        while True:
            assert server.recv(65536) in (b"one",)


def test_a_record_in_pieces_is_one_record(door: Door) -> None:
    client, server = met(door)
    [record] = raw(client, b"one")
    for byte in record[:-1]:
        line(client).sendall(bytes([byte]))
        readable(line(server))
        with pytest.raises(BlockingIOError):
            server.recv(65536)
    line(client).sendall(record[-1:])
    readable(line(server))
    assert server.recv(65536) == b"one"


def test_a_record_that_is_cut_is_never_seen(door: Door) -> None:
    client, server = met(door)
    line(client).sendall(raw(client, b"one")[0][:-1])
    line(client).close()
    readable(line(server))
    with pytest.raises(BlockingIOError):
        server.recv(65536)
    readable(line(server))
    assert server.recv(65536) == b""


def test_a_record_larger_than_any_is_not_waited_for(door: Door) -> None:
    client, server = met(door)
    line(client).sendall(struct.pack("!I", peers.RECORD_LIMIT + 1))
    readable(line(server))
    with pytest.raises(OSError, match="not an agent's"):
        server.recv(65536)


def test_what_comes_right_behind_the_proof_is_not_lost(door: Door) -> None:
    client, accepted = dialled(door)
    handshake = Handshake(client, SECRET, answers=False)
    readable(client)
    handshake.step()
    readable(accepted)
    server = door.proved(accepted)
    assert server is not None
    server.send(b"hello")
    line(server).close()  # so that all has arrived
    mine = None
    while mine is None:
        readable(client)
        mine = handshake.step()
    assert mine.opened() == b"hello"


def test_only_so_many_may_wait_and_only_so_long(door: Door) -> None:
    waiting = [dialled(door) for _ in range(peers.WAITING_LIMIT)]
    began = max(each.since for each in door._waiting.values())
    assert door.late(began) == []
    _, one_more = dialled(door)
    oldest = waiting[0][1]
    assert door.late(began) == [oldest], "it makes room"
    late = door.late(began + peers.PROOF_S + 60.0)
    assert sorted(each.fileno() for each in late) == sorted(
        each.fileno() for each in (one_more, *(accepted for _, accepted in waiting))
    )
    for each in late:
        door.drop(each)
    for client, _ in waiting:
        assert client.recv(4096).startswith(HELLO)
        assert client.recv(1) == b""
    met(door)  # there is room again


def test_a_port_that_somebody_listens_on_is_refused(port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            Door("127.0.0.1", other.getsockname()[1], SECRET)


def test_an_address_that_is_another_machines_means_all_of_this_one(port: int) -> None:
    door = Door("192.0.2.1", port, SECRET)  # of TEST-NET-1: no host has it
    try:
        connection(("127.0.0.1", port))
        readable(door.listener)
        accepted = door.listener.accept()[0]
        assert door.welcome(accepted)
        accepted.close()
    finally:
        door.listener.close()
