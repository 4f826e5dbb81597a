"""What came of a fetch."""

from __future__ import annotations

from dataclasses import dataclass, field

from tflaunch.protocol.errors import ConnectError


@dataclass
class Fetched:
    """What came, and what did not and why."""

    run_id: str
    directory: str
    files: int = 0
    bytes: int = 0
    same: int = 0  # files that were here already
    apart: list[str] = field(default_factory=list)  # names whose files lie in a directory for each host
    kept: list[str] = field(default_factory=list)  # files here that differ from those of the run, and stay
    failed: dict[str, str] = field(default_factory=dict)  # HOST:PATH -> why it did not come
    left: dict[str, str] = field(
        default_factory=dict
    )  # HOST:PATH -> why there is no file to bring: a link, gone meanwhile
    hidden: list[str] = field(
        default_factory=list
    )  # names with a dot at the beginning, which no pattern names
    unmatched: list[str] = field(default_factory=list)  # patterns that no file matches
    there: list[str] = field(default_factory=list)  # names in the working directories, if no file matches
    unreached: dict[str, ConnectError] = field(default_factory=dict)  # hosts from which not everything came

    @property
    def complete(self) -> bool:
        """Whether all that the user asked for is here."""
        return not (self.kept or self.failed or self.unmatched or self.unreached)
