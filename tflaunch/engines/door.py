"""Wires to slot holders by TLS, and what else a slot holder answers to whoever has the token.

    certificate, key = make_certificate()                          # for all slots of one command
    door = SlotDoor(("10.0.0.7",), 40123, certificate, token)           # what the slot holder has told
    wire = door.open("exec python3 -c ...", source, timeout_s=30)   # from any thread
    door.leave("the run is over", timeout_s=5)

The certificate itself is what is checked, not a name in it: only the slot holder has its key.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tflaunch.protocol.errors import ConnectError, Gone, NoThreads, WireClosed
from tflaunch.sessions.child import STDERR_BYTES, last_words
from tflaunch.sessions.socket_tools import RECV_BYTES, has_room, text, tune
from tflaunch.sessions.wires import Advice

LINE_BYTES = 1024 * 1024
LONGEST_WHY = 400  # characters
LOOK_S = 3.0  # after a dial of so long the engine is asked whether the slot is there at all
AGAIN_S = 0.3  # before the next dial
WORDS_S = 5.0  # for the slot holder to say how a command has ended
_OVER = "has the slot ended? ask the engine how its job is"
_SLOW = "check the network between, or give --connect-timeout"
OF_SLOT = Advice(
    silence=": that machine is too busy, or what the slot's Python reads at its start does not come",
    start_up="what starts before the agent there must not read its input or write to its output: look at sitecustomize",
    no_shell="commands are run by /bin/sh there: does the slot's image have one?",
    ended="is a python3, 3.8 or newer, on the PATH of the slot's jobs? name one with `python:`",
    large_packets="are large packets lost between here and the slot's node (MTU)? try: ping -M do -s 1472 with its "
    "address; if only smaller ones (-s 500) come back, set the MTU of the network interface here or there to what "
    "passes",
    cut=f"does something on the way cut connections? {_OVER}",
)


def make_certificate() -> tuple[str, str]:
    """A certificate and its key, in PEM: new ones, valid whatever the clocks of hosts say."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tflaunch slot")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), secret.decode()


@dataclass(frozen=True)
class SlotLook:
    """How a slot is."""

    ends_in: float | None  # seconds; None: the engine has not taken it back
    why: str  # it ends
    running: int  # processes that the slot holder has for children


@dataclass(frozen=True)
class SlotDoor:
    """Where a slot holder listens, and what proves that it is the right one, and that we are."""

    addresses: tuple[str, ...]
    port: int
    certificate: str  # PEM
    token: str

    def open(self, command: str, first: bytes = b"", timeout_s: float = 30.0) -> DoorWire:
        """Run `command` in the slot, and send `first` to it.  Raises ConnectError."""
        return self.start(self.dial(timeout_s), command, first)

    def open_unless(
        self, gone: Callable[[], Gone | None], command: str, first: bytes, timeout_s: float
    ) -> DoorWire:
        """Open as `open` does; while no connection comes about, ask the engine whether the slot is gone.

        Raises ConnectError, Gone.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if (error := gone()) is not None:
                raise error
            try:
                line = self.dial(min(LOOK_S, max(deadline - time.monotonic(), 0.1)))
            except ConnectError as unreached:
                if time.monotonic() + AGAIN_S < deadline:
                    time.sleep(AGAIN_S)
                    continue
                if (error := gone()) is not None:
                    raise error from None
                raise unreached
            line.deadline = max(deadline, time.monotonic() + LOOK_S)
            return self.start(line, command, first)

    def start(self, line: DoorLine, command: str, first: bytes) -> DoorWire:
        """Run `command` by that connection, and send `first` to it.  Raises ConnectError."""
        call = os.urandom(8).hex()
        try:
            answer = line.ask(start=command, call=call)
            if answer.get("started") is not True:
                raise _refused(answer)
            return DoorWire(self, line, call, first)
        except BaseException:
            line.close()
            raise

    def leave(self, why: str, timeout_s: float) -> None:
        """Give the slot back: its holder ends, with all that is below it.  Raises ConnectError."""
        self._ask(timeout_s, leave=why)

    def look(self, timeout_s: float) -> SlotLook:
        """How the slot is.  Raises ConnectError."""
        answer = self._ask(timeout_s, look=True)
        ends_in = answer.get("ends_in")
        try:
            return SlotLook(
                None if ends_in is None else float(ends_in),
                str(answer["why"])[:LONGEST_WHY],
                int(answer["running"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _nonsense() from None

    def words(self, call: str, timeout_s: float) -> tuple[str, int | None]:
        """The end of that command's stderr, and its exit status, 128 + n for signal n.  Raises ConnectError."""
        answer = self._ask(timeout_s, words=call)
        code = answer.get("code")
        return str(answer.get("words", ""))[-STDERR_BYTES:], code if isinstance(code, int) else None

    def _ask(self, timeout_s: float, **said: object) -> dict[str, Any]:
        line = self.dial(timeout_s)
        try:
            return line.ask(**said)
        finally:
            line.close()

    def dial(self, timeout_s: float) -> DoorLine:
        """A connection to the slot holder.  Raises ConnectError."""
        return dial(self.addresses, self.port, self.certificate, self.token, timeout_s)


def dial(addresses: Sequence[str], port: int, certificate: str, token: str, timeout: float) -> DoorLine:
    """A connection to the slot holder with that certificate, at the first address that answers.

    `timeout` is for all of it, and for the first answer.  Raises ConnectError.
    """
    deadline = time.monotonic() + timeout
    # Loopback leads to the slot holder only from its own machine, which has no other address then.
    there = [each for each in addresses if not _is_loopback(each)] or list(addresses)
    first: ConnectError | None = None  # the others may be of networks that are behind the first
    for tried, address in enumerate(there):
        # One that does not answer leaves time for the next.
        limit = max(0.001, (deadline - time.monotonic()) / (len(there) - tried))
        try:
            raw = socket.create_connection((address, port), limit)
        except OSError as error:
            first = first or _unreached(error, port, timeout)
            continue
        line = DoorLine(raw, certificate, token, timeout)
        try:
            line.shake(time.monotonic() + limit)
        except ConnectError as error:
            line.close()
            first = first or error
            continue
        except BaseException:
            line.close()
            raise
        line.deadline = deadline
        return line
    raise first or ConnectError("the slot holder has told no address", _OVER)


class DoorLine:
    """A TLS connection to a slot holder; one thread receives, any thread sends."""

    def __init__(self, raw: socket.socket, certificate: str, token: str, timeout_s: float) -> None:
        self.raw = raw
        self.deadline = 0.0  # of the next answer
        self._certificate, self._token, self._timeout_s = certificate, token, timeout_s
        self._early = b""  # what came behind an answer
        self._inlet, self._outlet = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.load_verify_locations(cadata=certificate)
        self._tls = context.wrap_bio(self._inlet, self._outlet)
        self._state = threading.Lock()  # OpenSSL's: not for two threads at a time
        self.sending = threading.Lock()  # what is sealed first is sent first
        with contextlib.suppress(OSError):  # it was reset already, as the next step tells
            tune(raw)

    def shake(self, deadline: float) -> None:
        """Agree on keys with the slot holder, and check that it is the right one.  Raises ConnectError."""
        self.deadline = deadline
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._exchange()
            self.raw.sendall(self._outlet.read())
        except ssl.SSLCertVerificationError:
            raise self._stranger() from None
        except (OSError, EOFError) as error:
            raise self._broken(error) from None
        shown = self._tls.getpeercert(binary_form=True)
        if shown != ssl.PEM_cert_to_DER_cert(self._certificate):
            raise self._stranger()

    def ask(self, **said: object) -> dict[str, Any]:
        """What the slot holder answers to that, by the deadline.  Raises ConnectError.

        What follows the answer is left to `receive`.
        """
        heard = b""
        try:
            self.send(json.dumps({"token": self._token, **said}).encode() + b"\n")
            while b"\n" not in heard:
                self.raw.settimeout(self._left())
                if not (data := self.receive()) or len(heard) > LINE_BYTES:
                    raise EOFError
                heard += data
            self.raw.settimeout(None)
        except (OSError, EOFError) as error:
            raise self._broken(error) from None
        answer, _, self._early = heard.partition(b"\n")
        try:
            said_back = json.loads(answer)
        except (ValueError, RecursionError):
            said_back = None
        if not isinstance(said_back, dict):
            raise _nonsense()
        return said_back

    def receive(self) -> bytes:
        """What comes next; b"" at the end.  Raises OSError."""
        data, self._early = self._early, b""
        while not data:
            with self._state, contextlib.suppress(ssl.SSLWantReadError):
                data = self._tls.read(RECV_BYTES)
                if not data:
                    return b""  # the slot holder has said that nothing follows
                break
            sealed = self.raw.recv(RECV_BYTES)
            if not sealed:
                raise EOFError
            with self._state:
                self._inlet.write(sealed)
        return data

    def send(self, data: bytes) -> None:
        """Send all of it, waiting while the stream is full.  Raises OSError."""
        with self.sending:
            self.send_alone(data)

    def send_alone(self, data: bytes) -> None:
        """The same, for whoever holds `sending`."""
        rest = memoryview(data)
        while rest:
            with self._state:
                written = self._tls.write(rest[:RECV_BYTES])
                sealed = self._outlet.read()
            self.raw.sendall(sealed)
            rest = rest[written:]

    def hang_up(self) -> None:
        """End the stream, which wakes the threads that wait in it."""
        with contextlib.suppress(OSError):
            self.raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, where no thread receives."""
        self.hang_up()
        with self.sending:
            self.raw.close()

    def _exchange(self) -> None:
        if sealed := self._outlet.read():
            self.raw.sendall(sealed)
        self.raw.settimeout(self._left())
        data = self.raw.recv(RECV_BYTES)
        if not data:
            raise EOFError
        self._inlet.write(data)

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _stranger(self) -> ConnectError:
        return ConnectError(
            "what answers on the slot's port is not its slot holder: it has another certificate",
            f"another program may have got that port: {_OVER}",
        )

    def _broken(self, error: Exception) -> ConnectError:
        if isinstance(error, TimeoutError):
            return ConnectError(
                f"connected, but the slot holder has not answered within {self._timeout_s:g} s", _SLOW
            )
        if isinstance(error, ssl.SSLError):
            return ConnectError(f"what answers on the slot's port is no slot holder ({text(error)})", _OVER)
        return ConnectError(
            "the slot holder has hung up without an answer, as it does for a wrong token, and at its end",
            _OVER,
            again=True,
        )


class DoorWire:
    """A command in a slot, by a TLS connection of its own to the slot holder."""

    advice = OF_SLOT

    def __init__(self, door: SlotDoor, line: DoorLine, call: str, first: bytes) -> None:
        self._door, self._line, self._call = door, line, call
        self._closed = False  # by us
        self._reading = threading.Lock()
        if first:
            with contextlib.suppress(WireClosed):  # listen and last_words tell why
                self.send(first)

    def listen(self, take: Callable[[bytes], None]) -> None:
        try:
            threading.Thread(target=self._read, args=[take], name="read", daemon=True).start()
        except RuntimeError as error:
            raise (NoThreads() if NoThreads.cause_of(error) else error) from None

    def send(self, data: bytes) -> None:
        try:
            self._line.send(data)
        except (OSError, ValueError) as error:
            raise self._ended(error) from None

    def send_now(self, data: bytes) -> bool:
        if not self._line.sending.acquire(blocking=False):
            return False
        try:
            if not has_room(self._line.raw, len(data)):
                return False
            self._line.send_alone(data)
        except (OSError, ValueError) as error:
            raise self._ended(error) from None
        finally:
            self._line.sending.release()
        return True

    @property
    def acknowledged(self) -> bool:
        return False

    def close(self) -> None:
        self._closed = True
        self._line.hang_up()
        with self._reading:  # else the reader could read from a new file that has got the same descriptor
            self._line.close()

    def last_words(self) -> str:
        if self._closed:
            return ""
        try:
            words, code = self._door.words(self._call, WORDS_S)
        except ConnectError as error:
            return f"its slot holder does not answer, either ({error.message})"
        ended = (
            "" if code is None else f"exit status {code}" if code < 128 else f"killed by signal {code - 128}"
        )
        return last_words(ended, words.encode())

    def _read(self, take: Callable[[bytes], None]) -> None:
        data = b"."
        while data:
            with self._reading:
                try:
                    data = self._line.receive()
                except (OSError, EOFError, ValueError):
                    data = b""
            take(data)

    def _ended(self, error: Exception) -> WireClosed:
        return WireClosed(f"the connection is closed: {self.last_words() or text(error)}")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name
        return address == "localhost"


def _refused(answer: dict[str, Any]) -> ConnectError:
    why = str(answer.get("why", ""))[:LONGEST_WHY]
    if answer.get("ends_in") is None:
        return ConnectError(
            f"the slot holder refuses: {why}", "is that machine out of memory or of processes?"
        )
    return ConnectError(
        why, "it takes no new commands; start the run again when the engine gives other slots"
    )


def _nonsense() -> ConnectError:
    return ConnectError("the slot holder answers what no slot holder says", _OVER)


def _unreached(error: OSError, port: int, timeout_s: float) -> ConnectError:
    """Why there is no TCP connection to the slot holder."""
    where = f"port {port}, where the slot holder listens,"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return ConnectError(
            f"no answer on {where} within {timeout_s:g} s",
            "is that node up? does a firewall stand between it and this machine?",
        )
    if isinstance(error, socket.gaierror):
        return ConnectError(
            "the address of the slot's node does not resolve", "can this machine resolve its name?"
        )
    known = {
        errno.ECONNREFUSED: (f"{where} refuses the connection", _OVER),
        errno.EHOSTUNREACH: ("there is no route to the slot's node", "is that node up?"),
        errno.ENETUNREACH: (
            "there is no route to the network of the slot's node",
            "is the network or the VPN up?",
        ),
        errno.EMFILE: ("this machine has no file descriptors left", "raise `ulimit -n`"),
    }
    if error.errno in known:
        return ConnectError(*known[error.errno])
    return ConnectError(f"{where} could not be dialled: {text(error)}", _OVER)
