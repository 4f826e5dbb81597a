"""What each task of a run of a function runs: it has the function, without all of pyspark where that is not needed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tflaunch.spark.spark_run import PROGRAM, RESULT

cloudpickle: Any = pytest.importorskip("pyspark.cloudpickle")


def called(place: Path, function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns in a task; raises AssertionError with its stderr."""
    (place / "function.py").write_text(PROGRAM)
    (place / "function.pickle").write_bytes(cloudpickle.dumps((function, args)))
    env = {**os.environ, "TFLAUNCH_TASK": "worker/3"}
    done = subprocess.run(
        [sys.executable, "function.py"], cwd=place, env=env, check=False, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    made = (place / RESULT.format(job="worker", index="3")).read_bytes()
    return pickle.loads(made)  # noqa: S301 - this test made it


def test_a_plain_function_does_not_wait_for_pyspark(tmp_path: Path) -> None:
    def adds(base: int) -> tuple[int, bool]:
        return base + 1, "py4j" in sys.modules

    assert called(tmp_path, adds, 2) == (3, False)


def test_a_function_that_wants_pyspark_has_all_of_it(tmp_path: Path) -> None:
    from pyspark.sql import Row

    def reads(row: Any) -> tuple[int, str, bool]:
        import pyspark
        from pyspark import cloudpickle as one
        from pyspark.sql import SparkSession

        return (
            row.a,
            pyspark.__version__,
            one is sys.modules["pyspark.cloudpickle"] and SparkSession is not None,
        )

    import pyspark

    assert called(tmp_path, reads, Row(a=7)) == (7, pyspark.__version__, True)


def test_a_function_whose_module_has_imported_pyspark(tmp_path: Path) -> None:
    """Which comes by its name, and is what it was before all of it was there."""
    import pyspark

    def tells() -> str:
        return pyspark.sql.Row(a=pyspark.__version__).a  # type: ignore[no-any-return]

    assert called(tmp_path, tells) == pyspark.__version__


def test_what_a_function_raises_is_its_own(tmp_path: Path) -> None:
    def fails() -> None:
        raise ValueError("of the user's own")

    with pytest.raises(AssertionError, match=r"in fails[\s\S]*ValueError: of the user's own"):
        called(tmp_path, fails)
