"""Tasks that truncate their own logs, as a user sees it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.launcher import Launcher

ROTATES = """
    import os, time
    for generation in range(3):
        for number in range(500):
            print("generation", generation, "line", number, flush=True)
        while not os.path.exists(os.path.join(os.environ["OUT"], str(generation))):
            time.sleep(0.01)
        os.truncate("/proc/self/fd/1", 0)
    print("the end", flush=True)
"""
LINES = [f"generation {generation} line {number}" for generation in range(3) for number in range(500)]


def test_a_run_whose_task_truncates_its_log_shows_and_records_all_of_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    words = (launcher.local(1), launcher.script(ROTATES), "--ps=0", "--workers=1", f"--env=OUT={out}")
    with launcher.start("run", *words) as running:
        for generation in range(3):
            running.wait_for(f"generation {generation} line 499")
            (out / str(generation)).touch()
        done = running.done().ran()
    shown = [line.partition("│ ")[2] for line in done.out.splitlines() if line.startswith("worker/0")]
    assert [line for line in shown if line in {*LINES, "the end"}] == [*LINES, "the end"]
    [record] = launcher.records()
    log = record / "logs" / "worker-0.log"
    assert log.read_text().splitlines() == [*LINES, "the end"]
    said = re.findall(
        r"worker/0 on local1 truncated its own log at \d\d:\d\d: what it wrote before is in (\S+)",
        done.sentences,
    )
    assert said == [str(log)] * 3
    attached = launcher.run("logs", record.name).ran()
    assert "the end" in attached.out
    assert attached.sentences.count("truncated its own log") == 1
    assert "what it wrote before is there no more" in attached.sentences
