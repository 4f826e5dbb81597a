"""Play causes: `scripts/diagnosis [--only PATTERN] [--group GROUP] [--jobs N] [--record DIR] [--keep DIR]`.

Exit code 1 when tflaunch warned of a healthy run, or one did not end well.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.diagnosis.catalogue import CAUSES
from tests.diagnosis.causes import GROUPS, HEALTHY, Cause
from tests.diagnosis.score import score
from tests.support.bed import missing

PLAYED: set[subprocess.Popen[str]] = set()
MOST_S = 900.0  # a cause that takes longer is ended: something is wrong with it


def main() -> int:
    """Play what was asked for."""
    parser = argparse.ArgumentParser(prog="scripts/diagnosis", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", default="", help="causes whose name has that")
    parser.add_argument("--group", choices=GROUPS, action="append", help="repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time (%(default)s)")
    parser.add_argument("--record", type=Path, metavar="DIR", help="note what the watchdogs are told")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what each run said")
    parser.add_argument("--again", type=Path, metavar="DIR", help="play none: score what --keep has kept")
    parser.add_argument("--patience", type=float, metavar="S", help="not 150 s, from a fault to its name")
    parser.add_argument("--list", action="store_true", help="print the causes and play none")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what was said")
    asked = parser.parse_args()
    causes = [
        cause
        for cause in CAUSES
        if re.search(asked.only, cause.name) and cause.group in (asked.group or GROUPS)
    ]
    if asked.list:
        for cause in causes:
            print(f"{cause.group:9} {cause.name:34} {cause.story}")
        return 0
    if asked.again:
        return _table(
            [_again(cause, path) for cause in causes if (path := asked.again / f"{cause.name}.json").exists()]
        )
    if reason := missing():
        sys.exit(reason)
    for directory in (asked.record, asked.keep):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = []
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        jobs = [pool.submit(_play, cause, asked) for cause in causes]
        try:
            for job in concurrent.futures.as_completed(jobs):
                results.append(job.result())
                _show(results[-1], len(results), len(causes), asked)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*PLAYED]:
                process.terminate()  # it takes its bed down
    return _table(results)


def _play(cause: Cause, asked: argparse.Namespace) -> dict[str, Any]:
    """Play one in a process of its own, so that whatever becomes of it ends with that."""
    words = [sys.executable, "-m", "tests.diagnosis.play", cause.name]
    if asked.record:
        record = (asked.record / f"{cause.name}.jsonl").resolve()
        record.unlink(missing_ok=True)
        words += ["--record", str(record)]
    if asked.patience:
        words += ["--patience", str(asked.patience)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    PLAYED.add(process)
    try:
        out, errors = process.communicate(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, errors = process.communicate()
    PLAYED.discard(process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        about = {"name": cause.name, "group": cause.group, "score": None, "verdict": "not played"}
        return {**about, "code": None, "seconds": 0.0, "said_s": None, "said": errors, "log": ""}
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def _again(cause: Cause, path: Path) -> dict[str, Any]:
    """A result of old, with the score that its sentences have now."""
    result: dict[str, Any] = json.loads(path.read_text())
    if result["score"] is not None:
        result["score"] = score(cause, result["said"])
    return result


def _show(result: dict[str, Any], number: int, count: int, asked: argparse.Namespace) -> None:
    points = "-" if result["score"] is None else result["score"]
    said = f", said after {result['said_s']:.0f} s" if result["said_s"] is not None else ""
    code = "stopped" if result["code"] is None else f"exit code {result['code']}"
    print(
        f"{number:3}/{count} {points} {result['group']:9}{result['name']:34} {result['verdict'] or ''} "
        f"({result['seconds']:.0f} s, {code}{said})",
        flush=True,
    )
    if asked.verbose or result["verdict"] in ("not played", "broken", "warned", "did not happen"):
        print("".join(f"      {line}\n" for line in result["said"].splitlines()[-25:]), flush=True)
    if asked.keep:
        (asked.keep / f"{result['name']}.json").write_text(json.dumps(result, indent=1))
        (asked.keep / f"{result['name']}.txt").write_text(f"{result['log']}\n-----\n{result['said']}")


def _table(results: list[dict[str, Any]]) -> int:
    by_score = collections.defaultdict(list)
    for result in results:
        by_score[result["group"], result["score"]].append(result["name"])
    print()
    had = most = 0
    for group in GROUPS:
        mine = [result for result in results if result["group"] == group]
        if not mine:
            continue
        if group == HEALTHY:
            well = sum(result["verdict"] == "healthy" for result in mine)
            print(f"{group:9} {well} of {len(mine)} runs without a warning")
            continue
        points = sum(result["score"] or 0 for result in mine)
        played = 2 * sum(result["score"] is not None for result in mine)
        had, most = had + points, most + played
        print(f"{group:9} {points} of {played}")
        for value in (1, 0, None):
            if names := by_score[group, value]:
                print(f"    {'-' if value is None else value}: {', '.join(sorted(names))}")
    print(f"{'all':9} {had} of {most}")
    return int(any(r["group"] == HEALTHY and r["verdict"] != "healthy" for r in results))


if __name__ == "__main__":
    sys.exit(main())
