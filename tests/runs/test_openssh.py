"""`connection: openssh`: the system's `ssh` as the wire, against real sshds."""

from __future__ import annotations

import base64
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.launcher import Launcher
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import Sshd, SshNetwork, logins, make_key, path_without, public
from tests.support.wires import Client, Line, at, everything, read
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError

PROGRAM = """\
import os, sys, time
print("started", os.environ["TFLAUNCH_TASK"], flush=True)
go = sys.argv[-1]
while not os.path.exists(go):
    time.sleep(0.05)
print("done", os.environ["TFLAUNCH_TASK"], flush=True)
"""


@pytest.fixture
def client(network: SshNetwork) -> Iterator[Client]:
    client = Client(network)
    yield client
    client.close()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="cm") as directory:
        yield Path(directory)


def openssh(sshd: Sshd, **changes: Any) -> Host:
    return sshd.host(connection="openssh", **changes)


def processes(config: Path) -> list[int]:
    """The ssh processes that read this ssh_config."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(config) in words and Path(os.fsdecode(words[0])).name.startswith("ssh"):
                found.append(int(entry.name))
    return found


def write_token_key(path: Path) -> None:
    """A key file as `ssh-keygen -t ed25519-sk` writes it; what is secret of it is on the token."""

    def field(text: bytes) -> bytes:
        return len(text).to_bytes(4, "big") + text

    public_half = field(b"sk-ssh-ed25519@openssh.com") + field(bytes(range(32))) + field(b"ssh:")
    private = bytes(8) + public_half + b"\x01" + field(b"handle" * 10) + field(b"") + field(b"token")
    private += bytes(range(1, 1 + -len(private) % 8))
    body = b"openssh-key-v1\0" + field(b"none") + field(b"none") + field(b"") + (1).to_bytes(4, "big")
    lines = base64.encodebytes(body + field(public_half) + field(private)).decode()
    path.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}-----END OPENSSH PRIVATE KEY-----\n")
    path.chmod(0o600)


def sign(authority: Path, key: Path, *options: str) -> Path:
    """Have a certificate made for a key; it lies beside it."""
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", *options, f"{key}.pub"]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Path(f"{key}-cert.pub")


# -- what only ssh can -------------------------------------------------------------------------------------


def test_a_certificate_that_lies_elsewhere_lets_in(client: Client, tmp_path: Path) -> None:
    authority, key = make_key(tmp_path / "authority"), make_key(tmp_path / "mine")
    elsewhere = tmp_path / "certificate.pub"
    sign(authority, key, "-n", getpass.getuser()).rename(elsewhere)
    sshd = client.network.add(options=[f"TrustedUserCAKeys {authority}.pub"], authorized=[])
    client.network.key = key
    client.network.prepend(f"CertificateFile {elsewhere}")
    error = client.refusal(sshd.host())
    assert "the server refused key" in error.message
    assert "or `connection: openssh` in the hostfile (or --connection openssh)" in error.hint
    assert error.hint.endswith("which knows CertificateFile")
    assert everything(client.open(openssh(sshd), "echo in")) == b"in\n"


def test_a_host_certificate_is_checked(client: Client, tmp_path: Path) -> None:
    authority, key = make_key(tmp_path / "authority"), make_key(tmp_path / "host")
    certificate = sign(authority, key, "-h")
    sshd = client.network.add(host_key=key, options=[f"HostCertificate {certificate}"], known=False)
    client.network.known_hosts.write_text(f"@cert-authority * {public(authority)}\n")
    error = client.refusal(sshd.host())
    assert "certificates are not checked" in error.message
    assert error.hint.endswith("which checks certificates")
    assert everything(client.open(openssh(sshd), "echo in")) == b"in\n"


def test_a_host_with_a_certificate_is_told_what_is_wrong(client: Client, tmp_path: Path) -> None:
    authority, key = make_key(tmp_path / "authority"), make_key(tmp_path / "host")
    certificate = sign(authority, key, "-h")
    sshd = client.network.add(host_key=key, options=[f"HostCertificate {certificate}"], known=False)
    shown = subprocess.check_output(["ssh-keygen", "-lf", f"{key}.pub"], text=True).split()[1]
    error = client.refusal(openssh(sshd))
    assert "unknown" in error.message or "does not trust the server's host certificate" in error.message
    assert shown in error.hint
    # Its authority is known, but not the user's key.
    client.network.known_hosts.write_text(f"@cert-authority * {public(authority)}\n")
    sshd.authorize(make_key(tmp_path / "another"))
    assert client.refusal(openssh(sshd)).message.startswith(f"user {sshd.user}: the server refused key ")


@pytest.mark.parametrize(
    "options",
    [
        ["Ciphers chacha20-poly1305@openssh.com"],
        ["Ciphers aes128-ctr", "MACs umac-128-etm@openssh.com"],
        ["KexAlgorithms diffie-hellman-group-exchange-sha256"],
    ],
)
def test_algorithms_that_paramiko_lacks(client: Client, options: list[str]) -> None:
    sshd = client.network.add(options=options)
    assert client.refusal(sshd.host()).hint.endswith("has the system's `ssh` connect, which may have one")
    assert everything(client.open(openssh(sshd), "echo in")) == b"in\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("UserKnownHostsFile ${TFLAUNCH_NOT_SET}/kh", "env var ${TFLAUNCH_NOT_SET} has no value"),
        ("IdentityFile ~nosuchuser/id", "No such user nosuchuser"),
        ("ProxyCommand nc %z", "unknown key %z"),
        ("Port nosuch", "line 1: Bad port 'nosuch'"),
        ("Nonsense yes", "Bad configuration option: nonsense"),
    ],
)
def test_what_ssh_says_of_its_configuration_is_told(client: Client, line: str, said: str) -> None:
    sshd = client.network.add()
    client.network.prepend(line)
    for _ in range(3):  # it may end before it is given anything
        error = client.refusal(openssh(sshd), "cat", first=b"x" * 300_000)
        assert error.message.startswith("ssh cannot use its configuration: ")
        assert said in error.message


def test_what_the_configuration_may_say_that_paramiko_does_not_know(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add()
    revoked = make_key(tmp_path / "revoked")
    client.network.prepend(f"RevokedHostKeys {revoked}.pub\nKnownHostsCommand /bin/true")
    assert "connection: openssh" in client.refusal(sshd.host()).hint
    assert everything(client.open(openssh(sshd), "echo in")) == b"in\n"
    shutil.copy(f"{sshd.host_key}.pub", f"{revoked}.pub")
    assert f"host key that {revoked}.pub has revoked" in client.refusal(openssh(sshd)).message


def test_a_key_on_a_token_is_called_one(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add()
    client.network.key = tmp_path / "id_ed25519_sk"
    write_token_key(client.network.key)
    assert "sk-ssh-ed25519" in subprocess.check_output(
        ["ssh-keygen", "-y", "-f", client.network.key], text=True
    )
    error = client.refusal(sshd.host())
    assert "a key on a FIDO token, with which tflaunch cannot sign" in error.message
    assert error.hint.endswith("which knows FIDO tokens")


@pytest.fixture
def master(network: SshNetwork, short: Path, tmp_path: Path) -> Iterator[Sshd]:
    """A host that somebody has logged in to, with a key that is there no more: nobody else gets in."""
    sshd = network.add()
    network.prepend(f"ControlPath {short}/%C")
    argv = ["ssh", "-F", str(network.config), "-M", "-N", sshd.name]
    env = {**os.environ, "HOME": str(short)}  # it is no leftover of a run
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, env=env) as process:
        until(lambda: list(short.iterdir()), "a master")
        sshd.authorize(make_key(tmp_path / "another"))
        yield sshd
        assert process.poll() is None, "the master has ended"
        process.terminate()


def test_a_master_s_connection_is_used_and_outlives_the_run(
    master: Sshd, launcher: Launcher, tmp_path: Path
) -> None:
    hostfile = launcher.hostfile([master.name], connection="openssh")
    go = tmp_path / "go"
    with launcher.start(
        "run", hostfile, "--ps=0", "--workers=1", launcher.script(PROGRAM), "--", str(go)
    ) as running:
        running.wait_for("started worker/0")
        assert "Permission denied" not in running.err
        go.touch()
        assert running.end() == 0, running.err
    assert "done worker/0" in running.out
    assert logins(master) == 1
    # Also one that is killed with its launcher.
    go.unlink()
    with launcher.start(
        "run", hostfile, "--ps=0", "--workers=1", launcher.script(PROGRAM), "--", str(go)
    ) as running:
        running.wait_for("started worker/0")
        running.interrupt()
        assert running.end() == 130
    assert logins(master) == 1


def test_what_a_master_does_not_tell_is_found_out(master: Sshd, client: Client) -> None:
    host = openssh(master)
    connector = client.connector([host])
    wire = Line(connector.open(host, "cat", b"hi"))
    assert read(wire, 2) == b"hi"
    assert connector.dial_address(host) == master.address
    assert connector.host_key(host) == ""
    wire.close()


def test_one_machine_twice_is_seen_through_a_master(master: Sshd, launcher: Launcher) -> None:
    hosts = [master.name, {"name": "again", "ssh": master.name, "user": master.user}]
    done = launcher.run("run", launcher.hostfile(hosts, connection="openssh"), launcher.script(PROGRAM))
    assert done.code == 65
    assert f"{master.name} and again are one machine" in done.err
    assert "same name of its own, same boot" in done.err


def test_no_master_is_made(client: Client, short: Path) -> None:
    sshd = client.network.add()
    client.network.prepend(f"ControlMaster auto\nControlPersist yes\nControlPath {short}/%C")
    wire = client.open(openssh(sshd), "echo in")
    assert everything(wire) == b"in\n"
    assert not list(short.iterdir())
    until(lambda: not processes(client.network.config), "no ssh any more")


# -- the user's configuration, and what overrides it ---------------------------------------------------------


def test_what_would_spoil_the_stream_is_overridden(client: Client, tmp_path: Path) -> None:
    first, sshd = client.network.add(), client.network.add()
    client.network.prepend(
        f"Host {sshd.name}\n  RequestTTY force\n  RemoteCommand date\n  PermitLocalCommand yes\n"
        f"  LocalCommand echo local; touch {tmp_path}/ran\n  LogLevel QUIET\n  EscapeChar ~\n"
        f"  LocalForward {first.port + 1} localhost:22\n  ExitOnForwardFailure yes\n  ForwardAgent yes\n"
        f"  ProxyJump {first.name}\nHost *"
    )
    data = b"\n~.\n~?\n" + bytes(range(256)) * 4096
    wire = client.open(openssh(sshd), "cat", data)
    assert read(wire, len(data)) == data
    wire.close()
    assert not (tmp_path / "ran").exists()
    assert logins(first) == logins(sshd) == 1


def test_two_jump_hosts(client: Client) -> None:
    first, second, last = (client.network.add() for _ in range(3))
    host = openssh(last, proxy_jump=f"{first.name},{second.name}")
    connector = client.connector([host])
    wire = Line(connector.open(host, "echo in"))
    assert everything(wire) == b"in\n"
    assert [logins(sshd) for sshd in (first, second, last)] == [1, 1, 1]
    assert connector.dial_address(host) == last.address
    wire.close()
    until(lambda: not processes(client.network.config), "no ssh to the jump hosts either")


@pytest.mark.parametrize(
    ("way", "said", "absent"),
    [
        ("127.0.0.1:1", "connect to host 127.0.0.1 port 1: Connection refused", True),
        ("nowhere.invalid", "Could not resolve hostname nowhere.invalid", True),
        ("{unknown}", "Host key verification failed", False),
    ],
)
def test_a_way_that_fails_is_quoted(client: Client, way: str, said: str, absent: bool) -> None:
    sshd, unknown = client.network.add(), client.network.add(known=False)
    with pytest.raises(ConnectError) as caught:
        client.open(openssh(sshd, proxy_jump=way.format(unknown=unknown.name)))
    assert f"the way through its ProxyJump or ProxyCommand failed; it said: {said}" in caught.value.message
    assert caught.value.absent is absent


def test_the_hostfile_s_settings_win(client: Client, tmp_path: Path) -> None:
    key = make_key(tmp_path / "other")
    sshd = client.network.add(authorized=[key])
    client.network.prepend("Port 1\nUser nobody")
    host = openssh(sshd, port=sshd.port, user=sshd.user, identity_file=str(key))
    assert everything(client.open(host, "echo in")) == b"in\n"


def test_a_banner_is_no_word_of_the_host(client: Client, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text("debug1: Authorized users only!\nPermission denied (nobody).\n")
    sshd = client.network.add(options=[f"Banner {tmp_path}/banner"], bashrc="echo noise; echo more >&2")
    wire = client.open(openssh(sshd), "echo out; exit 3")
    assert everything(wire) == b"noise\nout\n"
    assert wire.last_words() == "exit status 3; it said: more"


# -- why not, in the same words as by paramiko ---------------------------------------------------------------


def both(client: Client, host: Host, **options: Any) -> tuple[ConnectError, ConnectError]:
    """What both kinds of connection say of a host that cannot be used."""
    changed = [Host(**{**vars(host), "connection": kind}) for kind in ("ssh", "openssh")]
    one, other = (client.refusal(each, **options) for each in changed)
    return one, other


def test_the_usual_failures_have_one_sentence(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add()
    unknown = client.network.add(known=False)
    changed = client.network.add(known=False)
    stranger = client.network.add(authorized=[make_key(tmp_path / "another")])
    partial = client.network.add(
        options=["AuthenticationMethods publickey,password", "PasswordAuthentication yes"]
    )
    asking = client.network.add(options=["PubkeyAuthentication no", "PasswordAuthentication yes"])
    none = client.network.add(options=["MaxSessions 0"])
    with client.network.known_hosts.open("a") as lines:
        lines.write(
            sshd.known_hosts_line().replace(str(sshd.port), str(changed.port)).replace("0.0.2", "0.0.4")
        )
    failures = [
        (Host("gpu01", ssh_host="127.0.0.1", port=1), "port 1 refuses the connection"),
        (Host("gpu01", ssh_host="nowhere.invalid"), "the name does not resolve"),
        (unknown.host(), "the server's ssh-ed25519 host key is unknown"),
        (changed.host(), "the server's ssh-ed25519 host key is not the one in "),
        (stranger.host(), "the server refused key "),
        (partial.host(), "the server wants more than a key (password)"),
        (asking.host(), "the server takes no keys, only password"),
        (none.host(), "the server logged in but refused a session (connect failed)"),
    ]
    for host, said in failures:
        one, other = both(client, host)
        assert said in other.message
        assert one.message.lower() == other.message.lower()
        if host not in (partial.host(), asking.host(), none.host()):
            assert one.hint == other.hint
    for host in (partial.host(), asking.host()):
        one, other = both(client, host)
        assert "goes through the connection of a ControlMaster that you have logged in to" in one.hint
        assert "`ControlMaster auto`" in other.hint


def test_a_server_that_says_nothing_meets_the_deadline(client: Client) -> None:
    sshd = client.network.add()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one, other = both(client, at(listener), timeout_s=6)
        assert one.message == other.message
        assert "no SSH banner" in other.message
    sshd.freeze()
    assert "no SSH banner" in client.refusal(openssh(sshd), timeout_s=6).message
    sshd.thaw()
    until(lambda: not processes(client.network.config), "no ssh any more")


def test_a_network_that_does_not_answer_is_told_while_it_is_dialled(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:  # the queue is full then: what comes now gets no answer
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        host = at(listener, connection="openssh")
        connector = client.connector([host], timeout_s=6)
        assert connector.unanswered(host) is None
        errors: list[ConnectError] = []

        def dial() -> None:
            try:
                connector.open(host, "true")
            except ConnectError as error:
                errors.append(error)

        thread = threading.Thread(target=dial)
        thread.start()
        silent = until(lambda: connector.unanswered(host), "a word of who is dialled")
        assert silent.message == f"no answer on port {host.port}"
        assert silent.absent
        thread.join()
        assert errors[0].message == f"no answer on port {host.port} within 6 s"
        assert connector.unanswered(host) is None
        # Who goes on without it leaves no process behind, also where it was given up and is dialled once more.
        connector = client.connector([host])
        threads = [threading.Thread(target=dial) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(processes(client.network.config)) == 2, "two of them")
        connector.close()
        until(lambda: not processes(client.network.config), "no ssh any more")
        for thread in threads:
            thread.join()
        assert not any(
            "within" in error.message for error in errors[1:]
        )  # it ended them, and no deadline did
        with pytest.raises(ConnectError, match="tflaunch is ending"):
            connector.open(host, "true")
        for each in waiting:
            each.close()


def test_dropped_before_the_banner_is_tried_again(client: Client) -> None:
    """As many as 64 log in at once; sshd takes one."""
    sshd = client.network.add(options=["MaxStartups 1:100:1", "LoginGraceTime 2"])
    with socket.create_connection((sshd.address, sshd.port)):  # it has one that does not log in
        wire = client.open(openssh(sshd), "echo in")
        assert everything(wire) == b"in\n"
    assert re.search(r"drop connection|MaxStartups", sshd.log())


def test_accept_new_writes_the_key_and_a_changed_one_is_refused(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add(known=False)
    wire = client.open(openssh(sshd), "echo in", accept_new=True)
    assert everything(wire) == b"in\n"
    assert client.network.known_hosts.read_text() == sshd.known_hosts_line()
    assert everything(client.open(openssh(sshd), "echo in")) == b"in\n"
    sshd.host_key = make_key(tmp_path / "changed")
    sshd.restart()
    assert "host key is not the one in" in client.refusal(openssh(sshd), accept_new=True).message
    client.network.prepend("StrictHostKeyChecking no")
    assert "host key is not the one in" in client.refusal(openssh(sshd)).message
    until(lambda: not processes(client.network.config), "no ssh any more")


def test_without_ssh_the_error_says_so_and_other_hosts_are_reached(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshds = [client.network.add(), client.network.add(options=["Ciphers chacha20-poly1305@openssh.com"])]
    monkeypatch.setenv("PATH", path_without(tmp_path / "bin", "ssh"))
    connector = client.connector([openssh(sshds[0]), sshds[1].host()])
    with pytest.raises(ConnectError, match="there is no `ssh` on this machine") as caught:
        connector.open(openssh(sshds[0]), "true")
    assert "openssh-client" in caught.value.hint
    assert "connection: openssh" not in client.refusal(sshds[1].host()).hint  # nobody is sent there


@pytest.mark.parametrize("name", ["-oProxyCommand=touch$IFS/tmp/x", "a;b", "$(id)"])
def test_names_that_ssh_would_take_for_more_are_refused(client: Client, name: str) -> None:
    error = client.refusal(Host("gpu01", connection="openssh", ssh_host=name))
    assert "hostname contains invalid characters" in error.message


# -- its process ---------------------------------------------------------------------------------------------


def test_it_has_a_session_of_its_own_and_ends_with_its_wire(client: Client) -> None:
    sshd = client.network.add()
    wire = client.open(openssh(sshd), "echo ready; exec cat")
    assert read(wire, 6) == b"ready\n"
    [pid] = processes(client.network.config)
    assert os.getsid(pid) == pid
    wire.send(b"last")
    wire.close()
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end, and no zombie")
    until(lambda: not sshd.sessions(), "the end of the connection")


def test_what_was_sent_before_the_end_arrives(client: Client, tmp_path: Path) -> None:
    came = tmp_path / "came"
    wire = client.open(openssh(client.network.add()), f"echo ready; cat > {came}")
    assert read(wire, 6) == b"ready\n"
    wire.send(b"x" * 100_000)
    wire.close()
    until(lambda: came.exists() and came.stat().st_size == 100_000, "all of it")


def test_one_that_hangs_is_let_go_of_at_once_and_killed(client: Client) -> None:
    sshd = client.network.add()
    host = openssh(sshd)
    connector = client.connector([host])
    wire = Line(connector.open(host, "echo ready; exec cat"))
    assert read(wire, 6) == b"ready\n"
    [pid] = processes(client.network.config)
    os.kill(pid, signal.SIGSTOP)
    wire.close()
    assert wire.recv(1) == b""
    assert Path(f"/proc/{pid}").exists()  # nobody has waited for it
    connector.close()
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end, and no zombie")


def test_killed_it_is_a_connection_that_broke_and_the_host_comes_back(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    sshd = network.add()
    hostfile = launcher.hostfile([sshd.name], connection="openssh")
    go = tmp_path / "go"
    with launcher.start(
        "run", hostfile, "--ps=0", "--workers=1", launcher.script(PROGRAM), "--", str(go)
    ) as running:
        running.wait_for("started worker/0")
        [pid] = processes(network.config)
        os.kill(pid, signal.SIGKILL)
        running.wait_for("is out of reach")
        running.wait_for("is back after")
        assert "the connection broke (SIGKILL has ended ssh)" in " ".join(running.err.split())
        go.touch()
        assert running.end() == 0, running.err
    assert "done worker/0" in running.out
    assert not processes(network.config)


def test_the_agent_sees_the_end_of_a_launcher_that_is_killed(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    sshd = network.add()
    hostfile = launcher.hostfile([sshd.name], connection="openssh")
    with launcher.start(
        "run",
        hostfile,
        "--ps=0",
        "--workers=1",
        "--lease=5",
        launcher.script(PROGRAM),
        "--",
        str(tmp_path / "go"),
    ) as running:
        running.wait_for("started worker/0")
        running.signal(signal.SIGKILL)
        until(lambda: not processes(network.config), "the end of ssh", PATIENCE_S)
        until(lambda: not sshd.sessions(), "the end of the connection")
        launcher.wait_until_nothing_is_left()


def test_verbs_reach_a_detached_run_as_it_was_started(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    """run -d, attach, ps, gpus, fetch, stop: with what the record says, and with TFLAUNCH_CONNECTION."""
    sshd = network.add(options=["Ciphers chacha20-poly1305@openssh.com"])  # nothing but ssh gets in
    script = launcher.script("open('out.txt', 'w').write('result')\n" + PROGRAM)
    go = tmp_path / "go"
    words = ("--ps=0", "--workers=1", "--detach", script, "--", str(go))
    hostfile = launcher.hostfile([sshd.name])
    refused = launcher.run("run", hostfile, *words)
    assert refused.code == 69
    assert "--connection openssh" in " ".join(refused.err.split())
    done = launcher.run("run", hostfile, "--connection=openssh", *words)
    assert done.code == 0, done.err
    [run] = re.findall(r"(\S+) goes on by itself", done.err)
    assert run in launcher.run("ps").out
    fetched = launcher.run("fetch", run, "--to", str(tmp_path / "got"))
    assert fetched.code == 0, fetched.err
    config = ("-F", network.config)
    gpus = launcher.run("gpus", *config, hostfile, env={"TFLAUNCH_CONNECTION": "openssh"})
    assert gpus.code == 0, gpus.err
    assert launcher.run("check", hostfile, "--connection", "openssh", "--no-tensorflow").code in (0, 65)
    stopped = launcher.run("stop", run)
    assert stopped.code == 0, stopped.err
    assert not processes(network.config)
