"""Messages with something in every place: what the recordings left empty is filled in by the table of the wire."""

from __future__ import annotations

from typing import Any

from tflaunch.protocol import messages
from tflaunch.protocol.fields import Each, OneOf, RuledRecord

_NAMES = ("x", "worker/0", "0")
_VALUES = ("x", 1, 0.5, True, "worker/0", "127.0.0.1", "SIGTERM", "0" * 64, "", None, "pynvml", -1)


def sample(spec: Any) -> Any:
    """Something that `spec` describes, nothing of it empty."""
    if callable(spec):
        named = (
            spec.__name__.removeprefix("one of ").split(", ") if spec.__name__.startswith("one of ") else ()
        )
        return next(value for value in (*named, *_VALUES) if spec(value))
    if isinstance(spec, dict):
        return {name.lstrip("?"): sample(wanted) for name, wanted in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [sample(each) for each in spec]
    if isinstance(spec, Each):
        return {next(name for name in _NAMES if spec.key(name)): sample(spec.value)}
    if isinstance(spec, OneOf):
        return sample(spec.specs[-1])
    assert isinstance(spec, RuledRecord)
    return sample(spec.fields)


def filled(spec: Any, value: Any) -> Any:
    """The same value with something in each list and object that is empty, and each field that may lack."""
    if isinstance(spec, dict) and isinstance(value, dict):
        every = {name.lstrip("?"): wanted for name, wanted in spec.items()}
        known = {
            name: filled(wanted, value[name]) if name in value else sample(wanted)
            for name, wanted in every.items()
        }
        return {**value, **known}
    if isinstance(spec, list) and isinstance(value, list):
        return [filled(spec[0], each) for each in value] or sample(spec)
    if isinstance(spec, tuple) and isinstance(value, list) and len(spec) == len(value):
        return [filled(*pair) for pair in zip(spec, value, strict=True)]
    if isinstance(spec, Each) and isinstance(value, dict):
        return {key: filled(spec.value, each) for key, each in value.items()} or sample(spec)
    if isinstance(spec, OneOf):
        return sample(spec) if value is None else filled(spec.specs[-1], value)
    return filled(spec.fields, value) if isinstance(spec, RuledRecord) else value


def whole(type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message of that type, all of them there."""
    made: dict[str, Any] = filled(messages.FROM_AGENT.get(type, {}), fields)
    return made
