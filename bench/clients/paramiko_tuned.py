"""Bare paramiko, as quick as it can be had: threads, no Nagle, no delayed ACK, key and known hosts read once.

What comes is written on as it comes: the most that any launcher above paramiko can show.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paramiko

from bench.clients.common import AT_A_TIME, KEY, SSH, end, given

key = paramiko.Ed25519Key.from_private_key_file(KEY)
known = paramiko.HostKeys(str(SSH / "known_hosts"))


class Prompt:
    """A socket that acknowledges at once; the kernel forgets that wish, so it is told again and again."""

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped
        wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def recv(self, size: int) -> bytes:
        received = self._wrapped.recv(size)
        self._wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def connect(host: str) -> paramiko.Transport:
    transport = paramiko.Transport(Prompt(socket.create_connection((host, 22), 60)))  # type: ignore[arg-type]
    transport.banner_timeout = 60
    transport.get_security_options().ciphers = ["aes128-gcm@openssh.com"]
    transport.start_client(timeout=60)
    if not known.check(host, transport.get_remote_server_key()):
        raise paramiko.SSHException(f"{host} has another key")
    transport.auth_publickey("root", key)
    return transport


def run(host: str) -> int:
    transport = connect(host)
    channel = transport.open_session()
    channel.exec_command(command)
    while data := channel.recv(1 << 18):
        while data:
            data = data[os.write(1, data) :]
    code = channel.recv_exit_status()
    transport.close()
    return code


if __name__ == "__main__":
    hosts, command = given()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        end(pool.map(run, hosts), len(hosts))
