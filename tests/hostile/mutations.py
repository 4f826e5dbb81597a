"""What a hostile host may put in the place of a field, of a body and of a frame; standard library only, it runs there.

A mutation is `type#n:path=name`: of the n-th message of that type (0: of each), the field at `path` (`gpus>0>name`;
`@body` the body, `@frame` the frame itself) becomes what `name` says.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from tflaunch.protocol import wire

MARK = "tflaunch-hostile"  # no other name on this machine holds it
ESCAPES = f"{MARK}\x1b[2J\x1b]0;owned\x07\x9b31m\x00\x08\x7f\r\nfake \u202e\u2066row\u2028\x85end\t"
OTHER_HOST = "local2"
OTHER_TASK = "worker/1"  # it runs on the other host
CANARY = "tests.hostile.canary.tripped"  # whoever looks for this module runs canary/__init__.py

DROP = object()
MIXED = 4  # elements of a list that is a record without names
BETWEEN = ">"  # the steps of a path; names of tasks and files hold all else


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def _as(kind: type, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A change of values of that kind alone; others are left out of the matrix."""

    def changed(old: Any) -> Any:
        return (
            change(old) if isinstance(old, kind) and not (kind is not bool and isinstance(old, bool)) else old
        )

    return changed


# name -> what becomes of the old value; one that stays as it was is no case
VALUES: dict[str, Callable[[Any], Any]] = {
    "missing": lambda _: DROP,
    "null": lambda _: None,
    "true": lambda _: True,
    "zero": lambda _: 0,
    "one": lambda _: 1,
    "minus": lambda _: -1,
    "huge": lambda _: 2**63,
    "huge-minus": lambda _: -(2**63) - 1,
    "digits": lambda _: 10**1000,
    "half": lambda _: 0.5,
    "nan": lambda _: float("nan"),
    "infinite": lambda _: float("inf"),
    "minus-infinite": lambda _: float("-inf"),
    "float-huge": lambda _: 1e308,
    "text": lambda _: "x",
    "empty": lambda _: "",
    "number-text": lambda _: "7",
    "escapes": lambda _: ESCAPES,
    "newline": lambda _: f"{MARK}\nfake row",
    "markup": lambda _: "[/] [bold]x[/bold] [link=file:///etc/passwd]y[/link] [",
    "format": lambda _: "{0.__class__} {x} %s %(x)s %n",
    "surrogate": lambda _: "\ud800",
    "long": lambda _: "x" * 1_000_000,
    "long-lines": lambda _: "y\n" * 100_000,
    "other-host": lambda _: OTHER_HOST,
    "no-host": lambda _: "nowhere",
    "other-task": lambda _: OTHER_TASK,
    "own-task": lambda _: "worker/0",
    "no-task": lambda _: "chief/99",
    "odd-task": lambda _: "worker/-1",
    "huge-task": lambda _: "worker/" + "9" * 5000,
    "traversal": lambda _: f"../../../../../../../../../tmp/{MARK}",
    "absolute": lambda _: f"/tmp/{MARK}",
    "git": lambda _: ".git/hooks/post-checkout",
    "nul": lambda _: "a\0b",
    "module": lambda _: CANARY,
    "list": lambda _: [],
    "object": lambda _: {},
    "nulls": lambda _: [None],
    "texts": lambda _: ["x"],
    "numbers": lambda _: [1, 2.5],
    "objects": lambda _: [{}],
    "lists": lambda _: [[]],
    "escapes-list": lambda _: [ESCAPES],
    "escapes-key": lambda _: {ESCAPES: ESCAPES},
    "other-task-key": lambda _: {OTHER_TASK: [0, 1]},
    "no-task-key": lambda _: {"chief/99": [0, 1]},
    "odd-key": lambda _: {"x": None},
    "host-key": lambda _: {OTHER_HOST: ["127.0.0.1", 1]},
    "deep": lambda _: _nested(900),
    "many": lambda _: [0] * 200_000,
    # Of what was there: each keeps the kind of the value, so that it goes further than a wrong one.
    "negated": _as(int, lambda old: -old),
    "next": _as(int, lambda old: old + 1),
    "before": _as(int, lambda old: old - 1),
    "flipped": _as(bool, lambda old: not old),
    "as-float": _as(int, lambda old: float(old) + 0.5),
    "as-text": _as(int, str),
    "suffix": _as(str, lambda old: old + ESCAPES),
    "upper": _as(str, lambda old: old.swapcase()),
    "twice": _as(list, lambda old: old * 2),
    "hundredfold": _as(list, lambda old: old * 100),
    "reversed": _as(list, lambda old: old[::-1]),
    "with-null": _as(list, lambda old: [*old, None]),
    "with-object": _as(list, lambda old: [*old, {}]),
    "more-keys": _as(dict, lambda old: {**old, "x": None, ESCAPES: ESCAPES}),
    "no-keys": _as(dict, lambda old: {} if old else old),
    "other-keys": _as(dict, lambda old: {ESCAPES + key: value for key, value in old.items()}),
}

BODIES: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda _: b"",
    "junk": lambda _: bytes(range(256)) * 4,
    "escapes": lambda _: ESCAPES.encode() + b"\n\xff\xfe\n" + b"\x1b[2J\n",
    "large": lambda _: b"z" * wire.BODY_LIMIT,
    "large-lines": lambda _: b"\n" * wire.BODY_LIMIT,
    "cut": lambda old: old[:-1],
    "more": lambda old: old + b"!",
    "zip": lambda _: b"x\x9c" + b"\0" * 100,
}

_LENGTHS = struct.Struct("!II")


class Answer(NamedTuple):
    """What goes out in the place of one frame; then, perhaps, the stream ends or nothing is said any more."""

    data: bytes
    after: str = ""  # "", "end" or "silence"


def plain(type: str, fields: dict[str, Any], body: bytes = b"") -> bytes:
    """The frame of a message, larger than `wire.encode` makes any, and of any shape."""
    return packed({**fields, "type": type}, body)


def packed(head: Any, body: bytes = b"") -> bytes:
    """A frame of any head."""
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    return _LENGTHS.pack(len(text), len(body)) + text + body


def raw(head: bytes, body: bytes = b"") -> bytes:
    """A frame of bytes that are no JSON."""
    return _LENGTHS.pack(len(head), len(body)) + head + body


def _spliced(frame: bytes, key: bytes) -> bytes:
    """The frame with more text of JSON in its head."""
    head_size, body_size = _LENGTHS.unpack_from(frame)
    head = frame[8 : 8 + head_size]
    head = head[:-1] + b"," + key + b"}"
    return _LENGTHS.pack(len(head), body_size) + head + frame[8 + head_size :]


FRAMES: dict[str, Callable[[bytes], Answer]] = {
    "garbage": lambda frame: Answer(b"\xff\xfe garbage \x1b[2J" * 10 + frame),
    "zeros": lambda frame: Answer(b"\0" * 8 + frame),
    "garbage-after": lambda frame: Answer(frame + b"\xff" * 64),
    "head-short": lambda frame: Answer(_LENGTHS.pack(3, 0) + frame[8:]),
    "head-long": lambda frame: Answer(_LENGTHS.pack(len(frame) * 2, 0) + frame[8:]),
    "head-limit": lambda _: Answer(raw(b'{"type":"' + b"x" * (16 * 2**20 - 20) + b'"}')),
    "head-list": lambda _: Answer(raw(b"[" + b"0," * (8 * 2**20 - 20) + b"0]")),
    "head-objects": lambda _: Answer(raw(b'{"type":"facts","x":[' + b"{}," * (5 * 2**20) + b"0]}")),
    "head-over": lambda frame: Answer(_LENGTHS.pack(2**32 - 1, 0) + frame[8:]),
    "body-over": lambda frame: Answer(_LENGTHS.pack(2, 2**32 - 1) + frame[8:]),
    "no-object": lambda frame: Answer(packed([1, 2]) + frame),
    "no-json": lambda frame: Answer(raw(b"{'type': 1}") + frame),
    "no-ascii": lambda frame: Answer(raw('{"type":"é"}'.encode()) + frame),
    "no-type": lambda frame: Answer(packed({}) + frame),
    "type-number": lambda frame: Answer(packed({"type": 1}) + frame),
    "type-list": lambda frame: Answer(packed({"type": []}) + frame),
    "type-unknown": lambda frame: Answer(packed({"type": ESCAPES}) + frame),
    "type-empty": lambda frame: Answer(packed({"type": ""}) + frame),
    "deep": lambda _: Answer(raw(b'{"type":"facts","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    "digits": lambda frame: Answer(_spliced(frame, b'"zzz":' + b"9" * 100_000)),
    "key-twice": lambda frame: Answer(_spliced(frame, b'"type":"beat"')),
    "nan-extra": lambda frame: Answer(_spliced(frame, b'"zzz":[NaN,Infinity,-Infinity]')),
    "extra": lambda frame: Answer(_spliced(frame, b'"zzz":"\\u001b[2J"')),
    "twice": lambda frame: Answer(frame * 2),
    "thousandfold": lambda frame: Answer(frame * 1000),
    "after-bye": lambda frame: Answer(plain("bye", {}) + frame),
    "magic": lambda frame: Answer(wire.MAGIC + frame),
    "left-out": lambda _: Answer(b""),
    "empty-fields": lambda frame: Answer(packed({"type": json.loads(_head(frame))["type"]})),
    "end": lambda _: Answer(b"", "end"),
    "end-after": lambda frame: Answer(frame, "end"),
    "cut": lambda frame: Answer(frame[: len(frame) // 2], "end"),
    "cut-length": lambda frame: Answer(frame[:5], "end"),
    "cut-silence": lambda frame: Answer(frame[: len(frame) // 2], "silence"),
    "silence": lambda _: Answer(b"", "silence"),
    "silence-after": lambda frame: Answer(frame, "silence"),
}
# What leaves an answer or an event out (or makes it one of the past) is waited for, and a wire that breaks is made
# anew, some ten times: not for a suite.
SLOW = (
    "head-long",
    "left-out",
    "cut-silence",
    "silence",
    "silence-after",
    "end",
    "end-after",
    "cut",
    "cut-length",
    "key-twice",
)


def _head(frame: bytes) -> bytes:
    return frame[8 : 8 + _LENGTHS.unpack_from(frame)[0]]


class Mutation(NamedTuple):
    """One lie."""

    type: str
    nth: int
    path: str
    name: str

    @property
    def slow(self) -> bool:
        """Whether the launcher waits for a time limit of its own."""
        return self.path == "@frame" and (self.name in SLOW or self.name.startswith(("instead-", "then-")))

    def __str__(self) -> str:
        return f"{self.type}#{self.nth}:{self.path}={self.name}"

    @classmethod
    def parse(cls, text: str) -> Mutation:
        """The mutation of that text; raises ValueError."""
        target, _, rest = text.partition(":")
        type, _, nth = target.partition("#")
        path, _, name = rest.rpartition("=")
        return cls(type, int(nth), path, name)

    def applied(self, message: wire.Message, frame: bytes, samples: dict[str, Any]) -> Answer:
        """What goes out in the place of this message; `samples` has one of each type, `[fields, body]`."""
        if self.path == "@frame":
            if self.name.startswith("then-"):
                fields, body = samples[self.name[5:]]
                return Answer(frame + plain(self.name[5:], fields, body.encode("latin-1")))
            if self.name.startswith("instead-"):
                fields, body = samples[self.name[8:]]
                return Answer(plain(self.name[8:], fields, body.encode("latin-1")))
            return FRAMES[self.name](frame)
        if self.path == "@body":
            return Answer(plain(message.type, message.fields, BODIES[self.name](message.body)))
        fields, path = message.fields, self.path.split(BETWEEN)
        if not leads(fields, path):  # nothing was there when it was recorded
            from tests.hostile.whole import whole

            fields = whole(message.type, fields)
        return Answer(plain(message.type, changed(fields, path, VALUES[self.name]), message.body))


def leads(value: Any, path: list[str]) -> bool:
    """Whether there is something at that path."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return False
    return True


def changed(value: Any, path: list[str], change: Callable[[Any], Any]) -> Any:
    """The same value but for what lies at `path`; a path that leads nowhere changes nothing."""
    first, *rest = path
    if isinstance(value, dict) and first in value:
        new = change(value[first]) if not rest else changed(value[first], rest, change)
        return {
            key: new if key == first else each
            for key, each in value.items()
            if key != first or new is not DROP
        }
    if isinstance(value, list) and first.isdigit() and int(first) < len(value):
        at = int(first)
        new = change(value[at]) if not rest else changed(value[at], rest, change)
        return [*value[:at], *([] if new is DROP else [new]), *value[at + 1 :]]
    return value


def paths(fields: Any, before: str = "") -> list[str]:
    """Every place in these fields: of a list its first element, of an object each key."""
    found = []
    # The first of a list, but each part of a record that is one.
    items = list(fields.items()) if isinstance(fields, dict) else list(enumerate(fields[:1]))
    if isinstance(fields, list) and len({type(each) for each in fields}) > 1 and len(fields) <= MIXED:
        items = list(enumerate(fields))
    for key, value in items:
        found.append(f"{before}{key}")
        if isinstance(value, (dict, list)):
            found += paths(value, f"{before}{key}{BETWEEN}")
    return found
