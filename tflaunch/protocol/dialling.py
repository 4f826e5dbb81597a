"""The dial check: before any task starts, the hosts make the connections that the tasks will make.

`Dialling` connects to a list of targets, some at a time, and has a result for each.  The agents that are dialled answer
by `tflaunch.agent.net.dial_answering`; the launcher itself may dial, too.

The answer proves that it comes from the agent of the right host: it is a keyed SHA-256 over the dialler's nonce, the
host's name and the port, under a key that the launcher has made for this check.  So the dialler recognizes a stale
server, a proxy, another machine with the same address, and another host of this run behind the same address.

If the dialler asks for a load, LOAD_BYTES follow the proof, more than one packet can hold: where the MTU on the way is
smaller than at its ends, small packets arrive, and those of full size are lost silently.

It runs in its owner's loop: no threads, nothing blocks.
"""

import errno
import os
import time

from tflaunch.protocol.light_stdlib import sha256, socket
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from selectors import BaseSelector
    from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple, Union

    from tflaunch.protocol.selector import Selector

    class LookUp(Protocol):
        """Looks names up without blocking: `tflaunch.agent.net.name_lookup.NameLookup`."""

        def step(self, now: float) -> "Optional[Dict[str, Union[str, List[Tuple[int, str]]]]]": ...
        def close(self) -> None: ...

    AnySelector = Union[BaseSelector, Selector]
    Result = Union[float, List[str]]  # milliseconds, or [verdict, detail]

HELLO = b"tflaunch dials\n"
HELLO_LOAD = b"tflaunch loads\n"  # as long as HELLO
NONCE_BYTES = 16
LOAD_BYTES = 16384  # more than a jumbo frame
ANSWER_SHARE = (
    3  # times the patience for a connect: the kernel accepts at once, but the agent must get its turn
)
LOOK_S = 0.1  # between two looks for late attempts
DIAL_S = 5.0  # for one connect, whose first packet may be lost twice on the way
AT_ONCE = 128  # connects under way from one host
ADDRESSES_TRIED = 4  # of one name
ANSWER_LIMIT = 512

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
    """The answer to `nonce` that only the agent of `host`, listening on `port`, can give."""
    text = nonce + b"%d " % port + host.encode("utf-8", "surrogateescape")
    # Twice, as HMAC does, so that a digest that was overheard cannot be extended.
    return sha256(key.encode() + sha256(key.encode() + text).digest()).hexdigest().encode()


def meaning(verdict: str, detail: str) -> str:
    """A verdict in the user's words: `silently dropped (a firewall?)`."""
    words = _MEANING.get(verdict, "")
    return ": ".join(filter(None, [words, detail]))


class _Attempt:
    """One connect under way."""

    def __init__(self, target: int, connection: socket.socket, began: float) -> None:
        self.target = target
        self.connection = connection
        self.began = began
        self.connected = 0.0  # when it was connected; 0: not yet
        self.nonce = os.urandom(NONCE_BYTES)
        self.answer = b""
        self.proven = False  # the proof has come, the load has not


class Dialling:
    """Connects to `targets` ([address, port, host]); call `step` until it returns True, then read `results`.

    `load`: the answers must bring LOAD_BYTES, too.

    An address is an IP address, or a name if `look_up` is given.  Of a name's addresses the first ADDRESSES_TRIED are
    all tried; one that answers is enough.  A connect has `patience_s`, an answer ANSWER_SHARE times that, a look-up the
    same.  Patience begins anew when any target connects or answers: busy hosts answer late, but they do answer.
    """

    def __init__(
        self,
        selector: "AnySelector",
        key: str,
        targets: "List[List[Any]]",
        patience_s: float,
        *,
        load: bool = False,
        look_up: "Optional[Callable[[AnySelector, List[str], float], LookUp]]" = None,
    ) -> None:
        self.results = [None] * len(targets)  # type: List[Optional[Result]]
        self.addresses = {}  # type: Dict[str, List[str]]  # name -> its addresses
        self._selector = selector
        self._key = key
        self._targets = targets
        self._patience_s = patience_s
        self._load = load
        self._heard = time.monotonic()  # when a target last connected, or answered as it should
        self._waiting = []  # type: List[Tuple[int, int, Any]]  # target, family, where to connect to
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
        if unresolved:
            try:
                if look_up is None:
                    raise OSError(0, "names are not looked up here")
                self._look_up = look_up(selector, list(unresolved), patience_s * ANSWER_SHARE)
            except OSError as error:  # no process, or no descriptor, is left for it
                for number, target in enumerate(targets):
                    if target[0] in unresolved:
                        self.results[number] = [FAILED, str(error.strerror)]
        self._waiting.reverse()  # taken from the end

    def _queue(self, target: int, found: "List[Tuple[int, Any]]") -> None:
        self._waiting += [(target, family, where) for family, where in found]

    def step(self, now: float) -> bool:
        """Go on; True once there is a result for every target."""
        if self._look_up is not None:
            resolved = self._look_up.step(now)
            if resolved is None:
                return False  # the IP addresses wait, too
            self._look_up = None
            self._take_names(resolved)
        if now >= self._look_at:  # not at each turn of the loop: there may be hundreds of attempts
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

    def _begin(self, target: int, family: int, where: "Any") -> None:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptors left
            self._result(target, [FAILED, os.strerror(error.errno or 0)])
            return
        connection.setblocking(False)
        set_option(
            connection, "TCP_QUICKACK", 0
        )  # the hello acknowledges the connection; a packet for that alone would be wasted
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
            return  # it was ended in this turn of the loop
        try:
            attempt.connection.send((HELLO_LOAD if self._load else HELLO) + attempt.nonce)
        except OSError as error:  # on BSDs it only says that the socket is not connected, not why
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
        # A reset instead of an orderly close: it leaves no TIME_WAIT on either side.
        attempt.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        attempt.connection.close()
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


def _verdict(code: int) -> "List[str]":
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
