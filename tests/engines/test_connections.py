"""A record that names a connection which this tflaunch has not: nothing is started, least of all on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.support.launcher import Launcher


def test_a_record_with_an_unknown_connection(launcher: Launcher, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\ntouch {asked}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = launcher.script("import time; print('begins', flush=True); time.sleep(600)")
    words = (launcher.local(1), script, "--ps=0", "--workers=1", "-d")
    path = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    run = launcher.run("run", *words, env=path).ran().out.strip()
    record = launcher.state / run / "run.json"
    good = record.read_text()
    told = json.loads(good)
    told["hostfile"]["hosts"][0]["connection"] = "nosuch"
    record.write_text(json.dumps(told))
    before = {each.pid for each in launcher.leftovers(run)}
    asked.unlink()
    for verb in ("stop", "status", "logs", "attach", "stacks"):
        wrong = launcher.run(verb, run, env=path).ran(2)
        assert "local1: there is no connection 'nosuch'" in wrong.sentences
        assert "this one has ssh, openssh, local" in wrong.sentences
    assert not asked.exists()
    after = {each.pid for each in launcher.leftovers(run)}
    assert after and after <= before  # what only started it may have ended
    record.write_text(good)
    launcher.run("stop", run, env=path).ran()
    assert asked.exists()  # whatever is started here asks for it
