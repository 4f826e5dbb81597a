"""What is advised for a package that tflaunch does not bring is what its project file declares."""

from __future__ import annotations

import re

import tomllib

from tests.support import ROOT
from tflaunch.text.extras import beside_tflaunch

ADVISED = re.compile(r'beside_tflaunch\("([^"]+)", "([^"]+)"\)')


def test_each_package_that_is_advised_is_one_of_its_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    advised = {
        each for path in (ROOT / "tflaunch").rglob("*.py") for each in ADVISED.findall(path.read_text())
    }
    assert len(advised) >= 3, "were none found, nothing below could fail"
    for package, extra in advised:
        assert [line for line in extras[extra] if re.match(rf"{package}\b", line)], (package, extra)


def test_the_name_of_tflaunch_is_never_one_to_install_by() -> None:
    """It is in no index: whoever registered it there would be installed."""
    install = re.compile(r"(?:pipx|pip|uv tool|uv pip) install (?:--?\S+ )*['\"]?tflaunch\b")
    assert not install.search(beside_tflaunch("optuna", "tune"))
    assert install.search("uv tool install 'tflaunch[tune]'")
    texts = [*(ROOT / "tflaunch").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    assert not [path for path in texts if install.search(path.read_text())]
