"""Pages of the repository that lie outside `docs/`, as pages of the site, with links that lead to the same files."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

_ROOT = Path(__file__).resolve().parents[2]
# A file of the repository -> the page of the site, both relative to the repository.
_PAGES = {
    "README.md": "docs/index.md",
    "examples/README.md": "docs/reference/examples.md",
    "CONTRIBUTING.md": "docs/reference/contributing.md",
    "CHANGELOG.md": "docs/reference/changelog.md",
}
# A dark and a light picture, as README files have them: the reader's system chooses.
_PICTURE = re.compile(
    r'<picture><source [^>]*srcset="([^"]*)">\s*<img src="([^"]*)" alt="([^"]*)"></picture>'
)
_LINK = re.compile(r"(\]\()((?![a-z]+:|#)[^)\s#]+)(#[^)\s]*)?(\))")


def pages() -> dict[str, str]:
    """Return the pages that are made of other files, by the names of their files."""
    made = {source: page for source, page in _PAGES.items() if page != "docs/index.md"}
    return {
        PurePosixPath(page).name: moved((_ROOT / source).read_text(encoding="utf-8"), source, page)
        for source, page in made.items()
    }


def with_button(text: str) -> str:
    """Return a page on which the site's button for dark and light chooses among pictures, too."""
    img = '<img class="only-{}" src="{}" alt="{}">'
    return _PICTURE.sub(
        lambda match: img.format("light", match[2], match[3]) + img.format("dark", match[1], match[3]), text
    )


def moved(text: str, source: str, page: str) -> str:
    """Return the text of the file `source` as it must be to stand at `page`: its links lead to the same files."""

    def replaced(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(source).parent / match[2])
        place = _PAGES.get(target, target)
        anchor = "" if place == "docs/index.md" else match[3] or ""
        return f"{match[1]}{os.path.relpath(place, PurePosixPath(page).parent)}{anchor}{match[4]}"

    return _LINK.sub(replaced, text)
