"""A viewer as the layers below agent/viewer.py know it: who gets messages; for types alone."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Recipient(Protocol):
        """Gets messages of this agent."""

        def send(self, type: str, body: bytes = b"", **fields: Any) -> None:
            """Send a message."""
