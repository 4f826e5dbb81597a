"""A real Horovod program of two ranks, by tflaunch and by horovodrun: how soon they have met, and how long it takes."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from bench.beds import TFLAUNCH, lab
from bench.measure import Failed, Figures, Table, interleave
from bench.plan import Plan
from tests.support.frameworks import HOROVOD

TRAINS = """\
import time
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
for step in range(20):
    total = hvd.allreduce(tf.ones([1 << 18]), op=hvd.Sum, name="gradient")
    if not step:
        print("met", time.time(), flush=True)
assert total.numpy()[0] == hvd.size()
"""
OURS = "tflaunch"


def horovod(plan: Plan) -> Iterator[Table]:
    """Both start it on two hosts, with Gloo, over SSH."""
    table = Table("A Horovod program, 2 hosts", OURS, ("first allreduce s", "wall s", "client CPU s"), 2)
    if not (HOROVOD / "horovod").is_dir():
        table.remarks.append("Horovod is not built: scripts/engines horovod")
        yield table
        return
    with lab() as own:
        names = own.hosts(2)
        place = own.shared / "horovod"  # horovodrun ships nothing
        place.mkdir()
        program = str(place / "trains.py")
        (place / "trains.py").write_text(TRAINS)
        hosts = own.file(
            "with-horovod.yaml", json.dumps({"defaults": {"python": sys.executable}, "hosts": names})
        )

        def method(words: Sequence[str]) -> Callable[[], Figures]:
            def once() -> Figures:
                begun = time.time()
                cost = own.run(*words).figures()
                met = re.findall(r"met ([\d.]+)", (own.directory / "output").read_text(errors="replace"))
                if len(met) < 2:
                    raise Failed(f"{len(met)} of 2 ranks have met")
                return {"first allreduce s": max(map(float, met)) - begun, **cost}

            return once

        ours = (TFLAUNCH, "run", hosts, program, "--workers=2", f"--env=PYTHONPATH={HOROVOD}")
        where = ("-np", "2", "-H", ",".join(f"{name}:1" for name in names), "--network-interfaces", "eth0")
        theirs = (
            "env",
            f"PYTHONPATH={HOROVOD}",
            sys.executable,
            "-m",
            "horovod.runner.launch",
            "--gloo",
            *where,
        )
        methods = {
            OURS: method(ours),
            "horovodrun --gloo": method((*theirs, "--disable-cache", sys.executable, program)),
        }
        yield interleave(table, methods, plan.rounds, plan.tell)
