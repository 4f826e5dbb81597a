"""The ways to hosts: each does all that a way must, and a connection that there is not is told at once."""

from __future__ import annotations

import inspect

import pytest

from tflaunch import remote
from tflaunch.hosts import Host
from tflaunch.inputs.engine_words import ENGINES
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.sessions.wires import Way

WAYS = (remote.SshClient, remote.OpenSsh, remote.ThisMachine, remote.SlotWay)
NO_DEADLINE = remote.ConnectOptions()


def methods(kind: type) -> dict[str, list[str]]:
    """The public methods, with the kinds of their parameters behind `self`."""
    return {
        name: [parameter.kind.name for parameter in list(inspect.signature(method).parameters.values())[1:]]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_all_methods(way: type) -> None:
    wanted, there = methods(Way), methods(way)
    assert {"open", "unanswered", "hostname", "user", "host_key", "close"} == set(wanted)
    for name, parameters in wanted.items():
        assert name in there, f"{way.__name__} has no {name}"
        assert len(there[name]) == len(parameters), f"{way.__name__}.{name} takes other parameters"


@pytest.mark.parametrize("connection", ["ssh", "openssh", "local"])
def test_each_connection_has_a_way(connection: str) -> None:
    connector = remote.Connector([Host("n1", connection=connection)], NO_DEADLINE, None)
    assert isinstance(connector._ways[connection], WAYS)
    connector.close()


def test_a_connection_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Host("n2", connection="nosuch")
    with pytest.raises(UsageError, match="n2: there is no connection 'nosuch'") as caught:
        remote.Connector([unknown], NO_DEADLINE, None)
    assert caught.value.hint.endswith(", ".join(["this one has ssh, openssh, local", *ENGINES]))
    monkeypatch.setenv("TFLAUNCH_ENGINES", "plain=tests.support.plain")
    with pytest.raises(UsageError) as caught:
        remote.Connector([unknown], NO_DEADLINE, None)
    assert caught.value.hint.endswith(", ".join(["ssh, openssh, local, plain", *ENGINES]))
    connector = remote.Connector([Host("n1", connection="plain")], NO_DEADLINE, None)
    assert isinstance(connector._ways["plain"], remote.SlotWay)


def test_beside_hosts_that_can_be_reached_it_costs_its_own_host() -> None:
    hosts = [Host("n1", connection="local"), Host("n2", connection="nosuch")]
    connector = remote.Connector(hosts, NO_DEADLINE, None)
    with pytest.raises(ConnectError, match="there is no connection 'nosuch'"):
        connector.open(hosts[1], "true")
    connector.open(hosts[0], "true").close()
