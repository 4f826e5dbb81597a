"""What a package index shows of the README: hatchling calls this when it builds.

A package index has none of the files beside the README, and no anchors in it.  So its pictures from this repository are
left out, and links into this repository are text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_ELSEWHERE = r"(?![a-z]+:)"  # what follows is no address of the web
_LEFT_OUT = (
    (rf'<picture>(?:(?!</picture>).)*<img[^>]*\bsrc="{_ELSEWHERE}(?:(?!</picture>).)*</picture>\n*', ""),
    (rf'<img[^>]*\bsrc="{_ELSEWHERE}[^>]*>\n*', ""),
    (rf"!\[[^\]]*\]\({_ELSEWHERE}[^)]*\)\n*", ""),
    (rf'<a\s[^>]*\bhref="{_ELSEWHERE}[^>]*>((?:(?!</a>).)*)</a>', r"\1"),
    (rf"\[([^\]]*)\]\({_ELSEWHERE}[^)]*\)", r"\1"),
)


def long_description(readme: str) -> str:
    """Return the README without what leads into this repository."""
    for pattern, instead in _LEFT_OUT:
        readme = re.sub(pattern, instead, readme, flags=re.DOTALL)
    return readme


class CustomMetadataHook(MetadataHookInterface):
    """Makes `readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add it."""
        text = long_description(Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
