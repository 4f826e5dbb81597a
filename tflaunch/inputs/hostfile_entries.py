"""What a YAML hostfile has in it: hosts with their settings, or slots; and what a name may be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch.inputs import hostnames
from tflaunch.inputs.documents import PlacedText
from tflaunch.inputs.engine_words import WantedSlots
from tflaunch.inputs.yaml_text import text_of


class Entry(NamedTuple):
    """A name or range of a hostfile with its settings, those of groups and `defaults` folded in."""

    name: PlacedText
    settings: dict[str, Any]


class SlotEntries(NamedTuple):
    """The slots of a hostfile that names an engine, and the settings of every host that they become."""

    wanted: WantedSlots
    settings: Mapping[str, Any]


def host_name(value: object) -> str:
    """A name or a range as it is written; raises ValueError with a phrase that follows it."""
    text = text_of(value, "a host name")
    if re.fullmatch(r"[^@]+@[^@]+", text):
        user, _, host = text.partition("@")
        host, colon, port = host.partition(":")
        also = f", port: {port}" if colon else ""
        raise ValueError(f"has a user in it; write {{name: {host}, user: {user}{also}}}")
    if re.fullmatch(r"[^:]+:[0-9]{1,5}", text):
        host, _, number = text.partition(":")
        is_port = number == "22" or int(number) > 256
        what, key = ("port", "port") if is_port else ("number of slots", "slots")
        raise ValueError(f"has a {what} in it; write {{name: {host}, {key}: {number}}}")
    if text.count(":") > 1:
        raise ValueError(f"is an IPv6 address; give it a name: {{name: h1, ssh: '{text}'}}")
    hostnames.check(text)
    return text
