"""The names in /etc/hosts, read at once: the C library reads the whole file anew for each name."""

import os

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Iterator, List, Tuple

HOSTS, SWITCH, CACHE = "/etc/hosts", "/etc/nsswitch.conf", "/var/run/nscd/socket"
MOST_BYTES = 1 << 18  # a longer file, such as a list of advertisers, the C library reads faster


def listed(names: "Iterable[str]") -> "Dict[str, List[Tuple[int, str]]]":
    """The (family, address) of each of those names of which getaddrinfo would find the same there, and nowhere else.

    That is so where files are asked first, and a name stands in one place.  All that is not plain is left out.
    """
    found = {}  # type: Dict[str, List[Tuple[int, str]]]
    places = {}  # type: Dict[bytes, List[Tuple[bytes, bytes]]]
    try:
        [order] = [words[1:3] for words in _lines(SWITCH) if words[0].lower().startswith(b"hosts:")]
        if os.path.exists(CACHE) or order[:1] != [b"files"] or b"[" in order[-1]:
            return found
        for address, *aliases in _lines(HOSTS):
            for each in aliases:
                places.setdefault(each.lower(), []).append((each, address))
    except (OSError, ValueError):  # or no such line, or two
        return found
    for name in filter(str.isascii, names):  # others are written there in another way
        lines = places.get(name.lower().encode(), ())
        if len(lines) == 1 and lines[0][0] == name.encode():
            found.update((name, [each]) for each in _plain(lines[0][1]))
    return found


def _lines(path: str) -> "Iterator[List[bytes]]":
    """The words of each line; raises OSError, also where the file is too long."""
    with open(path, "rb", 0) as file:
        text = file.read(MOST_BYTES)
    if len(text) == MOST_BYTES:
        raise OSError
    for line in text.split(b"\n"):
        words = line.partition(b"#")[0].split()
        if words:
            yield words


def _plain(address: bytes) -> "Iterator[Tuple[int, str]]":
    """Not what is no address, nor loopback or IPv4 in the form of IPv6, of which there are two readings."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            packed = socket.inet_pton(family, address.decode())
        except (OSError, ValueError):
            continue
        if any(packed[:8]):
            yield family, socket.inet_ntop(family, packed)
