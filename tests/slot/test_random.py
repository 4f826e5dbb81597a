"""Nonsense at both doors leaves the slot holder as it was."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from pathlib import Path

from tests.slot.conftest import Hold
from tests.slot.test_doors import resident
from tests.support.agent_over_pipes import descriptors
from tests.support.patience import PATIENCE_S, until
from tests.support.slots import CERTIFICATE, TOKEN, Held
from tests.support.wires import everything
from tflaunch.engines.door import dial
from tflaunch.slot import relay

WORDS = ["token", "start", "call", "words", "leave", "look", "agent", "over", TOKEN[:-1], "", "\ud800", "\0"]


def value(chance: random.Random, depth: int = 0) -> object:
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {chance.choice(WORDS): value(chance, depth + 1) for _ in range(chance.randrange(5))}
    return [None, True, chance.random(), chance.getrandbits(80), chance.choice(WORDS), "x" * 300][kind]


def line(chance: random.Random) -> bytes:
    """Random bytes; JSON that means nothing; the right words with one thing wrong."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randbytes(chance.randrange(2000))
    if kind == 1:
        return b"[" * chance.randrange(100_000) + b"\n"
    if kind == 2:
        return b"9" * chance.randrange(50_000) + b"\n"
    said = value(chance) if kind == 3 else {chance.choice(WORDS): value(chance), "token": value(chance)}
    text = json.dumps(said).encode() + b"\n"
    return text if chance.randrange(2) else text[: chance.randrange(len(text))] + chance.randbytes(3) + b"\n"


def is_harmless(data: bytes) -> bool:
    """At the Unix socket whoever comes in may end the slot, and is heard: that is no nonsense."""
    for each in data.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(each)
            if isinstance(said, dict) and "leave" in said:
                return False
    return True


def to_door(held: Held, data: bytes, chance: random.Random) -> None:
    address = ("127.0.0.1", held.told["port"])
    if chance.randrange(4):
        with socket.create_connection(address) as caller, contextlib.suppress(OSError):
            head = chance.choice([b"", b"\x16\x03\x01", b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03"])
            caller.sendall(head + data)
        return
    caller_line = dial(["127.0.0.1"], held.told["port"], CERTIFICATE, TOKEN, PATIENCE_S)
    with contextlib.suppress(OSError):
        caller_line.send(data)
    caller_line.close()


def to_socket(held: Held, data: bytes, chance: random.Random) -> None:
    if not is_harmless(data):
        return
    caller = relay.dial(held.told["socket"])
    with caller, contextlib.suppress(OSError), Path(os.devnull).open() as nothing:
        given = [nothing.fileno()] * chance.choice([0, 0, 1, 2, 4, 7])
        sent = socket.send_fds(caller, [data or b"\n"], given)
        caller.sendall(data[sent:])


def test_ten_thousand_times(hold: Hold) -> None:
    held = hold()
    kept = held.open("cat")
    chance = random.Random(20_261_127)  # noqa: S311

    def some(count: int) -> None:
        for _ in range(count):
            to_door(held, line(chance), chance)
            to_socket(held, line(chance), chance)

    some(500)
    calm = len(descriptors(held.pid))
    until(lambda: len(descriptors(held.pid)) < 16, "callers to be dropped")
    before = resident(held.pid)
    some(4_500)
    until(lambda: len(descriptors(held.pid)) < 16, "callers to be dropped")
    assert resident(held.pid) - before < 8 << 20, calm
    look = held.door.look(PATIENCE_S)
    assert (look.ends_in, look.running) == (None, 1)
    kept.send(b"still there\n")
    assert kept.recv(100) == b"still there\n"
    assert everything(held.open("echo serves")) == b"serves\n"
    assert held.relayed("echo serves").stdout == b"serves\n"
