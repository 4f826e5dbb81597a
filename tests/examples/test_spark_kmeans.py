"""The example of a model over a DataFrame, on a real Spark of this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import ROOT
from tests.support import spark as sparks


@pytest.mark.skipif(bool(sparks.missing()), reason=sparks.missing())
@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
def test_kmeans_finds_the_middles_of_the_clusters(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "examples/spark_kmeans.py", "--points=4000", "--clusters=3", "--steps=3"]
    more = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "SPARK_SUBMIT_OPTS": f"{sparks.SMALL} -Dspark.ui.enabled=false -Dspark.master=local[2]",
    }
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, **more}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    distances = [
        float(each) for each in re.findall(r"^step \d  distance ([\d.]+)$", done.stdout, re.MULTILINE)
    ]
    assert len(distances) == 3
    assert distances == sorted(distances, reverse=True)
    assert abs(distances[-1] - 2) < 0.2  # a variance of 1 in x, and in y
    found = [
        list(map(float, each.split())) for each in re.findall(r"^centre (.+)$", done.stdout, re.MULTILINE)
    ]
    angles = np.arange(3) * 2 * np.pi / 3
    np.testing.assert_allclose(found, 10 * np.stack([np.cos(angles), np.sin(angles)], 1), atol=0.2)
