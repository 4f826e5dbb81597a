"""The answers to the first message that hosts give before the launcher needs them."""

from __future__ import annotations

from tflaunch.protocol.wire import Message


class EarlyAnswers:
    """Each host's last message of the expected types."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Message]] = {}  # type -> host -> message

    def expect(self, type: str) -> None:
        """Keep messages of that type from now on, until they are taken."""
        self._kept.setdefault(type, {})

    def keep(self, host: str, message: Message) -> bool:
        """Keep that message if its type is expected; returns whether it is."""
        if message.type not in self._kept:
            return False
        self._kept[message.type][host] = message
        return True

    def take(self, type: str) -> dict[str, Message]:
        """The messages of that type by host; what comes later is not kept."""
        return self._kept.pop(type, {})
