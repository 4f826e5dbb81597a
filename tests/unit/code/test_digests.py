"""The digests of shipped code."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from tflaunch.protocol import code_manifest


def test_all_ways_to_hash_give_one_name() -> None:
    name = hashlib.sha256(b"content").hexdigest()[:40]
    assert code_manifest.digest_of(b"content") == name
    alone = (
        "import sys; from tflaunch.protocol.code_manifest import digest_of; "
        "print(digest_of(b'content'), 'hashlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [name, "False"], "an agent with little code loads no OpenSSL"


def test_where_openssl_is_loaded_already_it_hashes_small_contents_too() -> None:
    """The launcher has it, and hashes many small files: it takes a fifth of the time."""
    assert type(code_manifest.hasher(1)) is type(hashlib.sha256())
