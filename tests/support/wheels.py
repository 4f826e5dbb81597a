"""Packages that can be installed without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(directory: Path, name: str, version: str, source: str) -> Path:
    """A package of one module, as an index would have it."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{name}.py", source)
        packed.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        packed.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{about}/RECORD", "")
    return path


def requirements(directory: Path, wheels: Path, *lines: str) -> Path:
    """A requirements.txt that needs no network."""
    path = directory / "requirements.txt"
    path.write_text("\n".join(["--no-index", f"--find-links {wheels}  # no index", *lines, ""]))
    return path


def made(parent: Path) -> list[Path]:
    """The environments that are whole, and nothing else may be there but their locks."""
    found = sorted(path.parent for path in parent.glob(".environments/*/made.json"))
    assert sorted((parent / ".environments").iterdir()) == sorted(
        [*found, *(path.with_name(path.name + ".lock") for path in found)]
    )
    return found
