"""What a standalone Spark's web page tells of its version, and what the user hears of another one than pyspark's."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tflaunch.engines import spark_driver, spark_master
from tflaunch.engines.spark_driver import SparkDriver
from tflaunch.engines.spark_master import SlotSize, SparkMaster, gone_workers, page_version
from tflaunch.protocol.errors import ConnectError, PlanError

# The top of a master's page, as Spark 4.2 and 3.5 write it.
OF_4 = '<h3><a href="/"><img src="/static/spark-logo.svg"/>\n<span class="version me-3">4.2.0</span></a> Spark Master'
OF_3 = (
    '<a href="/"><img/>\n<span class="version" style="margin-right: 15px;">3.5.9</span></a>\nSpark Master at'
)
SLOTS = (2, 1)


@contextlib.contextmanager
def served(page: str) -> Iterator[int]:
    """The port of a web server with that page."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(
    ("page", "version"),
    [
        (OF_4, "4.2.0"),
        (OF_3, "3.5.9"),
        ("<html>hello", ""),
        ('<span class="version">2.1</span> of another program', ""),
    ],
)
def test_the_version_that_a_page_shows(page: str, version: str) -> None:
    with served(page) as port:
        assert page_version("127.0.0.1", port, PATIENCE_S) == version


@pytest.mark.parametrize(
    ("page", "gone"),
    [
        ('{"workers": [{"id": "w-1", "state": "ALIVE"}, {"id": "w-2", "state": "DEAD"}]}', {"w-2"}),
        ('{"workers": [{"id": "w-1"}]}', set()),
        ('{"workers": [{"id": "w-1", "state": "UNKNOWN"}]}', set()),  # the master recovers
        ("[" * 100_000, set()),
        ("<html>", set()),
    ],
)
def test_the_workers_that_a_page_calls_gone(page: str, gone: set[str]) -> None:
    with served(page) as port:
        assert gone_workers("127.0.0.1", port) == gone


def test_no_page() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert page_version("127.0.0.1", port, PATIENCE_S) == ""
    assert page_version("[::1]", port, PATIENCE_S) == ""
    assert gone_workers("127.0.0.1", port) == set()


def asked(
    monkeypatch: pytest.MonkeyPatch,
    there: str,
    here: str,
    *,
    answers: bool,
    why: str = "java.io.InvalidClassException: local class incompatible",
) -> Any:
    """What a driver of that pyspark finds at a master of that version, which answers or does not understand it."""

    def room(*_: object) -> tuple[int, int]:
        if not answers:
            raise RuntimeError(why)
        return SLOTS

    conf = SimpleNamespace(set=lambda *_: None)
    conf.clone = lambda: conf
    jvm = SimpleNamespace(
        org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(SparkConf=lambda _: conf)))
    )
    pyspark = SimpleNamespace(
        __version__=here, SparkContext=SimpleNamespace(_gateway=None, _active_spark_context=None)
    )
    monkeypatch.setattr(spark_driver, "_pyspark", lambda: pyspark)
    monkeypatch.setattr(SparkDriver, "_gateway", lambda *_: SimpleNamespace(jvm=jvm))
    monkeypatch.setattr(SparkMaster, "room", room)
    monkeypatch.setattr(spark_master, "page_version", lambda *_: there)
    return SparkDriver("//master:7077", "x", 2, SlotSize(1, 0, ""), {}).room()


@pytest.mark.parametrize(
    ("there", "here", "answers"),
    [("4.2.0", "4.3.0", True), ("3.5.9", "4.3.0", False), ("4.2.0", "4.2.1", False)],
)
def test_another_version_than_the_clusters_is_named(
    monkeypatch: pytest.MonkeyPatch, there: str, here: str, answers: bool
) -> None:
    with pytest.raises(PlanError) as caught:
        asked(monkeypatch, there, here, answers=answers)
    assert f"the cluster's Spark is {there}, and pyspark here is {here}" in caught.value.message
    assert f"pyspark=={there}" in caught.value.hint


@pytest.mark.parametrize(("there", "here"), [("4.2.0", "4.2.0"), ("4.2.1", "4.2.0"), ("", "4.3.0")])
def test_a_version_that_does(monkeypatch: pytest.MonkeyPatch, there: str, here: str) -> None:
    """Spark's bug fixes understand each other; a master whose page nobody reaches is taken at its word."""
    assert asked(monkeypatch, there, here, answers=True) == SLOTS


def test_a_master_of_another_bug_fix_that_does_not_answer_for_another_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConnectError, match="does not answer: authentication failed"):
        asked(monkeypatch, "4.2.0", "4.2.1", answers=False, why="authentication failed")


def test_a_master_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectError, match=r"does not answer: .*local class incompatible"):
        asked(monkeypatch, "", "4.3.0", answers=False)
