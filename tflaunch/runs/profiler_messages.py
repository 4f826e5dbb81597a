"""What is said to TensorFlow's ProfilerService, and what it answers: the few fields of its protocol buffers.

From xla/tsl/profiler/protobuf/profiler_service.proto and xplane.proto.  From 2.21 on, TensorFlow sends the trace in its
answer; before, it writes it into `repository_root/session_id/host_name.xplane.pb`, from its working directory on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tflaunch.text.safe import one_line

METHOD = "/tensorflow.ProfilerService/Profile"
REPOSITORY = "plugins/profile"  # where TensorBoard's plug-in looks, below the log directory

# Fields of ProfileRequest and its ProfileOptions, of ProfileResponse, of XSpace.
_DURATION_MS, _MAX_EVENTS, _OPTIONS, _ROOT, _SESSION, _HOST, _EMIT_XSPACE = 1, 2, 4, 5, 6, 7, 9
_HOST_LEVEL, _DEVICE_LEVEL, _VERSION, _OF_DURATION_MS = 2, 3, 5, 9
_EMPTY, _XSPACE = 7, 8
_ERRORS, _WARNINGS = 2, 3

MOST_FIELDS = 10_000  # at the top of a message: a trace has some dozens
MOST_TROUBLES = 3  # that are told
TROUBLE = 300  # characters of one

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def profile_request(seconds: float, session: str, name: str) -> bytes:
    """Ask for a trace of so many seconds, as `tf.profiler` does: operations and devices, without Python's calls.

    A TensorFlow that writes the trace itself names it REPOSITORY/session/name.xplane.pb.
    """
    duration_ms = round(seconds * 1000)
    options = b"".join(
        (
            _number(_HOST_LEVEL, 2),
            _number(_DEVICE_LEVEL, 1),
            _number(_VERSION, 1),
            _number(_OF_DURATION_MS, duration_ms),
        )
    )
    return b"".join(
        (
            _number(_DURATION_MS, duration_ms),
            _number(_MAX_EVENTS, 1_000_000),
            _text(_OPTIONS, options),
            _text(_ROOT, REPOSITORY.encode()),
            _text(_SESSION, session.encode()),
            _text(_HOST, name.encode()),
            _number(_EMIT_XSPACE, 1),
        )
    )


def trace_in(response: bytes) -> bytes | None:
    """The trace (an XSpace) that the answer has; None where TensorFlow has written it.  Raises ValueError."""
    return next((bytes(value) for value in _texts(response, _XSPACE) if value), None)


def is_empty(response: bytes) -> bool:
    """Whether TensorFlow says that it has seen nothing.  Raises ValueError."""
    return any(field == _EMPTY and value == 1 for field, value in _fields(response))


def troubles_in(trace: bytes) -> list[str]:
    """What went wrong while the trace was taken, such as CUPTI that this user may not use.  Raises ValueError."""
    told = _texts(trace, _ERRORS, _WARNINGS)
    return [
        one_line(bytes(value[: 4 * TROUBLE]).decode("utf-8", "replace"))[:TROUBLE]
        for value in islice(told, MOST_TROUBLES)
    ]


def _texts(message: bytes, *wanted: int) -> Iterator[memoryview]:
    return (value for field, value in _fields(message) if field in wanted and isinstance(value, memoryview))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _fields(message: bytes) -> Iterator[tuple[int, int | memoryview]]:
    """The fields at the top of a message: number, and its value (of a fixed size: 0).  Raises ValueError."""
    data, at, count = memoryview(message), 0, 0
    while at < len(data):
        count += 1
        if count > MOST_FIELDS:
            raise ValueError(f"a protocol buffer of more than {MOST_FIELDS} fields")
        key, at = _read_varint(data, at)
        value: int | memoryview = 0
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError("not a protocol buffer")
        if at > len(data):
            raise ValueError("a protocol buffer that ends too early")
        yield key >> 3, value


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise ValueError("a protocol buffer that ends too early")
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("not a protocol buffer")
