"""The rendezvous of a Horovod program: a key-value store over HTTP, in a process of its own beside the agent.

Horovod sends an address, a port, `/scope/key` and bytes, and nothing that would prove who it is.  So a stranger is told
by what is left: the address that it calls from must be one of the run's hosts, and what one address has written no
other writes over or removes.  Who shares a host with a task is not told from it.  Each start of the tasks has a new
store, so that no address of an earlier one is left in it.
"""

import os

from tflaunch.agent.host import processes
from tflaunch.agent.host.aside import Aside
from tflaunch.agent.net import ports
from tflaunch.protocol.light_stdlib import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional, Set, Tuple

    Key = Tuple[str, str]

VALUE_BYTES = 4 << 20  # 136 for each other task
STORE_BYTES = 256 << 20
ENTRY_BYTES = 200  # that an entry takes beside its key and value
ANSWER_S = 20.0  # for one request, from its connection on
CALLERS = 128  # connections of one address at a time
HEADER = 4096, 32  # bytes of a line of a request's head, and such lines; Horovod sends 3
BUSY_S = 0.05  # where no descriptor is left


class Store:
    """The values by scope and key."""

    def __init__(self) -> None:
        self._values = {}  # type: Dict[Key, bytes]
        self._writers = {}  # type: Dict[Key, str]  # the address that has written it
        self._finished = {}  # type: Dict[str, Set[str]]  # scope -> the tasks that need it no more
        self._bytes = 0

    def get(self, scope: str, key: str) -> "Optional[bytes]":
        return self._values.get((scope, key))

    def put(self, scope: str, key: str, value: bytes, writer: str = "") -> bool:
        """Whether the value is kept: not where another address has written, nor where there is no more room.

        A task that was being ended may have written after rank 0's end: its next attempt writes over that.
        """
        if self._writers.get((scope, key), writer) != writer:
            return self._values[scope, key] == value
        before = self._values.get((scope, key))
        size = self._size(scope, key, value) - (0 if before is None else self._size(scope, key, before))
        if self._bytes + size > STORE_BYTES:
            return False
        self._bytes += size
        self._values[scope, key] = value
        self._writers[scope, key] = writer
        return True

    @staticmethod
    def _size(scope: str, key: str, value: bytes) -> int:
        return len(scope) + len(key) + len(value) + ENTRY_BYTES

    def finish(self, scope: str, key: str, writer: str = "") -> None:
        """That task needs the scope no more: once that is true of each that has written there, it is emptied.

        All have met there before the first one says so.  From any but its writer it is ignored.
        """
        if self._writers.get((scope, key)) != writer:
            return
        finished = self._finished.setdefault(scope, set())
        finished.add(key)
        mine = [each for each in self._values if each[0] == scope]
        if all(name in finished for _, name in mine if name.isdigit()):
            for each in mine:
                self._bytes -= self._size(each[0], each[1], self._values.pop(each))
                del self._writers[each]
            del self._finished[scope]


def _plain(address: str) -> str:
    """An IPv4 address that an IPv6 socket tells, as others write it; without the interface of a link-local one."""
    return address.partition("%")[0].replace("::ffff:", "", 1)


def serve(listening: socket.socket, peers: "Iterable[str]", parent: int) -> None:
    """Answer the callers from these addresses, until this process's parent, of that pid, has ended."""
    # Only the process that serves loads these.
    import http.client
    import http.server
    import socket as whole_socket
    import socketserver
    import threading
    import time

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a caller that does not wait for its answer
    http.client._MAXLINE, http.client._MAXHEADERS = HEADER  # type: ignore[attr-defined]  # else 6 MB for each caller
    allowed, lock, store = set(peers), threading.Lock(), Store()
    callers = {}  # type: Dict[Any, Tuple[str, float]]  # connection -> its address, and since when it is there
    arriving = [0]  # bytes of bodies that are being read

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = ANSWER_S

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _place(self) -> "Optional[Key]":
            parts = self.path.split("/")
            if len(parts) == 3 and not parts[0] and parts[1] and parts[2] and len(self.path) < 1000:
                return parts[1], parts[2]
            self._answer(400)
            return None

        def do_GET(self) -> None:
            place = self._place()
            if place:
                with lock:
                    value = store.get(*place)
                if value is None:
                    self._answer(404)
                else:
                    self._answer(200, value)

        def do_PUT(self) -> None:
            place = self._place()
            if not place:
                return
            length = self.headers.get("Content-Length") or ""
            if not (length.isdigit() and len(length) < 10 and int(length) <= VALUE_BYTES):
                self._answer(413)
                return
            size = int(length)
            with lock:
                room = arriving[0] + size <= STORE_BYTES
                arriving[0] += size if room else 0
            if not room:
                self._answer(503)
                return
            try:
                value = self.rfile.read(size)
            finally:
                with lock:
                    arriving[0] -= size
            if len(value) < size:
                return
            with lock:
                kept = store.put(place[0], place[1], value, _plain(self.client_address[0]))
            self._answer(200 if kept else 403)

        def do_DELETE(self) -> None:
            place = self._place()
            if place:
                with lock:
                    store.finish(place[0], place[1], _plain(self.client_address[0]))
                self._answer(200)

        def log_message(self, *_: object) -> None:
            pass

    class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
        daemon_threads = True

        def get_request(self) -> "Any":
            try:
                return super().get_request()
            except OSError:  # no descriptor is left: the next turn comes at once
                time.sleep(BUSY_S)
                raise

        def verify_request(self, request: "Any", client_address: "Any") -> bool:
            address = _plain(client_address[0])
            with lock:
                if address not in allowed or [each for each, _ in callers.values()].count(address) >= CALLERS:
                    return False
                callers[request] = (address, time.monotonic())
            return True

        def shutdown_request(self, request: "Any") -> None:
            with lock:
                callers.pop(request, None)
            super().shutdown_request(request)

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a caller that has gone

        def service_actions(self) -> None:
            if os.getppid() != parent:
                os._exit(0)
            late = time.monotonic() - ANSWER_S
            with lock:
                for connection in [each for each, (_, since) in callers.items() if since < late]:
                    try:
                        connection.shutdown(whole_socket.SHUT_RDWR)  # its thread sees the end
                    except OSError:
                        pass  # the caller has gone

    server = Server(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = whole_socket.socket(fileno=listening.fileno())
    server.serve_forever()


class Rendezvous:
    """The store of the present attempt; its port stays open between two of them, so that none is refused."""

    def __init__(self, port: int, peers: "Iterable[str]") -> None:
        """Raises OSError where nothing can listen at that port."""
        self._peers = ["127.0.0.1", "::1", *peers]
        self._listening = ports.bind(port, socket.SO_REUSEPORT)
        self._process = None  # type: Optional[Aside]
        try:
            self._listening.listen(1024)
            self.renew()
        except OSError:
            self._listening.close()
            raise

    def renew(self) -> None:
        """Begin with an empty store.  Raises OSError."""
        self._end()
        agent = os.getpid()
        try:
            self._process = Aside(
                lambda: serve(self._listening, self._peers, agent), kept=self._listening.fileno()
            )
        except OSError:
            self._listening.close()  # whoever calls is refused, and does not wait
            raise

    def reaped(self, pid: int) -> bool:
        """Whether the child process that has ended was the one that serves."""
        ended = self._process is not None and self._process.reaped(pid)
        if ended:
            self._listening.close()  # whoever calls is refused, and does not wait
        return ended

    def close(self) -> None:
        """Stop to answer."""
        self._end()
        self._listening.close()

    def _end(self) -> None:
        aside = self._process
        process = processes.read(aside.pid) if aside is not None and aside.alive else None
        if aside is not None and process:
            processes.send(process, signal.SIGKILL)
            try:
                os.waitpid(aside.pid, 0)  # or it could still answer with what it has of the last attempt
            except ChildProcessError:
                pass
        self._process = None
