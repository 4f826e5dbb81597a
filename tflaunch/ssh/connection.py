"""How to reach a host, and the connection to it, as one object: fabric's Connection."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from fabric import Config, Connection
from paramiko.config import SSHConfig, SSHConfigDict
from paramiko.ssh_exception import ChannelException, SSHException

from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions.socket_tools import text
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.failures import SILENT, SLOW
from tflaunch.ssh.login import LoginClient
from tflaunch.ssh.target import Target
from tflaunch.ssh.transport import SshStream

# RFC 4254: SSH_OPEN_ADMINISTRATIVELY_PROHIBITED, SSH_OPEN_CONNECT_FAILED
_FORBIDDEN, _FAILED = 1, 2


class _NoSettings(SSHConfig):
    """ssh_config is in the targets already: fabric would read it anew, and walk a ProxyJump from its end."""

    def lookup(self, _: str) -> SSHConfigDict:
        return SSHConfigDict()


# One for all, for each takes a millisecond to make.
_CONFIG = Config(ssh_config=_NoSettings(), lazy=True)
# An attribute: the setting would be wrapped anew at each look, by way of two exceptions.
_CONFIG._set(connect_kwargs={})


class HostConnection(Connection):  # type: ignore[misc]  # fabric has no types
    """A host with its address, port and account, and the jump host before it as the gateway: fabric's Connection.

    `open()` is fabric's: it opens a stream, `stream` itself or one through the gateway, and has `client` log in.
    """

    # fabric takes an attribute that no class declares for a setting, and lists all attributes to find out.
    __setattr__ = object.__setattr__
    # Two settings that fabric would look up for each host, by way of several objects.
    authentication = SimpleNamespace(strategy_class=None)

    client: LoginClient
    target: Target
    deadline: Deadline
    _on_stream: Callable[[], None]

    def __init__(
        self,
        client: LoginClient,
        target: Target,
        deadline: Deadline,
        *,
        stream: SshStream | None = None,
        gateway: HostConnection | None = None,
        on_stream: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_stream` is called when the gateway has reached the host, or has failed to."""
        super().__init__(
            target.hostname,
            user=target.user,
            port=target.port,
            gateway=gateway or False,
            forward_agent=False,
            inline_ssh_env=True,
            connect_timeout=0,  # `deadline` has it
            config=_CONFIG,
            connect_kwargs={"sock": stream} if stream else {},
        )
        self.client, self.target, self.deadline, self._on_stream = client, target, deadline, on_stream

    def open_gateway(self) -> SshStream:
        """A stream through the jump host; raises ConnectError.  fabric's would wait for an hour."""
        jump: Target = self.gateway.target
        transport = self.gateway.transport
        place = f"port {self.port} behind it"
        try:
            return SshStream(
                transport.open_channel(
                    "direct-tcpip",
                    (self.host, self.port),
                    ("127.0.0.1", 0),
                    timeout=self.deadline.left(),
                )
            )
        except ChannelException as error:
            if error.code == _FORBIDDEN:
                raise ConnectError(
                    f"jump host {jump.name} forbids forwarding to port {self.port}",
                    "set AllowTcpForwarding yes, and PermitOpen, in its sshd_config",
                ) from None
            raise ConnectError(
                f"jump host {jump.name} could not reach {place}",
                f"try it from there: `{jump.ssh} ssh-keyscan -p {self.port} {self.host}`",
                absent=error.code == _FAILED,
            ) from None
        except (SSHException, OSError, EOFError) as error:
            if self.deadline.passed and transport.is_active():
                raise ConnectError(
                    f"jump host {jump.name} got no answer on {place} within {self.deadline}",
                    SILENT,
                    absent=True,
                ) from None
            cause = f"no answer within {self.deadline}" if self.deadline.passed else text(error)
            raise ConnectError(f"jump host {jump.name}: its connection broke ({cause})", SLOW) from None
        finally:
            self._on_stream()

    def close(self) -> None:
        """Close the connection, also one that is broken already; idempotent, from any thread."""
        self.client.close()
