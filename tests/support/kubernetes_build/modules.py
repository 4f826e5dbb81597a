"""Writes the go.mod of main.go: `modules.py VERSION`, for example 1.37.2, in an empty directory with main.go.

Kubernetes's own go.mod names the modules of its tree by paths in it; who builds it from outside names their versions.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path


def main(version: str) -> None:
    """Write ./go.mod."""
    module = f"k8s.io/kubernetes@v{version}"
    told = subprocess.run(
        ["go", "mod", "download", "-json", module], check=True, capture_output=True, text=True
    )
    theirs = Path(json.loads(told.stdout)["GoMod"]).read_text("utf-8")
    of_the_tree = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", theirs, re.MULTILINE)
    lines = ["module kubernetes", *re.findall(r"^go \S+|^godebug \S+$", theirs, re.MULTILINE)]
    lines.append(f"require k8s.io/kubernetes v{version}")
    number = version.partition(".")[2]
    lines += [f"replace {each} => {each} v0.{number}" for each in of_the_tree]
    Path("go.mod").write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
