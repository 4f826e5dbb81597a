"""What a standalone master tells without an application: of its workers by Spark's own RPC, as its web page asks it;
by that page, which of them are gone, and the version of Spark.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 10.0  # for a master to answer
_PATIENCE = ("spark.rpc.askTimeout", "spark.rpc.lookupTimeout", "spark.rpc.io.connectionTimeout")
PAGE_PORT = 8080  # of a master's web page, unless it is told another
PAGE_S = 1.0  # to connect for that page, while all is well
LAST_PAGE_S = 5.0  # where it is all that may answer
PAGE_BYTES = 65536  # of its beginning, which has the version
GONE = ("DEAD", "DECOMMISSIONED")  # states of workers; of UNKNOWN are all while a master recovers
STANDBY = "STANDBY"
VERSION = 40  # characters of it, at most
JSON_BYTES = 16 * 1024 * 1024  # of the same for programs, which has every worker


@dataclass(frozen=True)
class SlotSize:
    """What each slot is to have."""

    cores: int
    gpus: int
    memory: str  # of the executor's JVM, as Spark writes it; "": Spark's own default


class SparkMaster:
    """One of the masters of a standalone Spark.

    jvm: of this process.  conf: a SparkConf there, of the application that is wanted.  address: `HOST:PORT`.
    """

    def __init__(self, jvm: Any, conf: Any, address: str) -> None:
        self._jvm, self._conf = jvm, conf.clone()
        for key in _PATIENCE:
            self._conf.set(key, f"{PATIENCE_S:.0f}s")
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._page_port, self._page_s = PAGE_PORT, LAST_PAGE_S

    def room(self, size: SlotSize) -> tuple[int, int]:
        """How many slots of this size its workers have: in all, and not in use.  Raises what py4j raises.

        Raises RuntimeError where another master is the active one.
        """
        with self._environment() as environment:
            address = self._jvm.org.apache.spark.rpc.RpcAddress(self._host, self._port)
            endpoint = environment.setupEndpointRef(address, "Master")
            with contextlib.suppress(Exception):  # py4j's: a master of another version need not understand it
                ports = self._ask(
                    endpoint, "master.MasterMessages", "BoundPortsRequest", "BoundPortsResponse"
                )
                self._page_port = ports.webUIPort()
            state = self._ask(endpoint, "DeployMessages", "RequestMasterState", "MasterStateResponse")
            self._page_s = PAGE_S
        if state.status().toString() == STANDBY:
            raise RuntimeError(f"{self._host} is on standby")
        memory = int(self._conf.getSizeAsMb("spark.executor.memory", "1g"))
        total = cores = 0
        gone = gone_workers(self._host, self._page_port)
        for worker in state.workers():
            if worker.id() in gone:
                continue
            found = worker.resourcesInfo().get("gpu")
            gpus = len(found.get().addresses()) if found.isDefined() else 0
            by_memory = worker.memory() // memory
            by_gpus = gpus // size.gpus if size.gpus else by_memory
            total += min(worker.cores() // size.cores, by_memory, by_gpus)
            cores += worker.cores()
        # What is in use the master does not send; what applications want, it does.
        wanted = 0
        for application in state.activeApps():
            most = application.desc().maxCores()
            wanted += most.get() if most.isDefined() else cores
        return total, min(total, max(0, cores - wanted) // size.cores)

    def version(self) -> str:
        """That of Spark there; "": nobody tells it.  After `room`, which finds at which port to ask, and how long."""
        return page_version(self._host, self._page_port, self._page_s)

    def _ask(self, endpoint: Any, messages: str, question: str, answer: str) -> Any:
        """What it answers to an object of these messages, of that class."""
        scope = f"org.apache.spark.deploy.{messages}$"
        forName = self._jvm.java.lang.Class.forName
        tag = self._jvm.scala.reflect.ClassTag.apply(forName(f"{scope}{answer}"))
        return endpoint.askSync(forName(f"{scope}{question}$").getField("MODULE$").get(None), tag)

    @contextlib.contextmanager
    def _environment(self) -> Iterator[Any]:
        """An RpcEnv that only dials."""
        spark, conf = self._jvm.org.apache.spark, self._conf
        manager = spark.SecurityManager
        no_key = getattr(manager, "$lessinit$greater$default$3")()
        security = manager(conf, self._jvm.scala.Option.empty(), no_key)
        environment = spark.rpc.RpcEnv.create("tflaunch", "localhost", -1, conf, security, True)
        try:
            yield environment
        finally:
            environment.shutdown()


def page_version(host: str, port: int, patience_s: float) -> str:
    """The version that a master's web page shows; "": there is no such page."""
    page = _page(host, port, "/", patience_s, PAGE_BYTES)
    if "Spark Master" not in page:
        return ""
    shown = page.partition('class="version')[2].partition(">")[2].partition("<")[0].strip()
    return shown[:VERSION] if shown[:1].isdigit() else ""


def gone_workers(host: str, port: int) -> set[str]:
    """The ids of workers that a master's web page has, and that are not there; none: there is no such page.

    Spark's RPC does not tell: whoever reads a worker's description takes it for alive.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        said = json.loads(_page(host, port, "/json/", PAGE_S, JSON_BYTES))
        return {str(worker["id"]) for worker in said["workers"] if worker["state"] in GONE}
    return set()


def _page(host: str, port: int, path: str, patience_s: float, size: int) -> str:
    """The beginning of that page of a master's; "": it does not come.  `patience_s`: until it takes the connection."""
    with contextlib.suppress(OSError, http.client.HTTPException, UnicodeError):
        line = http.client.HTTPConnection(host.strip("[]"), port, timeout=patience_s)
        with contextlib.closing(line):
            line.connect()
            line.sock.settimeout(LAST_PAGE_S)
            # A page that comes a byte at a time meets no timeout of the socket's.
            limit = threading.Timer(2 * LAST_PAGE_S, line.sock.shutdown, (socket.SHUT_RDWR,))
            limit.daemon = True
            limit.start()
            try:
                line.request("GET", path)
                return line.getresponse().read(size).decode("utf-8", "replace")
            finally:
                limit.cancel()
    return ""


def minor(version: str) -> str:
    """Spark of one minor version is one: others do not read each other's messages."""
    return ".".join(version.split(".")[:2])
