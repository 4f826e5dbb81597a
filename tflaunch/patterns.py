"""Which outputs of the tasks are wanted: patterns as in .gitignore, read once, and sent as regular expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tflaunch.errors import UsageError


@dataclass(frozen=True)
class Pattern:
    """Which outputs are wanted: a line as in .gitignore, its regular expression, and where to look."""

    text: str
    regex: str
    wanted: bool
    root: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read it; raises UsageError."""
        from pathspec.patterns.gitignore.basic import GitIgnoreBasicPattern

        plain = text.removeprefix("!")
        if ".." in plain.split("/") or plain.startswith("~"):
            raise UsageError(
                f"--fetch {text}: it leads out of the tasks' working directory",
                "what lies elsewhere cannot be fetched; a pattern is as in .gitignore: 'checkpoints/**'",
            )
        try:
            regex, wanted = GitIgnoreBasicPattern.pattern_to_regex(text)
        except ValueError as error:
            raise UsageError(f"--fetch {text}: {error}", "it is a pattern as in .gitignore") from None
        if regex is None or wanted is None:
            raise UsageError(
                f"--fetch {text!r}: that is no pattern", "it is one as in .gitignore: 'checkpoints/**'"
            )
        parts = plain.removeprefix("/").rstrip("/").split("/")
        literal = len(parts) - 1 if "/" in plain.rstrip("/") else 0
        for number, part in enumerate(parts[:literal]):
            if re.search(r"[*?\[\\]", part):
                literal = number
                break
        return cls(text, regex, wanted, "/".join(parts[:literal]))
