"""The report of a run as one page for a browser, which asks no network for anything.

What comes from hosts and programs stands in it as JSON alone, which a script makes text of; the Content-Security-Policy
lets nothing run but the scripts that are here, and nothing be fetched.  report_files/ has the scripts: uPlot 1.6.32
(MIT), which draws the curves, and the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources

from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.json_reports import WORDS
from tflaunch.documents.writer import to_json

# In a script element `<` could begin its end, or a comment.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
{styles}
</head>
<body>
<noscript>This page draws itself with a script of its own; it fetches nothing.</noscript>
<main id="report"></main>
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""


def page(document: ReportDocument) -> str:
    """Return the page."""
    styles = [_file("uPlot.min.css"), _file("page.css")]
    scripts = [_file("uPlot.iife.min.js"), _file("page.js")]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(scripts)}",
            f"style-src {_hashes(styles)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return _PAGE.format(
        policy=policy,
        title=html.escape(" and ".join(run["run_id"] for run in document["runs"])),
        styles="\n".join(f"<style>{text}</style>" for text in styles),
        data=embedded(to_json({**document, "words": WORDS}, compact=True)),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


def embedded(json: str) -> str:
    """Return ASCII JSON as it may stand in a script element: the same data, without a character that HTML knows."""
    return json.translate(_ESCAPES)


def _file(name: str) -> str:
    return resources.files("tflaunch.console").joinpath("report_files", name).read_text("utf-8")


def _hashes(texts: list[str]) -> str:
    found = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{each}'" for each in found)
