"""Play the matrix: `scripts/attack [--only TYPE] [--scenario NAME] [--case CASE] [--each N] [--seed N] [--jobs N]`."""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import shlex
import sys
import time
from pathlib import Path

from tests.hostile.cases import Case, matrix, selection
from tests.hostile.replay import breaches, play


def main() -> int:
    """Returns 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="scripts/attack", description=__doc__)
    parser.add_argument("--only", metavar="TYPE", help="only messages of that type")
    parser.add_argument("--path", help="only fields whose path begins so")
    parser.add_argument("--scenario", help="only that scenario")
    parser.add_argument("--case", action="append", help="only that case; repeatable")
    parser.add_argument(
        "--cases", type=argparse.FileType(), help="the cases in that file, one a line; -: stdin"
    )
    parser.add_argument("--json", action="store_true", help="the breaches as one JSON document")
    parser.add_argument("--each", type=int, metavar="N", help="not all: N cases of each field")
    parser.add_argument("--most", type=int, metavar="N", help="not all: so many, at random")
    parser.add_argument("--fast", action="store_true", help="none that waits for a time limit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=3 * (os.cpu_count() or 1))
    parser.add_argument("--keep", type=Path, help="keep what was played on, below this directory")
    parser.add_argument("--list", action="store_true", help="print the cases and play none")
    asked = parser.parse_args()
    if asked.cases:
        cases = [Case.parse(line) for line in asked.cases.read().splitlines()]
    elif asked.case:
        cases = [Case.parse(text) for text in asked.case]
    else:
        cases = [
            case
            for case in (selection(asked.seed, asked.each) if asked.each else matrix())
            if asked.only in (None, case.mutation.type)
            and asked.scenario in (None, case.scenario)
            and case.mutation.path.startswith(asked.path or "")
            and not (asked.fast and case.mutation.slow)
        ]
        random.Random(asked.seed).shuffle(cases)  # noqa: S311
        cases = cases[: asked.most]
    if asked.list:
        print("\n".join(map(str, cases)))
        return 0
    if asked.json:
        broken = [breach for seen in play(cases, asked.jobs, asked.keep) for breach in breaches(seen)]
        print(json.dumps([{"case": breach.case, "what": breach.what} for breach in broken], indent=1))
        return bool(broken)
    return _attack(cases, asked)


def _attack(cases: list[Case], asked: argparse.Namespace) -> int:
    began = time.monotonic()
    kinds: collections.Counter[str] = collections.Counter()
    example: dict[str, str] = {}
    played = untold = 0
    for seen in play(cases, asked.jobs, asked.keep):
        played += 1
        untold += not seen.told
        for breach in breaches(seen):
            kind = re.sub(
                r"'[^']*'|\"[^\"]*\"|[0-9a-f]{8,}-?[0-9a-f]*|\d+(\.\d+)? (?=s|MB)", "…", breach.what
            )
            kinds[kind] += 1
            example.setdefault(kind, breach.case)
            print(f"{breach.what}\n    scripts/attack --case {shlex.quote(breach.case)}", flush=True)
        if asked.case:
            print(
                f"exit code {seen.code}, {seen.seconds:.1f} s", seen.out.decode("utf-8", "replace"), sep="\n"
            )
            print(seen.err.decode("utf-8", "replace"))
        elif played % 200 == 0:
            print(f"... {played} of {len(cases)}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    seconds = time.monotonic() - began
    print(
        f"{played} cases in {seconds:.0f} s ({untold} in which the lie was not told): {kinds.total()} breaches"
    )
    for what, count in kinds.most_common():
        print(f"{count:6}  {what}    {shlex.quote(example[what])}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
