"""Real OpenSSH servers for the tests: one `Sshd` per "host" on 127.0.0.2, .3, ..., as root or as anybody.

    network = SshNetwork(tmp_path, key)         # or the `network` fixture
    gpu01 = network.add(bashrc="echo noise")    # a running sshd with its own home directory
    network.config                              # an ssh_config for all of them: `ssh -F config host1 true`
    gpu01.host()                                # its entry of a hostfile

Every sshd has its own host key, authorized_keys, log and home directory (`SetEnv HOME=`: the login shell reads
the .bashrc there, never the account's own; commands still start in the account's own home, which sshd picks).
Nothing is left running after `close()`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.patience import PATIENCE_S
from tflaunch.hosts import Host

SSHD = shutil.which(
    "sshd", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
)
PRIVILEGE_SEPARATION = Path("/run/sshd")  # sshd refuses to start as root without it


def make_key(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> Path:
    """Make a key pair at `path` and `path.pub`; an existing one is kept."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def public(key: Path) -> str:
    """The public half of a key pair, as a line of authorized_keys."""
    return Path(f"{key}.pub").read_text().strip()


def path_without(directory: Path, *unwanted: str) -> str:
    """A PATH with the system's tools except those whose name starts with one of `unwanted`."""
    directory.mkdir(parents=True, exist_ok=True)
    for place in ("/bin", "/usr/bin", "/usr/local/bin"):
        for tool in Path(place).iterdir() if Path(place).is_dir() else ():
            link = directory / tool.name
            if not tool.name.startswith(unwanted) and not link.is_symlink():
                link.symlink_to(tool)
    return str(directory)


class Sshd:
    """A running sshd and the "host" behind it.

    `options` are lines of sshd_config, each instead of the line with that keyword that a test host has otherwise.
    `bashrc` is what the login shell reads; `path` replaces the PATH of its sessions; `env` is added to it.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        authorized: Sequence[Path],
        *,
        options: Sequence[str] = (),
        bashrc: str = "",
        path: str | None = None,
        env: Mapping[str, str] | None = None,
        host_key: Path | None = None,
    ) -> None:
        self.directory = directory
        self.name = f"host{number}"
        # Only Linux answers on all of 127/8 without being told to.
        self.address = f"127.0.0.{number + 1}" if sys.platform == "linux" else "127.0.0.1"
        self.user = getpass.getuser()
        self.home = directory / "home"
        self.home.mkdir(parents=True)
        self.log_path = directory / "log"
        self.host_key = host_key or make_key(directory / "host_key")
        self.port = 0
        self._options = tuple(options)
        self._env = {"HOME": str(self.home), **(env or {})}
        if path is not None:
            self._env["PATH"] = path
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0  # how often; each start has its own "Server listening" line in the log
        (self.home / ".bashrc").write_text(bashrc)
        self.authorize(*authorized)
        self.start()

    # -- its life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the listener and return when it listens; the port stays what it was the first time."""
        if self._process is not None:
            return
        deadline = time.monotonic() + PATIENCE_S
        while True:
            port = self.port or _free_port(self.address)
            self._process = self._spawn(port)
            if self._listens(deadline):
                self.port = port
                return
            self._process.wait()
            self._process = None
            if time.monotonic() > deadline or "Address already in use" not in self.log():
                raise RuntimeError(f"sshd did not start:\n{self.log()}")

    def kill(self) -> None:
        """Kill the listener and every session with -9, as when the host's sshd dies; commands live on."""
        victims = self.sessions()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        _kill(victims)

    def kill_sessions(self) -> None:
        """Kill every session with -9 and leave the listener alone: what a network that cuts looks like."""
        _kill(self.sessions())

    def restart(self) -> None:
        """Kill everything and listen again on the same port."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop the listener and every session (SIGSTOP): connections are made, nothing is ever said."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen host go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End everything; idempotent."""
        self.kill()

    def sessions(self) -> list[int]:
        """Process ids of the sshd processes behind open connections, not of what they run."""
        if self._process is None:
            return []
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,comm="], check=True, capture_output=True, text=True
        ).stdout
        found = {self._process.pid}
        rows = [line.split(None, 2) for line in listing.splitlines()]
        grown = True
        while grown:  # the session's parent may come after it in the listing
            grown = False
            for pid, parent, command in rows:
                if int(parent) in found and int(pid) not in found and "sshd" in command:
                    found.add(int(pid))
                    grown = True
        return sorted(found - {self._process.pid})

    # -- what a test asks and says --------------------------------------------------------------------------

    def log(self) -> str:
        """Everything that this sshd has said, at LogLevel VERBOSE."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def authorize(self, *keys: Path) -> None:
        """Let these keys in, and no other."""
        (self.directory / "authorized_keys").write_text("".join(public(key) + "\n" for key in keys))

    def host(self, **changes: object) -> Host:
        """The hostfile's entry for this host; everything else comes from the ssh_config."""
        return replace(Host(name=self.name, ssh_host=self.name), **changes)  # type: ignore[arg-type]

    def config(self, key: Path, known_hosts: Path) -> str:
        """Its block of an ssh_config."""
        return (
            f"Host {self.name}\n  HostName {self.address}\n  Port {self.port}\n  User {self.user}\n"
            f"  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known_hosts}\n"
            "  GlobalKnownHostsFile none\n"
        )

    def known_hosts_line(self) -> str:
        """How known_hosts names it."""
        kind, blob = public(self.host_key).split()[:2]
        return f"[{self.address}]:{self.port} {kind} {blob}\n"

    # -- within ---------------------------------------------------------------------------------------------

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        if SSHD is None:
            raise RuntimeError("no sshd found: install openssh-server")
        if os.geteuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        settings = self.directory / "sshd_config"
        env = " ".join(f'"{name}={value}"' for name, value in self._env.items())
        given = {line.split()[0].lower() for line in self._options}
        defaults = (
            f"ListenAddress {self.address}",
            f"Port {port}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.directory}/authorized_keys",
            f"SetEnv {env}",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PrintMotd no",
            "LogLevel VERBOSE",
            "MaxStartups 200",  # a test that wants to be dropped says so
        )
        lines = (*self._options, *(line for line in defaults if line.split()[0].lower() not in given))
        settings.write_text("\n".join(lines) + "\n")
        self._started = self.log().count("Server listening on")
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal of the tests is not for it
            )

    def _listens(self, deadline: float) -> bool:
        assert self._process is not None
        while time.monotonic() < deadline:
            if self.log().count("Server listening on") > self._started:
                return True
            if self._process.poll() is not None:
                return False
            time.sleep(0.005)
        self._process.kill()
        return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            for pid in (self._process.pid, *self.sessions()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


class SshNetwork:
    """Hosts made one by one, and the ssh_config and known_hosts that lead to them."""

    def __init__(self, directory: Path, key: Path) -> None:
        self.directory = directory
        self.key = key
        self.known_hosts = directory / "known_hosts"
        self.known_hosts.write_text("")
        self.sshds: list[Sshd] = []
        self.prepended = ""
        self._config = directory / "ssh_config"

    def add(
        self,
        *,
        options: Sequence[str] = (),
        bashrc: str = "",
        path: str | None = None,
        env: Mapping[str, str] | None = None,
        authorized: Sequence[Path] | None = None,
        host_key: Path | None = None,
        known: bool = True,
    ) -> Sshd:
        """Start a host: host1, host2, ...; `known` writes its host key to known_hosts."""
        number = len(self.sshds) + 1
        sshd = Sshd(
            self.directory / f"host{number}",
            number,
            (self.key,) if authorized is None else authorized,
            options=options,
            bashrc=bashrc,
            path=path,
            env=env,
            host_key=host_key,
        )
        self.sshds.append(sshd)
        if known:
            with self.known_hosts.open("a") as lines:
                lines.write(sshd.known_hosts_line())
        return sshd

    def prepend(self, text: str) -> None:
        """Put lines before everything else in the ssh_config (OpenSSH keeps the first value it reads)."""
        self.prepended += text.rstrip() + "\n"

    @property
    def config(self) -> Path:
        """The ssh_config, written anew each time it is asked for."""
        blocks = (sshd.config(self.key, self.known_hosts) for sshd in self.sshds)
        self._config.write_text(self.prepended + "".join(blocks))
        return self._config

    def hosts(self) -> tuple[Host, ...]:
        """The hostfile's entries for all of them."""
        return tuple(sshd.host() for sshd in self.sshds)

    def close(self) -> None:
        """End every host."""
        for sshd in self.sshds:
            sshd.close()


class SshAgent:
    """A real ssh-agent holding the given keys; `socket` is what SSH_AUTH_SOCK would say."""

    def __init__(self, directory: Path, keys: Sequence[Path] = ()) -> None:
        self.socket = directory / "agent.sock"
        self._process = subprocess.Popen(
            ["ssh-agent", "-D", "-a", str(self.socket)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + PATIENCE_S
        while not self.socket.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        self.add(*keys)

    def add(self, *keys: Path, passphrase: str = "") -> None:
        """Hand keys to the agent."""
        for key in keys:
            plain = key
            if passphrase:  # ssh-add would ask on the terminal
                plain = key.with_name(key.name + ".plain")
                shutil.copy2(key, plain)
                change = ["ssh-keygen", "-q", "-p", "-P", passphrase, "-N", "", "-f", str(plain)]
                subprocess.run(change, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            env = {**os.environ, "SSH_AUTH_SOCK": str(self.socket)}
            subprocess.run(["ssh-add", "-q", str(plain)], check=True, env=env, stdin=subprocess.DEVNULL)
            if plain is not key:
                plain.unlink()

    def freeze(self) -> None:
        """Let it answer nothing any more."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def logins(sshd: Sshd) -> int:
    """How many connections this sshd has let in."""
    return len(re.findall(r"Accepted publickey", sshd.log()))


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
