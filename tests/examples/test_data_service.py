"""The example of tf.data service: its servers are told their ports and the dispatcher by placeholders."""

from __future__ import annotations

import re

from tests.support import ROOT
from tests.support.frameworks import WITHOUT_KERAS
from tests.support.launcher import Launcher

EXAMPLE = ROOT / "examples/data_service.py"
SERVER = ROOT / "examples/data_server.py"


def test_workers_share_the_records_that_readers_prepare(launcher: Launcher) -> None:
    own = [f"--job-program={job}={SERVER}" for job in ("dispatcher", "reader")]
    words = (
        "--job=dispatcher=1",
        "--job=reader=1",
        "--job-args=dispatcher=--port={port}",
        "--job-args=reader=--port={port} --address={address} --dispatcher={dispatcher_hosts}",
        "--env=DATA_SERVICE={dispatcher_hosts}",
        WITHOUT_KERAS,
    )
    done = launcher.run(
        "run",
        launcher.local(1),
        EXAMPLE,
        "--ps=0",
        "--workers=2",
        "--no-flags",
        *own,
        *words,
        "--",
        "--records=200",
    ).ran()
    shares = re.findall(r"^worker/\d +│ read (\d+) records, sum (\d+)$", done.out, re.MULTILINE)
    assert len(shares) == 2
    assert sum(int(count) for count, _ in shares) == 200
    assert sum(int(part) for _, part in shares) == 200 * 199 * 198 // 6
