"""TensorBoard for a run: on the host of its chief, in the browser here, through the connection that there is."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.frameworks import NO_KERAS
from tests.support.launcher import Launcher, Running
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import SshNetwork

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)


# Writes one scalar as TensorFlow does, and ends when $OUT/end is there.
SCALAR = """
    import os, time
    import tensorflow as tf
    with tf.summary.create_file_writer("logs/train").as_default():
        for step in range(5):
            tf.summary.scalar("loss", 1 / (step + 1), step=step)
    print("written", flush=True)
    while not os.path.exists(os.environ["OUT"] + "/end"):
        time.sleep(0.1)
"""


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - our own
        return bytes(answer.read())


def url_of(running: Running) -> str:
    running.wait_for("TensorBoard: ")
    found = re.search(r"http://127\.0\.0\.1:\d+/", running.err)
    assert found, running.err
    return found[0]


def losses(url: str) -> list[float]:
    """What TensorBoard has read, once it has."""

    def read() -> list[float]:
        with contextlib.suppress(OSError):  # it has not heard of that yet
            points = json.loads(get(f"{url}data/plugin/scalars/scalars?run=train&tag=loss"))
            return [value for _, _, value in points]
        return []

    found: list[float] = until(read, "the scalars in TensorBoard")
    return found


def test_it_shows_a_run_while_it_goes_on_and_later(
    launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    if not all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
        pytest.skip("no TensorFlow here")
    host = network.add(options=["AllowTcpForwarding no"])
    hosts = launcher.hostfile([host.name], python=sys.executable, env=NO_KERAS)
    words = (hosts, launcher.script(SCALAR), "--ps=0", "--workers=1", f"--env=OUT={tmp_path}")
    with launcher.start("run", *words, "--tensorboard=logs") as run:
        url = url_of(run)
        run.wait_for("written")
        assert losses(url) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
        page = get(url)
        assert b"<title>TensorBoard</title>" in page
        with ThreadPoolExecutor(12) as pool:  # megabytes, many at once
            scripts = set(pool.map(get, [f"{url}index.js"] * 12))
        assert len(scripts) == 1
        assert len(scripts.pop()) > 1_000_000
        host.kill_sessions()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(losses, url)  # who comes while it is away waits
            run.wait_for("host1 is back")
            assert len(waiting.result()) == 5
        if BROWSER:
            show = ["--headless", "--no-sandbox", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom"]
            budget = "--virtual-time-budget=15000"
            dom = subprocess.run(
                [BROWSER, *show, budget, url], capture_output=True, text=True, check=True
            ).stdout
            assert ">loss<" in re.sub(r"\s", "", dom)
        (tmp_path / "end").touch()
        assert run.end() == 0
    launcher.wait_until_nothing_is_left()
    [log] = launcher.hosts.glob("tflaunch-*/*/host1/logs/tensorboard-0.log")
    with launcher.start("tensorboard", run.run_id, "logs") as later:
        assert len(losses(url_of(later))) == 5
        assert (
            run.run_id not in launcher.run("ps", "-H", hosts).ran().out
        )  # it does not make the run live again
        later.interrupt()
        assert later.end() == 130
    launcher.wait_until_nothing_is_left()
    assert list(log.parent.glob("tensorboard*")) == [log]


def test_where_there_is_none_the_run_does_not_mind(launcher: Launcher, tmp_path: Path) -> None:
    python = "/usr/bin/python3"
    if (
        not os.access(python, os.X_OK)
        or not subprocess.run(
            [python, "-c", "import tensorboard"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no python3 without TensorBoard here")
    script = launcher.script("""
        import os, time
        while not os.path.exists(os.environ["OUT"] + "/end"):
            time.sleep(0.05)
    """)
    words = (launcher.local(1, python=python), script, "--ps=0", "--workers=1", f"--env=OUT={tmp_path}")
    with launcher.start("run", *words, "--tensorboard=logs") as run:
        run.wait_for("no TensorBoard on local1: it ended with code 1; the Python of the tasks there lacks it")
        (tmp_path / "end").touch()
        done = run.done().ran()
    assert "No module named" in done.err
    done = launcher.run("tensorboard", launcher.records()[0].name).ran(70)
    assert "No module named" in done.err
    launcher.wait_until_nothing_is_left()


def test_a_port_that_is_taken_is_said_before_anything_starts(launcher: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"--tensorboard-port={taken.getsockname()[1]}"
        done = launcher.run("run", launcher.local(1), launcher.script(""), "--tensorboard=x", port).ran(2)
    assert "Address already in use" in done.err
    launcher.wait_until_no_run_is_kept()
    done = launcher.run("run", launcher.local(1), launcher.script(""), "--tensorboard=x", "-d").ran(2)
    assert "this command does not stay to show it" in done.err


def test_a_launcher_without_epoll_shows_it_too(
    launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    if not all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
        pytest.skip("no TensorFlow here")
    (tmp_path / "sitecustomize.py").write_text(  # as `select` is on macOS
        "import select\n"
        "for name in [name for name in dir(select) if 'epoll' in name.lower()]:\n    delattr(select, name)\n"
    )
    hosts = launcher.hostfile([network.add().name], python=sys.executable, env=NO_KERAS)
    trainer = launcher.script("import os, time\nwhile not os.path.exists(os.environ['END']): time.sleep(0.1)")
    words = (hosts, trainer, "--ps=0", "--workers=1", f"--env=END={tmp_path / 'end'}", "--tensorboard=logs")
    with launcher.start("run", *words, env=launcher.env(PYTHONPATH=str(tmp_path))) as run:
        url = url_of(run)
        assert b"<title>TensorBoard</title>" in get(url)
        with ThreadPoolExecutor(4) as pool:
            scripts = set(pool.map(get, [f"{url}index.js"] * 4))
        assert len(scripts) == 1
        (tmp_path / "end").touch()
        assert run.end() == 0
    launcher.wait_until_nothing_is_left()
