"""Frames: bytes in, messages out, however the bytes were cut and whatever they are."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tflaunch.protocol.wire import (
    BODY_LIMIT,
    HEAD_LIMIT,
    MAGIC,
    NOISE_LIMIT,
    Decoder,
    Message,
    WireError,
    encode,
)

MESSAGES = [
    Message("hello", {"run": "r", "pid": 7}),
    Message("log", {"task": "worker/0", "offset": 0}, b"\0\xff\n" + MAGIC),
    Message("swept", {"killed": [], "survivors": [], "logs": {"ps/0": 12}}),
    Message("beat"),
]
NOISE = b"Welcome to gpu01\r\n\0\0" + MAGIC[:-1] + b"\xff"  # nearly the magic, too
STREAM = NOISE + MAGIC + b"".join(encode(each.type, each.body, **each.fields) for each in MESSAGES)


def fed(decoder: Decoder, *pieces: bytes) -> list[Message]:
    return [message for piece in pieces for message in decoder.feed(piece)]


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_cut_anywhere_is_the_same_messages(cut: int) -> None:
    decoder = Decoder(magic=True)
    assert fed(decoder, STREAM[:cut], STREAM[cut:]) == MESSAGES
    assert decoder.noise == NOISE
    assert not decoder.awaiting_magic


def test_byte_by_byte_each_message_comes_with_its_last_byte() -> None:
    decoder = Decoder(magic=True)
    ends = []
    for number in range(len(STREAM)):
        ends += [(number + 1, message) for message in decoder.feed(STREAM[number : number + 1])]
    assert [message for _, message in ends] == MESSAGES
    size = len(NOISE) + len(MAGIC)
    for (end, _), message in zip(ends, MESSAGES, strict=True):
        size += len(encode(message.type, message.body, **message.fields))
        assert end == size


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    Message,
    st.text(),
    st.dictionaries(st.text().filter(lambda name: name not in ("type", "body")), json_values, max_size=4),
    st.binary(max_size=300),
)


@given(st.lists(messages, max_size=4), st.data())
def test_what_is_encoded_comes_out_again(sent: list[Message], data: st.DataObject) -> None:
    stream = b"".join(encode(each.type, each.body, **each.fields) for each in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert fed(Decoder(), *pieces) == sent


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_messages_or_a_wire_error(data: bytes) -> None:
    decoder = Decoder()
    try:
        decoder.feed(data)
    except WireError as error:
        assert str(error)


def frame(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(head), len(body)) + head + body


@pytest.mark.parametrize(
    "garbage",
    [
        frame(b"no JSON"),
        frame(b""),
        frame(b"[1, 2]"),
        frame(b"{}"),
        frame(b"null"),
        frame(b'{"type": 3}'),
        frame(b'{"type": "x"'),
        frame('{"type": "ü"}'.encode()),
        frame(b'{"type": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        frame(b'{"type": "x", "n": ' + b"9" * 10_000 + b"z}"),
        struct.pack("!II", HEAD_LIMIT + 1, 0),
        struct.pack("!II", 2, BODY_LIMIT + 1),
        struct.pack("!II", 0xFFFFFFFF, 0xFFFFFFFF),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=lambda garbage: str(garbage[8:24]),
)
def test_garbage_is_a_wire_error(garbage: bytes) -> None:
    with pytest.raises(WireError):
        Decoder().feed(garbage)
    with pytest.raises(WireError):  # also bit by bit, and without waiting for a body that is too long
        fed(Decoder(), *(garbage[start : start + 4096] for start in range(0, len(garbage), 4096)))


def test_nothing_too_large_is_sent() -> None:
    with pytest.raises(WireError, match="'blob' message too large"):
        encode("blob", b"x" * (BODY_LIMIT + 1), last=False)
    with pytest.raises(WireError):
        encode("stage", tasks="x" * HEAD_LIMIT)
    assert fed(Decoder(), encode("blob", b"x" * BODY_LIMIT, last=True))[0].body == b"x" * BODY_LIMIT


@pytest.mark.parametrize("piece", [1 << 20, 4096, 1000])
@pytest.mark.parametrize(("size", "fits"), [(NOISE_LIMIT, True), (NOISE_LIMIT + 1, False)])
def test_the_same_noise_is_too_much_however_it_is_cut(size: int, fits: bool, piece: int) -> None:
    stream = b"n" * size + MAGIC + encode("beat")
    decoder = Decoder(magic=True)
    pieces = [stream[start : start + piece] for start in range(0, len(stream), piece)]
    if fits:
        assert fed(decoder, *pieces) == [Message("beat")]
        assert decoder.noise == b"n" * size
    else:
        with pytest.raises(WireError, match="65536 bytes of something else") as raised:
            fed(decoder, *pieces)
        assert raised.value.noise == b"n" * NOISE_LIMIT
        assert decoder.awaiting_magic


@pytest.mark.parametrize("part", range(1, len(MAGIC)))
def test_noise_that_looks_like_the_magic_is_noise(part: int) -> None:
    noise = MAGIC[:part] * 3
    decoder = Decoder(magic=True)
    stream = noise + MAGIC + encode("beat")
    assert fed(decoder, *(stream[number : number + 1] for number in range(len(stream)))) == [Message("beat")]
    assert decoder.noise == noise


def test_noise_is_kept_while_the_magic_is_awaited() -> None:
    decoder = Decoder(magic=True)
    assert decoder.feed(b"bash: no such") == []
    assert decoder.feed(b" file\n") == []
    assert (decoder.noise, decoder.awaiting_magic) == (b"bash: no such file\n", True)


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe", "ü\U0001f600".encode(), b"a\nb\tc\x7f\x01"])
def test_a_file_name_that_is_no_utf8_survives(name: bytes) -> None:
    text = name.decode("utf-8", "surrogateescape")
    (message,) = Decoder().feed(encode("stage", argv=[text], env={text: 1}))
    assert message["argv"][0].encode("utf-8", "surrogateescape") == name
    assert message["env"] == {text: 1}


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(WireError, match="'stop' message without 'grace_s'"):
        Message("stop", {"tasks": None})["grace_s"]


def test_messages_are_equal_by_content() -> None:
    assert Message("a", {"b": 1}, b"c") == Message("a", {"b": 1}, b"c")
    for other in (Message("x", {"b": 1}, b"c"), Message("a", {}, b"c"), Message("a", {"b": 1}), "a"):
        assert Message("a", {"b": 1}, b"c") != other
    assert repr(Message("a", {"b": 1}, b"c")) == "Message('a', {'b': 1}, 1 bytes)"


def test_the_head_is_plain_ascii_json() -> None:
    fields: dict[str, Any] = {"ä": "\udcff"}
    head_size, body_size = struct.unpack_from("!II", encode("x", b"abc", **fields))
    assert body_size == 3
    assert json.loads(encode("x", b"abc", **fields)[8 : 8 + head_size].decode("ascii")) == {
        "type": "x",
        **fields,
    }
