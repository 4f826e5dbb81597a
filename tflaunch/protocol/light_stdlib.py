"""`signal`, `socket` and `sha256` without the parts that are slow to import, for a quick start on a host."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from hashlib import sha256
else:
    # The C modules under `signal` and `socket`: the enumerations in Python take longer to load than a task to start.
    # Such a socket has no `with` and no `accept` (see tflaunch.protocol.selector).
    try:
        import _signal as signal
        import _socket as socket
    except ImportError:  # another implementation of Python
        import signal
        import socket

    # SHA-256 is in every Python, also under FIPS 140.  `hashlib` would load OpenSSL, which takes half as long as the
    # rest of the start.
    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
        sha256()
    except (ImportError, ValueError):
        from hashlib import sha256

__all__ = ("sha256", "signal", "socket")
