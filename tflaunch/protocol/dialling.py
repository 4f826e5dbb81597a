"""The dial check: before any task starts, the hosts make the connections that the tasks will make.

`Dialling` connects to a list of targets, some at a time, and has a result for each.  The agents that are dialled answer
by `tflaunch.agent.net.dial_answering`; the launcher itself may dial, too.

The answer proves that it comes from the agent of the right host: it is a keyed SHA-256 over the dialler's nonce, the
host's name and the port, under a key that the launcher has made for this check.  So the dialler recognizes a stale
server, a proxy, another machine with the same address, and another host of this run behind the same address.

If the dialler asks for a load, LOAD_BYTES follow the proof, more than one packet can hold: where the MTU on the way is
smaller than at its ends, small packets arrive, and those of full size are lost silently.  Then the dialler asks again,
for smaller packets, and so finds out which size still arrives.

While tasks run there is no agent at their ports, and no key.  Then a call to one of them proves nothing but that it is
connected; with load, the dialler itself sends as much, and the kernel at the other end acknowledges what arrives,
whatever the task does with it: for a gRPC server, as TensorFlow's, it is an empty frame of HTTP/2 and one of no known
type, which it must ignore.

It runs in its owner's loop: no threads, nothing blocks.
"""

import errno
import os
import time

from tflaunch.protocol.light_stdlib import sha256, socket
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE
from tflaunch.protocol.tcp_info import tcp_info

TYPE_CHECKING = False
if TYPE_CHECKING:
    from selectors import BaseSelector
    from typing import Any, Callable, Collection, Dict, List, Optional, Protocol, Sequence, Tuple, Union

    from tflaunch.protocol.selector import Selector

    class LookUp(Protocol):
        """Looks names up without blocking: `tflaunch.agent.net.name_lookup.NameLookup`."""

        digest: str

        def step(self, now: float) -> "Optional[Dict[str, Union[str, List[Tuple[int, str]]]]]": ...
        def close(self) -> None: ...

    AnySelector = Union[BaseSelector, Selector]
    Result = Union[float, List[str]]  # milliseconds, or [verdict, detail]

HELLO = b"tflaunch dials\n"
HELLO_LOAD = b"tflaunch loads\n"  # as long as HELLO
HELLO_PUSH = b"tflaunch bytes\n"  # as long, too: see tflaunch.agent.net.throughput
NONCE_BYTES = 16
LOAD_BYTES = 16384  # more than a jumbo frame
# HTTP/2: how a client begins, its empty SETTINGS, and a frame of a type that there is not.
PUSHED = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PUSHED += LOAD_BYTES.to_bytes(3, "big") + bytes([0xF0, 0, 0, 0, 0, 0]) + bytes(LOAD_BYTES)
# Times the patience for a connect: the kernel accepts at once, but the agent must get its turn.
ANSWER_SHARE = 3
LOOK_S = 0.1  # between two looks for late attempts
DIAL_S = 5.0  # for one connect, whose first packet may be lost twice on the way
AT_ONCE = 128  # connects under way from one host
ADDRESSES_TRIED = 4  # of one name
ANSWER_LIMIT = 512
# Sizes of packets that are tried once those of full size are lost: what tunnels, cloud networks and switches let pass.
SIZES = (8900, 4000, 2000, 1500, 1492, 1480, 1476, 1472, 1460, 1450, 1440, 1420, 1400, 1380, 1360)
SMALL_SIZES = (1340, 1320, 1300, 1280, 1200, 1000, 800, 576)
HEADERS, HEADERS_V6 = 40, 60  # bytes of IP and TCP in a packet
SIZED = 4  # how many targets of one check are tried with these sizes

# Verdicts: what happened to a connect that the right agent did not answer.
REFUSED = "refused"
SILENT = "silent"
NO_ROUTE = "no route"
FORBIDDEN = "forbidden"
NO_NAME = "no name"
STRANGER = "stranger"
NARROW = "narrow"
FAILED = "failed"  # for another reason, which the detail gives

_MEANING = {
    REFUSED: "refused (a firewall that rejects?)",  # a firewall, because the agent does listen
    SILENT: "silently dropped (a firewall?)",
    NO_ROUTE: "no route (another network, or a firewall that rejects?)",
    FORBIDDEN: "its own firewall forbids it",
    NO_NAME: "the name does not resolve there",
    STRANGER: "something else answers there",
    NARROW: "it answers, but large packets from there do not arrive (a smaller MTU on the way?)",
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
    """The answer to `nonce` that only the agent of `host`, listening on `port`, can give."""
    text = nonce + b"%d " % port + host.encode("utf-8", "surrogateescape")
    # Twice, as HMAC does, so that a digest that was overheard cannot be extended.
    return sha256(key.encode() + sha256(key.encode() + text).digest()).hexdigest().encode()


def meaning(verdict: str, detail: str) -> str:
    """A verdict in the user's words: `silently dropped (a firewall?)`."""
    words = _MEANING.get(verdict, "")
    if verdict == NARROW and arriving(detail):
        return words.replace("large packets", "packets of more than %d bytes" % arriving(detail))
    return ": ".join(filter(None, [words, detail]))


def arriving(detail: str) -> int:
    """The largest size of packets that arrive, by the detail of a NARROW; 0: it is not known."""
    return int(detail) if detail.isdecimal() and len(detail) < 6 else 0


class _Attempt:
    """One connect under way."""

    def __init__(self, target: int, family: int, where: "Any", size: int, connection: socket.socket) -> None:
        self.target = target
        self.family = family
        self.where = where
        self.size = size  # of the packets that it asks for; 0: as large as they come
        self.connection = connection
        self.began = time.monotonic()
        self.connected = 0.0  # when it was connected; 0: not yet
        self.nonce = os.urandom(NONCE_BYTES)
        self.answer = b""
        self.proven = False  # the proof has come, the load has not
        self.pushes = False  # it has sent a load itself


class Dialling:
    """Connects to `targets` ([address, port, host]); call `step` until it returns True, then read `results`.

    `load`: the answers must bring LOAD_BYTES, too; or the numbers of the targets of which that is asked.  `ways` has,
    for each target that answered, [the shortest round trip in ms, packets that were lost], as far as the kernel says.

    An address is an IP address, or a name if `look_up` is given.  Of a name's addresses the first ADDRESSES_TRIED are
    all tried; one that answers is enough.  A connect has `patience_s`, an answer ANSWER_SHARE times that, a look-up the
    same.  Patience begins anew when any target connects or answers: busy hosts answer late, but they do answer.

    `compared` are names that are looked up, too, and only compared with what other hosts find: `digest` (NameLookup).
    """

    def __init__(
        self,
        selector: "AnySelector",
        key: str,
        targets: "List[List[Any]]",
        patience_s: float,
        *,
        load: "Union[bool, Collection[int]]" = False,
        look_up: "Optional[Callable[[AnySelector, List[str], float, List[str]], LookUp]]" = None,
        compared: "Sequence[str]" = (),
    ) -> None:
        self.results = [None] * len(targets)  # type: List[Optional[Result]]
        self.ways = [None] * len(targets)  # type: List[Optional[List[float]]]
        self.addresses = {}  # type: Dict[str, List[str]]  # name -> its addresses
        self._selector = selector
        self._key = key
        self._targets = targets
        self._patience_s = patience_s
        chosen = range(len(targets) if load else 0) if isinstance(load, bool) else load
        self._load = frozenset(chosen)
        self._sized = {}  # type: Dict[int, List[int]]  # target -> sizes still to try, the largest that has arrived
        self._heard = time.monotonic()  # when a target last connected, or answered as it should
        self._waiting = []  # type: List[Tuple[int, int, Any, int]]  # target, family, where to connect to, size
        self._attempts = {}  # type: Dict[_Attempt, None]  # under way, the oldest first
        self._look_at = 0.0  # when late attempts are looked for next
        self._look_up = None  # type: Optional[LookUp]
        unresolved = {}  # type: Dict[str, None]
        for number, (address, port, _) in enumerate(targets):
            found = _literal(address, port)
            if found is None:
                unresolved[address] = None
            else:
                self._queue(number, found)
        self.digest = ""
        if unresolved or compared:
            try:
                if look_up is None:
                    raise OSError(0, "names are not looked up here")
                self._look_up = look_up(selector, list(unresolved), patience_s * ANSWER_SHARE, list(compared))
            except OSError as error:  # no process, or no descriptor, is left for it
                for number, target in enumerate(targets):
                    if target[0] in unresolved:
                        self.results[number] = [FAILED, str(error.strerror)]
        self._waiting.reverse()  # taken from the end

    def _queue(self, target: int, found: "List[Tuple[int, Any]]") -> None:
        self._waiting += [(target, family, where, 0) for family, where in found]

    def step(self, now: float) -> bool:
        """Go on; True once there is a result for every target."""
        if self._look_up is not None:
            resolved = self._look_up.step(now)
            if resolved is None:
                return False  # the IP addresses wait, too
            self.digest = self._look_up.digest
            self._look_up = None
            self._take_names(resolved)
        if now >= self._look_at:  # not at each turn of the loop: there may be hundreds of attempts
            self._look_at = now + LOOK_S
            for attempt in [each for each in self._attempts if each.pushes]:
                self._look_at_pushed(attempt)
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

    def _try_sizes(self, attempt: _Attempt) -> None:
        """Large packets from there are lost: ask for smaller ones, of all sizes at once."""
        self._sized.setdefault(attempt.target, [0, 0])[0] += len(SIZES) + len(SMALL_SIZES)
        self._waiting += [
            (attempt.target, attempt.family, attempt.where, size) for size in SIZES + SMALL_SIZES
        ]

    def _tried_size(self, attempt: _Attempt, arrived: bool) -> None:
        tried = self._sized[attempt.target]
        tried[0] -= 1
        tried[1] = max(tried[1], attempt.size if arrived else 0)
        if not tried[0]:
            self._result(attempt.target, [NARROW, str(tried[1] or "")])

    def _late(self, attempt: _Attempt, now: float) -> bool:
        if attempt.size:  # what arrives comes at once, as the first call has shown
            return now - attempt.began > self._patience_s
        patience_s = self._patience_s * (ANSWER_SHARE if attempt.connected else 1)
        return now - max(attempt.began, self._heard) > patience_s

    def _take_names(self, resolved: "Dict[str, Union[str, List[Tuple[int, str]]]]") -> None:
        for number, (name, port, _) in enumerate(self._targets):
            found = resolved.get(name)
            if isinstance(found, str):
                self.results[number] = [NO_NAME, found]
            elif found is not None:
                self.addresses[name] = [address for _, address in found]
                for family, address in found:
                    if family == socket.AF_INET:
                        self._queue(number, [(family, (address, port))])
                    else:  # an IPv6 address may name an interface, too
                        self._queue(number, _literal(address, port) or [])

    def _begin(self, target: int, family: int, where: "Any", size: int) -> None:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptors left
            self._result(target, [FAILED, os.strerror(error.errno or 0)])
            return
        connection.setblocking(False)
        set_option(
            connection, "TCP_QUICKACK", 0
        )  # the hello acknowledges the connection; a packet for that alone would be wasted
        if self._pushes(target):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LOAD_BYTES)
        if size:
            set_option(
                connection, "TCP_MAXSEG", size - (HEADERS_V6 if family == socket.AF_INET6 else HEADERS)
            )
        attempt = _Attempt(target, family, where, size, connection)
        code = connection.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._settle(attempt, verdict_of(code))
            return
        self._attempts[attempt] = None
        self._selector.register(connection, EVENT_WRITE, lambda: self._connected(attempt))

    def _connected(self, attempt: _Attempt) -> None:
        if attempt not in self._attempts:
            return  # it was ended in this turn of the loop
        try:
            loads, attempt.pushes = attempt.target in self._load, self._pushes(attempt.target)
            hello = (HELLO_LOAD if loads else HELLO) + attempt.nonce
            attempt.connection.send(PUSHED if attempt.pushes else hello)
        except OSError as error:  # on BSDs it only says that the socket is not connected, not why
            why = attempt.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._end(attempt, verdict_of(why or error.errno or 0))
            return
        attempt.connected = self._heard = time.monotonic()
        attempt.proven = attempt.pushes
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
        if attempt.pushes:
            if not data:  # what arrived there was not welcome, but it did arrive
                self._answered_well(attempt)
            return
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
        elif attempt.target in self._load and len(load) < LOAD_BYTES:
            attempt.proven = True
            self._heard = time.monotonic()
            if not data:
                self._end(attempt, [FAILED, "it hangs up in the middle"])
        else:
            self._answered_well(attempt)

    def _answered_well(self, attempt: _Attempt) -> None:
        self._heard = time.monotonic()
        info = tcp_info(attempt.connection)
        if info is not None and not attempt.size:
            self.ways[attempt.target] = [info.rtt_ms, info.lost]
        self._end(attempt, round((attempt.connected - attempt.began) * 1000, 3))

    def _pushes(self, target: int) -> bool:
        return not self._key and target in self._load

    def _look_at_pushed(self, attempt: _Attempt) -> None:
        """End it once the other end has acknowledged all that was sent."""
        info = tcp_info(attempt.connection)
        if info is None or not (info.unacked or info.unsent):
            self._answered_well(attempt)

    def _end(self, attempt: _Attempt, result: "Result") -> None:
        del self._attempts[attempt]
        self._selector.unregister(attempt.connection)
        # A reset instead of an orderly close: it leaves no TIME_WAIT on either side.
        attempt.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        attempt.connection.close()
        self._settle(attempt, result)

    def _settle(self, attempt: _Attempt, result: "Result") -> None:
        if attempt.size:
            self._tried_size(attempt, isinstance(result, float))
        elif result == [NARROW, ""] and len(self._sized) < SIZED:
            self._try_sizes(attempt)
        else:
            self._result(attempt.target, result)

    def _result(self, target: int, result: "Result") -> None:
        if self.results[target] is None or isinstance(result, float):  # one address of a name is enough
            self.results[target] = result

    def close(self) -> None:
        """Give up the attempts that are under way; idempotent."""
        self._waiting = []
        for attempt in list(self._attempts):
            self._end(attempt, [FAILED, "given up"])
        if self._look_up is not None:
            self._look_up.close()
            self._look_up = None


def set_option(endpoint: socket.socket, option: str, value: int) -> None:
    """Set a TCP option if the system has it: without it, the check only costs more."""
    try:
        endpoint.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    except (AttributeError, OSError):
        pass


def verdict_of(code: int) -> "List[str]":
    """[verdict, detail] for an error of connect."""
    return [_VERDICTS.get(code, FAILED), "" if code in _VERDICTS else os.strerror(code)]


def _literal(address: str, port: int) -> "Optional[List[Tuple[int, Any]]]":
    """[(family, where to connect to)] of an IP address; None for a name."""
    if ":" not in address and not address[-1:].isdigit():
        return None  # quicker than to ask the C library, and there may be a thousand names
    found = addresses_of(address, port, socket.AI_NUMERICHOST)
    return None if isinstance(found, str) else found


def addresses_of(address: str, port: int, flags: int = 0) -> "Union[str, List[Tuple[int, Any]]]":
    """[(family, where to connect to)] of a name or address, or why there is none."""
    try:
        # In bytes, or Python would load the Unicode tables only to see that the name is ASCII.
        name = address.encode("ascii") if address.isascii() else address
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror as error:
        return str(error.strerror)
    except (OSError, UnicodeError) as error:
        return str(error)
    return [(int(family), where) for family, _, _, _, where in found][:ADDRESSES_TRIED]
