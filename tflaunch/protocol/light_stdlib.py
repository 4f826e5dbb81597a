"""Parts of the standard library that load quickly: `signal`, `socket` and `sha256`, for a start on a host."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from hashlib import sha256
else:
    # What `signal` and `socket` themselves are made of: their enumerations take longer to load than a task to start.
    # A socket of these knows no `with` and no `accept` (see tflaunch.protocol.selector).
    try:
        import _signal as signal
        import _socket as socket
    except ImportError:  # another Python
        import signal
        import socket

    # A digest that every Python has, one that obeys FIPS 140 too.  `hashlib` loads OpenSSL with it, which takes as
    # long as half of a start.
    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
        sha256()
    except (ImportError, ValueError):
        from hashlib import sha256

__all__ = ("sha256", "signal", "socket")
