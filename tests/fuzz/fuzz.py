"""Try parsers for longer: `scripts/fuzz [TARGET...] [--minutes N]`; what is found is kept in tests/fuzz/cases."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.targets import BY_NAME, CASES, Target, inputs, try_one
from tests.support import ROOT

ROUND = 500  # examples; each round begins elsewhere


def main() -> int:
    """Returns 1 when something was found."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(BY_NAME))
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together [10]")
    asked = parser.parse_args()
    targets = [BY_NAME[name] for name in asked.targets or BY_NAME]
    found: dict[str, str] = {}
    for target in targets:
        tried = _fuzz(target, asked.minutes * 60 / len(targets), found)
        print(f"{target.name}: {tried:,} inputs", flush=True)
    for path, what in found.items():
        print(f"{path}\n    {what}")
    return 1 if found else 0


def _fuzz(target: Target, seconds: float, found: dict[str, str]) -> int:
    end = time.monotonic() + seconds
    seen: set[tuple[str, ...]] = set()
    last: list[tuple[bytes, Exception]] = []
    tried = 0
    with tempfile.TemporaryDirectory() as directory:

        def attempt(data: bytes) -> None:
            nonlocal tried
            tried += 1
            try:
                try_one(target, data, Path(directory))
            except Exception as error:
                place = _place(error)
                if place not in seen:  # each defect once; the shrunk input of it is kept
                    raise

        while time.monotonic() < end:
            last.clear()

            @seed(time.time_ns())
            @settings(
                max_examples=ROUND,
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
                print_blob=False,
            )
            @given(inputs(target))
            def run(data: bytes) -> None:
                try:
                    attempt(data)
                except Exception as wrong:
                    last.append((data, wrong))
                    raise

            try:
                run()
            except Exception:  # or Hypothesis's own, when it is slow only at times
                data, error = last[-1]
                seen.add(_place(error))
                path = CASES / target.name / hashlib.sha256(data).hexdigest()[:12]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                what = " ".join((*_place(error), str(error)[:100]))
                found[str(path.relative_to(ROOT))] = what
                print(f"{target.name}: {data[:100]!r}: {what}", flush=True)
    return tried


def _place(error: BaseException) -> tuple[str, ...]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tflaunch/" in frame.filename]
    where = f"{frames[-1].filename.rpartition('/tflaunch/')[2]}:{frames[-1].name}" if frames else ""
    return type(error).__name__, where, str(error)[:80] if isinstance(error, AssertionError) else ""


if __name__ == "__main__":
    sys.exit(main())
