"""What a hostfile or a record names reaches a shell of this machine by %r, %h and %n of ssh_config: it runs nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.launcher import Launcher
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.remote import ConnectOptions, Connector

WAYS = {
    "proxy command": "Host *\n  ProxyCommand echo %r %h %n %p\n",
    "match exec": 'Match exec "echo %r %h %n %p"\n  User ann\n',
}
# (the line of the hostfile, where the refused value stands, the words of ssh)
HOSTFILES = {
    "user": ("- {name: gpu01, user: '%s'}", "1:23", "remote username contains invalid characters"),
    "defaults": (
        "defaults: {user: '%s'}\nhosts: [gpu01]",
        "1:18",
        "remote username contains invalid characters",
    ),
    "jump user": (
        "- {name: gpu01, proxy_jump: '%s@b'}",
        "1:29",
        "remote username contains invalid characters",
    ),
    "jump host": ("- {name: gpu01, proxy_jump: 'a,%s'}", "1:29", "hostname contains invalid characters"),
    "ssh": ("- {name: gpu01, ssh: '%s'}", "1:22", "hostname contains invalid characters"),
    "address": ("- {name: gpu01, address: '%s'}", "1:26", "hostname contains invalid characters"),
    "name": ("- {name: '%s'}", "1:10", "a host name is made of letters, digits"),
    "short name": ("- '%s'", "1:3", "a host name is made of letters, digits"),
    "plain": ("%s slots=1\nother", "1:1", ""),
    "plain user": ("gpu01\n%s@gpu02 slots=1", "2:1", "is not a user name"),
}
PAYLOADS = (
    "$(touch${IFS}%s)",
    "`touch${IFS}%s`",
    ";touch${IFS}%s;",
    "|touch${IFS}%s",
    "x$IFS-oProxyCommand=touch$IFS%s",
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The file that an injected command would make."""
    return tmp_path / "injected"


def sentences(launcher: Launcher, hostfile: Path | str, way: str, verb: str) -> tuple[int, str]:
    config = launcher.home / ".ssh/config"
    config.parent.mkdir(exist_ok=True)
    config.write_text(WAYS[way])
    words = {
        "ps": ("--hosts", hostfile),
        "gpus": (hostfile,),
        "run": (hostfile, launcher.script("print()"), "--workers", "1", "--ps", "0"),
    }[verb]
    done = launcher.run(verb, "-F", config, *words)
    assert "Traceback" not in done.err
    return done.code, done.sentences


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", HOSTFILES)
def test_a_hostfile_runs_nothing_here(launcher: Launcher, trace: Path, form: str, way: str) -> None:
    text, position, words = HOSTFILES[form]
    hostfile = launcher.directory / "hosts.yaml"
    hostfile.write_text(text % (PAYLOADS[0] % trace) + "\n")
    code, said = sentences(launcher, hostfile, way, "ps")
    assert code == 2
    assert f"{hostfile}:{position}: " in said
    assert words in said
    assert not trace.exists()


@pytest.mark.parametrize("verb", ["gpus", "run"])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_verb_and_no_way_to_write_it_runs_anything(
    launcher: Launcher, trace: Path, payload: str, verb: str
) -> None:
    hostfile = launcher.directory / "hosts.yaml"
    hostfile.write_text(f"- {{name: gpu01, user: '{payload % trace}'}}\n")
    code, said = sentences(launcher, hostfile, "proxy command", verb)
    assert code == 2
    assert "remote username contains invalid characters" in said
    assert not trace.exists()


def test_hosts_of_the_command_line_run_nothing_here(launcher: Launcher, trace: Path) -> None:
    for inline in (f"$(touch${{IFS}}{trace.name})@gpu01", f"gpu01,$(touch${{IFS}}{trace.name})"):
        code, said = sentences(launcher, inline, "proxy command", "gpus")
        assert code == 2
        assert "<inline>:1:" in said
    assert not [*launcher.directory.rglob(trace.name)]


BROKEN: dict[str, Callable[[str], Host]] = {
    "user": lambda text: Host("gpu01", user=text),
    "jump user": lambda text: Host("gpu01", proxy_jump=f"{text}@b"),
    "jump host": lambda text: Host("gpu01", proxy_jump=f"ssh://a,{text}"),
    "ssh": lambda text: Host("gpu01", ssh_host=text),
    "name": Host,
    "port": lambda text: Host("gpu01", port=text),  # type: ignore[arg-type]
    "key": lambda text: Host("gpu01", identity_file=f"%d\nProxyCommand {text}"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("field", BROKEN)
def test_what_did_not_come_by_a_hostfile_runs_nothing_either(
    tmp_path: Path, trace: Path, field: str, way: str
) -> None:
    # As a record of a run has it, whoever wrote that.
    config = tmp_path / "config"
    config.write_text(WAYS[way])
    host = BROKEN[field](f"$(touch${{IFS}}{trace})")
    connector = Connector([host], ConnectOptions(2, ssh_config=config), None)
    with pytest.raises(ConnectError) as caught:
        connector.open(host, "true")
    connector.close()
    assert caught.value.hint
    assert not trace.exists()
    assert re.match(r"(user|proxy_jump|ssh|name|port|identity_file): ", caught.value.message)


def test_a_record_that_somebody_changed_runs_nothing(launcher: Launcher, trace: Path) -> None:
    hosts = launcher.local(1)
    run = launcher.run("run", hosts, launcher.script("print()"), "--workers", "1", "--ps", "0").ran()
    [record] = launcher.records()
    assert run.code == 0
    [about] = [path for path in record.glob("*.json") if '"hostfile"' in path.read_text()]
    changed = json.loads(about.read_text())
    changed["hostfile"]["hosts"][0] |= {"connection": "ssh", "user": f"$(touch${{IFS}}{trace})"}
    about.write_text(json.dumps(changed))
    config = launcher.directory / "config"
    config.write_text(WAYS["proxy command"])
    done = launcher.run("attach", "-F", config, record.name)
    assert "Traceback" not in done.err
    assert done.code
    assert not trace.exists()


def test_what_ssh_config_itself_says_is_the_user_s(tmp_path: Path) -> None:
    # As ssh has it: the file could as well say what to run.
    config = tmp_path / "config"
    config.write_text("Host gpu01\n  User $(x)\n  ProxyCommand echo %r\n")
    connector = Connector([Host("gpu01")], ConnectOptions(2, ssh_config=config), None)
    with pytest.raises(ConnectError, match=r"banner|ProxyCommand|not SSH"):
        connector.open(Host("gpu01"), "true")
    connector.close()
