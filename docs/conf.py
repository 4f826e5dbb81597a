"""How Sphinx builds the documentation: `scripts/docs` calls it, every warning is an error."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sphinx.application

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

import generator  # noqa: E402  it lies beside this file

import tflaunch  # noqa: E402

generator.write(_HERE / "reference")

project = "tflaunch"
author = "the authors of tflaunch"
copyright = author
release = version = tflaunch.__version__

extensions = ["myst_parser"]
# The man page is a page of its own kind: Sphinx knows only later what it builds.
exclude_patterns = ["generator", *([] if tags.has("man") else ["reference/tflaunch.1.md"])]  # noqa: F821  from Sphinx
include_patterns = ["reference/tflaunch.1.md" if tags.has("man") else "**"]  # noqa: F821
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # ssh_config, hostfiles of MPI: nobody highlights them
nitpicky = True
smartquotes = False  # it makes a dash of the two of an option

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"tflaunch {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_last_updated_fmt = None
# The text around a hit is fetched from its page, which browsers forbid for pages of the file system.
html_show_search_summary = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "github-dark"

root_doc = "reference/tflaunch.1" if tags.has("man") else "index"  # noqa: F821
# Of the man page, which is kept in the repository: the same for everyone who builds it.
today = re.search(r"^## \[\d[^]]*\] - (\S+)", (_HERE.parent / "CHANGELOG.md").read_text("utf-8"), re.M)[1]
man_pages = [("reference/tflaunch.1", "tflaunch", generator.manual.ABOUT, "", 1)]


def setup(app: sphinx.application.Sphinx) -> None:
    """Have links lead to pages of the site, and pictures follow its button for dark and light."""

    def read(app: object, name: str, text: list[str]) -> None:  # noqa: ARG001  Sphinx gives them
        page = f"docs/{name}.md"
        text[0] = generator.repository.with_button(generator.repository.moved(text[0], page, page))

    def copy_pictures(app: sphinx.application.Sphinx, error: Exception | None) -> None:
        # Sphinx finds a picture of Markdown; one in HTML, which may have a dark and a light one, it does not see.
        if error is None and app.builder.format == "html" and (_HERE / "pictures").is_dir():
            shutil.copytree(_HERE / "pictures", Path(app.outdir) / "pictures", dirs_exist_ok=True)

    app.connect("source-read", read)
    app.connect("build-finished", copy_pictures)
