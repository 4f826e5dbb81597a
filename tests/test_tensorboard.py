"""TensorBoard for a run: on the host of its chief, in the browser here, through the connection that there is."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.agent_over_pipes import PATIENCE_S, Host, running, shell
from tests.launcher import Launcher, Running, alive, until
from tests.sshd import SshNetwork
from tflaunch.agent import processes
from tflaunch.protocol import wire
from tflaunch.protocol.tcp_streams import MOST, WINDOW, Streams
from tflaunch.runs.tunnel import Tunnel

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
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own
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


def boards() -> list[int]:
    return [
        process.pid
        for process in processes.every().values()
        if b"tensorboard.main" in processes.command(process.pid)
    ]


@pytest.mark.timeout(300)  # TensorFlow is imported three times
def test_it_shows_a_run_while_it_goes_on_and_later(
    launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    if not all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
        pytest.skip("no TensorFlow here")
    host = network.add(options=["AllowTcpForwarding no"])
    hosts = launcher.hostfile([host.name], python=sys.executable)
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
        run.wait_for("no TensorBoard on local1: it ended with code 1; install it for the python of the tasks")
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
    assert launcher.run_directories() == []
    done = launcher.run("run", launcher.local(1), launcher.script(""), "--tensorboard=x", "-d").ran(2)
    assert "this command does not stay to show it" in done.err


@pytest.mark.parametrize("how", ["the channel ends", "its process is killed"])
def test_nothing_of_it_outlives_who_looks_at_it(host: Host, how: str) -> None:
    channel = host.start()
    running(channel, shell("exit 0", env={"PATH": os.environ["PATH"]}))
    channel.wait("exit")
    plan = host.directory / "plan.json"
    told = json.loads(plan.read_text())
    told["tasks"][0]["argv"][0] = sys.executable
    plan.write_text(json.dumps(told))
    channel.ask("end", grace_s=0.0, stacks=False, answer="swept")
    channel.leave()
    before = set(boards())
    visit = host.open("visit", run="", host="")
    visit.wait("hello")
    visit.ask("board", run=host.run, host="h1", logdir=".", answer="hello")
    [pid] = until(lambda: set(boards()) - before, "TensorBoard")
    process = processes.read(pid)
    assert process
    if how == "the channel ends":
        visit.close()
    else:
        os.kill(process.parent, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")


# ---- connections in frames


class Ends:
    """Two ends of a wire, and a loop for both: `near` is where connections come from."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.under_way: list[tuple[str, wire.Message]] = []
        self.held = False  # nothing arrives
        self.near = Streams(self.selector, lambda *a, **k: self._send("far", *a, **k))
        self.far = Streams(self.selector, lambda *a, **k: self._send("near", *a, **k))

    def _send(self, to: str, type: str, body: bytes = b"", **fields: object) -> None:
        self.under_way.append((to, wire.Message(type, fields, body)))

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()
        while self.under_way and not self.held:
            to, message = self.under_way.pop(0)
            (self.near if to == "near" else self.far).take(message)

    def pair(self, number: int) -> tuple[socket.socket, socket.socket]:
        """A connection: what the browser has of it, and what the server has."""
        browser, near = socket.socketpair()
        far, server = socket.socketpair()
        self.near.add(number, near)
        self.far.add(number, far)
        browser.settimeout(30)
        server.settimeout(30)
        return browser, server


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.near.close()
    ends.far.close()
    ends.selector.close()


def test_a_slow_reader_holds_up_its_own_connection_only(ends: Ends) -> None:
    slow, talker = ends.pair(1)
    quick, server = ends.pair(2)
    talker.setblocking(False)
    sent = 0
    for _ in range(200):
        with contextlib.suppress(BlockingIOError):
            sent += talker.send(bytes(65536))
        ends.turn()
    assert WINDOW <= sent < 16 * WINDOW  # what the sockets on the way hold, and one window
    server.sendall(b"hello")
    ends.turn()
    ends.turn()
    assert quick.recv(5) == b"hello"
    for each in (slow, talker, quick, server):
        each.close()


def test_each_direction_ends_by_itself(ends: Ends) -> None:
    browser, server = ends.pair(1)
    data = os.urandom(3 * WINDOW)

    stop = threading.Event()
    answered: list[bytes] = []

    def ask() -> None:
        browser.sendall(data)
        browser.shutdown(socket.SHUT_WR)
        answered.append(b"".join(iter(lambda: browser.recv(65536), b"")))
        stop.set()

    def answer() -> None:
        came = b"".join(iter(lambda: server.recv(65536), b""))
        server.sendall(came[::-1])
        server.close()

    threads = [threading.Thread(target=ask), threading.Thread(target=answer)]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        ends.turn()
    for thread in threads:
        thread.join()
    assert answered == [data[::-1]]
    browser.close()


def test_a_connection_that_cannot_be_made_is_cut(ends: Ends) -> None:
    browser, near = socket.socketpair()
    ends.near.add(1, near)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ends.far.connect(1, port)
    browser.setblocking(False)

    def ended() -> bool:
        ends.turn()
        with contextlib.suppress(BlockingIOError):
            return browser.recv(1) == b""
        return False

    until(ended, "its end")
    browser.close()
    pairs = [ends.pair(number) for number in range(2, MOST + 4)]
    for _ in range(5):
        ends.turn()
    assert pairs[-1][0].recv(1) == b""  # there is a limit
    for pair in pairs:
        for each in pair:
            each.close()


def test_without_a_free_descriptor_a_connection_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, int]] = []
    streams = Streams(selectors.DefaultSelector(), lambda type, stream: said.append((type, stream)))

    def full() -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("tflaunch.protocol.tcp_streams.socket.socket", full)
    streams.connect(7, 1)
    assert said == [("cut", 7)]


def test_who_calls_in_the_moment_in_which_the_wire_is_lost_waits_for_the_next_one() -> None:
    said: SimpleQueue[tuple[str, int]] = SimpleQueue()
    with contextlib.closing(Tunnel()) as tunnel:
        port = int(tunnel.url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            tunnel._accept()  # as a loop does that was woken for both
            tunnel.begin(lambda type, *_, stream: said.put((type, stream)))
            assert said.get(timeout=PATIENCE_S) == ("connect", 1)


def test_a_launcher_without_epoll_shows_it_too(
    launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    if not all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
        pytest.skip("no TensorFlow here")
    (tmp_path / "sitecustomize.py").write_text(  # as `select` is on macOS
        "import select\n"
        "for name in [name for name in dir(select) if 'epoll' in name.lower()]:\n    delattr(select, name)\n"
    )
    hosts = launcher.hostfile([network.add().name], python=sys.executable)
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
