"""The values of a verb's options, and which of them the user has said."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass
class Given:
    """The values by the names of their options; what nobody has said has its default, until a file says it."""

    values: dict[str, Any]
    said: Collection[str]

    def is_default(self, name: str) -> bool:
        """Whether there is such an option, and nobody has said it."""
        return name in self.values and name not in self.said

    def put(self, name: str, value: Any) -> None:
        """Set the value of an option; a choice may be a text."""
        default = self.values[name]
        self.values[name] = type(default)(value) if isinstance(default, Enum) else value
