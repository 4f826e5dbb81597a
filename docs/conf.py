"""How Sphinx builds the documentation: `scripts/docs` calls it, every warning is an error."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

import generator  # noqa: E402  it lies beside this file

import tflaunch  # noqa: E402

generator.write(_HERE / "reference")

project = "tflaunch"
author = "the authors of tflaunch"
copyright = author  # noqa: A001  Sphinx calls it so
release = version = tflaunch.__version__

extensions = ["myst_parser"]
exclude_patterns = ["generator"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings: list[str] = []
nitpicky = True

html_theme = "furo"
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

man_pages = [("reference/tflaunch.1", "tflaunch", generator.manual.ABOUT, "", 1)]
