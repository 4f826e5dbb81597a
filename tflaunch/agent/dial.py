"""The dial check: before any task starts, the hosts make the very connections that the tasks will make.

`Answering` listens on the ports that are held for the tasks (tflaunch.agent.net.ports) beside the holders, which do
not listen, and lets go of them again: afterwards connects are refused as before, until TensorFlow listens.
`Dialling` connects to a list of targets, some at a time, and tells for each what came of it.

Whoever answers proves that it is the agent of the host that was meant: a keyed SHA-256, under a key that the launcher
made for this check, over the dialler's nonce, the host's name and the port.  So a stale server, a proxy, another
machine of the same address, or another host of this run behind the same address is told from it.

Where the dialler asks for a load, too, bytes that no frame can hold follow the proof: a way that carries small
packets may lose those of the full size without a word, where its MTU is smaller than that of its ends.

Both live in the agent's one loop: no threads, nothing blocks.  Names are resolved by a child process.
"""

import errno
import os
import time

from tflaunch.agent import processes
from tflaunch.agent.net import ports
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import sha256, signal, socket
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from selectors import BaseSelector
    from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

    from tflaunch.protocol.selector import Selector

    AnySelector = Union[BaseSelector, Selector]
    Result = Union[float, List[str]]  # milliseconds, or [verdict, detail]

HELLO = b"tflaunch dials\n"
HELLO_LOAD = b"tflaunch loads\n"  # as long as the other
NONCE_BYTES = 16
LOAD_BYTES = 16384  # more than a jumbo frame
BACKLOG = 1024  # all hosts of a large run may dial one port in the same moment
LINGER_S = 10.0  # for a caller that connects and does not say the hello
ANSWER_SHARE = 3  # the kernel accepts, the agent has to come to its turn
LOOK_S = 0.1  # between two looks for those that are late
AT_ONCE = 128  # connects under way from one host
ADDRESSES_TRIED = 4  # of one name
RESOLVER_THREADS = 16
QUICK_S = 0.02  # one thread looks names up for so long before another helps it
ANSWER_LIMIT = 512

# Verdicts: what came of a connect that was not answered by the right agent.
REFUSED = "refused"
SILENT = "silent"
NO_ROUTE = "no route"
FORBIDDEN = "forbidden"
NO_NAME = "no name"
STRANGER = "stranger"
NARROW = "narrow"
FAILED = "failed"  # anything else; the detail says what

_MEANING = {
    REFUSED: "refused (a firewall that rejects?)",  # what is meant does listen
    SILENT: "silently dropped (a firewall?)",
    NO_ROUTE: "no route (another network, or a firewall that rejects?)",
    FORBIDDEN: "its own firewall forbids it",
    NO_NAME: "the name does not resolve there",
    STRANGER: "something else answers there",
    NARROW: "it answers, but %d KiB from there do not arrive (a smaller MTU on the way?)"
    % (LOAD_BYTES // 1024),
}

_VERDICTS = {
    errno.ECONNREFUSED: REFUSED,
    errno.ETIMEDOUT: SILENT,
    errno.EHOSTUNREACH: NO_ROUTE,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
}


def proof(key: str, nonce: bytes, host: str, port: int) -> bytes:
    """What only the agent of `host`, listening on `port`, answers to `nonce`."""
    said = nonce + b"%d " % port + host.encode("utf-8", "surrogateescape")
    # Twice, as HMAC does: a digest that was overheard cannot be extended.
    return sha256(key.encode() + sha256(key.encode() + said).digest()).hexdigest().encode()


def meaning(verdict: str, detail: str) -> str:
    """A verdict in words for the user: `silently dropped (a firewall?)`."""
    words = _MEANING.get(verdict, "")
    return ": ".join(filter(None, [words, detail]))


class Answering:
    """Listens on held ports and answers each caller with a proof, until it is closed."""

    def __init__(self, selector: "Selector", key: str, host: str) -> None:
        self._selector = selector
        self._key = key
        self._host = host
        self._listeners = []  # type: List[socket.socket]
        self._callers = {}  # type: Dict[socket.socket, Tuple[bytes, float]]
        self._look_at = 0.0  # for callers that say nothing

    def listen(self, held: "Iterable[int]") -> None:
        """Begin on each of these ports, which this very process holds; raises OSError."""
        for port in held:
            listener = ports.bind(port, socket.SO_REUSEPORT)
            self._listeners.append(listener)
            listener.setblocking(False)
            listener.listen(BACKLOG)
            # Whoever has not spoken yet need not wake the loop; the answer acknowledges what was said; one that does
            # not reset its connection, since it is frozen or the reset is lost, must not keep the port from the next
            # run for a minute.
            _set(listener, "TCP_DEFER_ACCEPT", int(LINGER_S))
            _set(listener, "TCP_QUICKACK", 0)
            _set(listener, "TCP_LINGER2", 1)
            accept = lambda listener=listener, port=port: self._accept(listener, port)  # noqa: E731
            self._selector.register(listener, EVENT_READ, accept)

    def _accept(self, listener: socket.socket, port: int) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LINGER_S
            for late in [each for each, (_, since) in self._callers.items() if now - since > LINGER_S]:
                self._drop(late)
        for _ in range(AT_ONCE):  # then others have their turn, too
            caller = self._selector.accept(listener)
            if caller is None:
                return
            heard = self._answer(caller, port, b"")
            if heard is None:  # mostly it has spoken before it is its turn
                caller.close()
            else:
                self._callers[caller] = (heard, now)
                hear = lambda caller=caller: self._hear(caller, port)  # noqa: E731
                self._selector.register(caller, EVENT_READ, hear)

    def _hear(self, caller: socket.socket, port: int) -> None:
        if caller not in self._callers:
            return  # dropped in this same turn of the loop
        heard, since = self._callers[caller]
        heard_now = self._answer(caller, port, heard)
        if heard_now is None:
            self._drop(caller)
        else:
            self._callers[caller] = (heard_now, since)

    def _answer(self, caller: socket.socket, port: int, heard: bytes) -> "Optional[bytes]":
        """What it has said until now, if that is not all yet; None when it has been answered, or is a stranger."""
        wanted = len(HELLO) + NONCE_BYTES
        try:
            data = caller.recv(wanted - len(heard) + 1, socket.MSG_DONTWAIT)
            heard += data
            begins = heard[: len(HELLO)]
            if data and len(heard) < wanted and (HELLO.startswith(begins) or HELLO_LOAD.startswith(begins)):
                return heard
            if data and len(heard) == wanted and begins in (HELLO, HELLO_LOAD):
                name = self._host.encode("utf-8", "surrogateescape")
                line = proof(self._key, heard[len(HELLO) :], self._host, port) + b" " + name + b"\n"
                if begins == HELLO:
                    caller.send(line, socket.MSG_DONTWAIT | socket.MSG_MORE)  # in one packet with the goodbye
                else:  # apart, or the proof were lost with the load
                    caller.send(line, socket.MSG_DONTWAIT)
                    room = 4 * LOAD_BYTES  # for all of it at once
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
                    caller.send(b"." * LOAD_BYTES, socket.MSG_DONTWAIT)
                # It may be closed at once: the dialler resets the connection, and the port keeps no TIME_WAIT.
        except BlockingIOError:
            return heard
        except OSError:
            pass
        return None

    def _drop(self, caller: socket.socket) -> None:
        del self._callers[caller]
        self._selector.unregister(caller)
        caller.close()

    def close(self) -> None:
        """Let go of the ports' second sockets: from now on connects are refused; idempotent."""
        for caller in list(self._callers):
            self._drop(caller)
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        self._listeners = []


class _Attempt:
    """One connect under way."""

    def __init__(self, target: int, connection: socket.socket, began: float) -> None:
        self.target = target
        self.connection = connection
        self.began = began
        self.connected = 0.0  # the time, once it is
        self.nonce = os.urandom(NONCE_BYTES)
        self.answer = b""
        self.proven = False  # only the load is awaited


class Dialling:
    """Connects to `targets` ([address, port, host]); `step` until it is done, then `results` has one for each.

    `load`: what is called must also get LOAD_BYTES through to here.

    An address is a literal or a name.  Of a name's addresses the first few are all tried; one that answers is
    enough.  Each connect gets `patience_s`; ANSWER_SHARE times that who accepted it, for the answer, and each name.
    It counts from the last word of any: hosts that are busy answer late, but they do answer.
    """

    def __init__(
        self,
        selector: "AnySelector",
        key: str,
        targets: "List[List[Any]]",
        patience_s: float,
        load: bool = False,
    ) -> None:
        self.results = [None] * len(targets)  # type: List[Optional[Result]]
        self.addresses = {}  # type: Dict[str, List[str]]  # what each name has been resolved to
        self._selector = selector
        self._key = key
        self._targets = targets
        self._patience_s = patience_s
        self._load = load
        self._heard = time.monotonic()  # when last any was connected, or answered as it should
        self._waiting = []  # type: List[Tuple[int, int, Any]]  # target, family, where to connect to
        self._attempts = {}  # type: Dict[_Attempt, None]  # in their order
        self._look_at = 0.0  # for those that are late
        self._resolver = None  # type: Optional[_Resolver]
        unresolved = {}  # type: Dict[str, None]
        for number, (address, port, _) in enumerate(targets):
            found = _literal(address, port)
            if found is None:
                unresolved[address] = None
            else:
                self._queue(number, found)
        if unresolved:
            try:
                self._resolver = _Resolver(selector, list(unresolved), patience_s * ANSWER_SHARE)
            except OSError as error:  # there is no room for a process, or no descriptor
                for number, target in enumerate(targets):
                    if target[0] in unresolved:
                        self.results[number] = [FAILED, str(error.strerror)]
        self._waiting.reverse()  # taken from the end

    def _queue(self, target: int, found: "List[Tuple[int, Any]]") -> None:
        self._waiting += [(target, family, where) for family, where in found]

    def step(self, now: float) -> bool:
        """Go on; True once there is a result for every target."""
        if self._resolver is not None:
            resolved = self._resolver.step(now)
            if resolved is None:
                return False  # the literals may wait, too
            self._resolver = None
            self._take_names(resolved)
        if now >= self._look_at:  # not at each turn of the loop: there may be hundreds of both
            self._look_at = now + LOOK_S
            self._end_late(now)
        while self._waiting and len(self._attempts) < AT_ONCE:
            self._begin(*self._waiting.pop())
        return not self._waiting and not self._attempts

    def _end_late(self, now: float) -> None:
        for attempt in [each for each in self._attempts if self._late(each, now)]:
            if attempt.proven:
                self._end(attempt, [NARROW, ""])
            elif attempt.connected:
                self._end(attempt, [STRANGER, "it accepts and says nothing"])
            else:
                self._end(attempt, [SILENT, ""])

    def _late(self, attempt: _Attempt, now: float) -> bool:
        patience_s = self._patience_s * (ANSWER_SHARE if attempt.connected else 1)
        return now - max(attempt.began, self._heard) > patience_s

    def _take_names(self, resolved: "Dict[str, Union[str, List[Tuple[int, str]]]]") -> None:
        for number, (name, port, _) in enumerate(self._targets):
            told = resolved.get(name)
            if isinstance(told, str):
                self.results[number] = [NO_NAME, told]
            elif told is not None:
                self.addresses[name] = [address for _, address in told]
                for family, address in told:
                    if family == socket.AF_INET:
                        self._queue(number, [(family, (address, port))])
                    else:  # it may name an interface, too
                        self._queue(number, _literal(address, port) or [])

    def _begin(self, target: int, family: int, where: "Any") -> None:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptors left
            self._result(target, [FAILED, os.strerror(error.errno or 0)])
            return
        connection.setblocking(False)
        _set(connection, "TCP_QUICKACK", 0)  # no packet only to say that it is connected: the hello says so
        attempt = _Attempt(target, connection, time.monotonic())
        code = connection.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._result(target, _verdict(code))
            return
        self._attempts[attempt] = None
        self._selector.register(connection, EVENT_WRITE, lambda: self._connected(attempt))

    def _connected(self, attempt: _Attempt) -> None:
        if attempt not in self._attempts:
            return  # ended in this same turn of the loop
        try:
            attempt.connection.send((HELLO_LOAD if self._load else HELLO) + attempt.nonce)
        except OSError as error:  # why it is not connected; BSDs only say that it is not
            why = attempt.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._end(attempt, _verdict(why or error.errno or 0))
            return
        attempt.connected = self._heard = time.monotonic()
        self._selector.modify(attempt.connection, EVENT_READ, lambda: self._answered(attempt))

    def _answered(self, attempt: _Attempt) -> None:
        if attempt not in self._attempts:
            return
        try:
            data = attempt.connection.recv(LOAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        attempt.answer += data
        if data and b"\n" not in attempt.answer and len(attempt.answer) < ANSWER_LIMIT:
            return
        _, port, host = self._targets[attempt.target]
        line, _, load = attempt.answer.partition(b"\n")
        code, _, name = line.partition(b" ")
        there = name.decode("utf-8", "surrogateescape")
        if code != proof(self._key, attempt.nonce, there, port):
            self._end(attempt, [STRANGER, "" if attempt.answer else "it hangs up"])
        elif there != host:
            self._end(attempt, [STRANGER, "it is %s of this run" % there])
        elif self._load and len(load) < LOAD_BYTES:
            attempt.proven = True
            self._heard = time.monotonic()
            if not data:
                self._end(attempt, [FAILED, "it hangs up in the middle"])
        else:
            self._heard = time.monotonic()
            self._end(attempt, round((attempt.connected - attempt.began) * 1000, 3))

    def _end(self, attempt: _Attempt, result: "Result") -> None:
        del self._attempts[attempt]
        self._selector.unregister(attempt.connection)
        # A reset instead of a farewell: no TIME_WAIT is left on either side.
        attempt.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        attempt.connection.close()
        self._result(attempt.target, result)

    def _result(self, target: int, result: "Result") -> None:
        if self.results[target] is None or isinstance(result, float):  # one address of a name is enough
            self.results[target] = result

    def close(self) -> None:
        """Give up what is under way; idempotent."""
        self._waiting = []
        for attempt in list(self._attempts):
            self._end(attempt, [FAILED, "given up"])
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None


def _set(endpoint: socket.socket, option: str, value: int) -> None:
    """Where the system knows it: without it, the check only costs more."""
    try:
        endpoint.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    except (AttributeError, OSError):
        pass


def _verdict(code: int) -> "List[str]":
    return [_VERDICTS.get(code, FAILED), "" if code in _VERDICTS else os.strerror(code)]


def _literal(address: str, port: int) -> "Optional[List[Tuple[int, Any]]]":
    """[(family, where to connect to)] of an address; None for a name."""
    if ":" not in address and not address[-1:].isdigit():
        return None  # quicker told than by the C library, and there may be a thousand names
    found = _resolve(address, port, socket.AI_NUMERICHOST)
    return None if isinstance(found, str) else found


def _resolve(address: str, port: int, flags: int = 0) -> "Union[str, List[Tuple[int, Any]]]":
    """[(family, where to connect to)], or why there is none."""
    try:
        # In bytes, or Python would load the tables of all scripts to see that this one is ASCII.
        name = address.encode("ascii") if address.isascii() else address
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror as error:
        return str(error.strerror)
    except (OSError, UnicodeError) as error:
        return str(error)
    return [(int(family), where) for family, _, _, _, where in found][:ADDRESSES_TRIED]


class _Resolver:
    """A child that looks names up, since that blocks; it is killed when for so long no name has been found."""

    def __init__(self, selector: "AnySelector", names: "List[str]", patience_s: float) -> None:
        self._selector = selector
        self._names = names
        self._deadline = time.monotonic() + patience_s
        self._patience_s = patience_s
        self._told = b""
        self._pipe, pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            pid = os.fork()
            if pid == 0:
                _resolve_and_exit(names, pipe)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(pipe)
        self._child = processes.read(pid)
        self._ended = False
        selector.register(self._pipe, EVENT_READ, self._hear)

    def _hear(self) -> None:
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return
        self._told += data
        self._deadline = time.monotonic() + self._patience_s
        if not data and not self._ended:
            self._ended = True
            self._selector.unregister(self._pipe)

    def step(self, now: float) -> "Optional[Dict[str, Union[str, List[Tuple[int, str]]]]]":
        """What each name stands for, or why not; None while some are still looked up."""
        lines = self._told.splitlines()
        if len(lines) < len(self._names) and not self._ended and now < self._deadline:
            return None
        self.close()
        late = "no answer within %g s" % self._patience_s
        told = dict.fromkeys(self._names, late)  # type: Dict[str, Union[str, List[Tuple[int, str]]]]
        for line in lines:
            name, found = wire.loads(line.decode("ascii"))
            told[name] = found
        return told

    def close(self) -> None:
        """End the child."""
        if not self._ended:
            self._ended = True
            self._selector.unregister(self._pipe)
        os.close(self._pipe)
        if self._child is not None:
            processes.send(self._child, signal.SIGKILL)  # the agent's loop reaps it


def _resolve_and_exit(names: "List[str]", pipe: int) -> None:
    """In the child: a line for each name as soon as it is known, however long the others take."""
    try:
        import _thread  # `threading` takes longer to load than the names of a small run to be found

        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for entry in os.listdir("/proc/self/fd"):  # what the agent closes must be seen to close
            if int(entry) > 2 and int(entry) != pipe:
                try:
                    os.close(int(entry))
                except OSError:
                    pass  # the listing's own
        names = list(names)

        def work(done: "_thread.LockType") -> None:
            try:
                while True:
                    name = names.pop()
                    found = _resolve(name, 0)
                    told = (
                        found if isinstance(found, str) else [(family, where[0]) for family, where in found]
                    )
                    # In one piece, since it is shorter than PIPE_BUF: threads do not mix their lines.
                    os.write(pipe, wire.dumps([name, told]).encode("ascii") + b"\n")
            except IndexError:
                pass  # that was the last
            finally:
                done.release()

        working = []  # type: List[_thread.LockType]
        while names and len(working) < RESOLVER_THREADS:  # one is enough for a file of names
            done = _thread.allocate_lock()
            done.acquire()
            try:
                _thread.start_new_thread(work, (done,))
            except RuntimeError:  # there is no room for another
                if not working:
                    work(done)
                break
            working.append(done)
            if done.acquire(timeout=QUICK_S):
                done.release()
        for done in working:
            done.acquire()
    finally:
        os._exit(0)
