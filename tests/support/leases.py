"""Leases and tickets of GPUs, as agents tell of them."""

from __future__ import annotations

from tests.support.agent_over_pipes import Channel, Host
from tflaunch.planning.inventory import HostFacts


def look(channel: Channel, lease: object = False) -> HostFacts:
    said = channel.ask("probe", lease=lease, ports=None, count=0, answer="facts")
    return HostFacts.from_wire("h1", said.fields)


def wait_for(channel: Channel, since: float, *gpus: str, planning: bool = False) -> None:
    channel.send("queue", since=since, wants=len(gpus), gpus=list(gpus), planning=planning)
    look(channel)  # its agent has written the ticket, others can see it


def busy(facts: HostFacts) -> list[str]:
    return [gpu.busy for gpu in facts.gpus]


def another(host: Host, run: str) -> Channel:
    """An agent of another run on the same host."""
    channel = host.open("start", run=f"{host.run}-{run}")
    hello = channel.wait("hello")
    for pid in (hello["pid"], host.guard(hello["pid"])):
        host.watch(pid)
    channel.send("renew", lease_s=120.0)
    return channel
