"""Networks that are half dead, or set up wrongly."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.diagnosis import causes
from tests.diagnosis.causes import Cause
from tests.diagnosis.trainers import MWMS_RUN, PS_RUN, PSS_RUN, asynchronous, coordinated, mirrored

if TYPE_CHECKING:
    from tests.diagnosis.play import Play
    from tests.support.bed.machines import BedHost

TRAINS = r"step 40 of worker 1"
LARGE = 20000  # 80 kB of gradients: more than a packet
LOST = r"packets?[^\n]*(lost|dropped)|(lost|dropped|no answer|silen|black hole|cut|unreachable|not reach)"


def between(one: str, other: str) -> str:
    """A sentence that names both."""
    return rf"{one}[^\n]*{other}|{other}[^\n]*{one}"


W1_PS = between(r"(host2|worker/1)", r"(host3|ps/0)")


def _cut(play: Play) -> None:
    play.bed.cut(play.host("worker/1"), play.host("ps/0"))


def _cut_workers(play: Play) -> None:
    play.bed.cut(play.host("worker/1"), play.host("worker/2"))


def _cut_chief(play: Play) -> None:
    play.bed.cut(play.host("chief/0"), play.host("worker/1"))


def _cut_to_ps(play: Play) -> None:
    play.bed.cut_one_way(play.host("worker/1"), play.host("ps/0"))


def _cut_from_ps(play: Play) -> None:
    play.bed.cut_one_way(play.host("ps/0"), play.host("worker/1"))


def _refuse(play: Play) -> None:
    play.bed.cut(play.host("worker/1"), play.host("ps/0"), refuse=True)


def _narrow(play: Play) -> None:
    play.bed.narrow(play.hosts[1], play.hosts[2], 1200)


def _unplug(play: Play) -> None:
    play.bed.cut(play.host("worker/1"))


def _power_off(play: Play) -> None:
    play.bed.power_off(play.host("worker/1"))


def _freeze(play: Play) -> None:
    play.host("worker/1").freeze()


def _move(play: Play) -> None:
    play.host("ps/0").move("10.77.9.9")


def _slow(play: Play) -> None:
    play.bed.delay(play.hosts[1], 300)


def _lossy(play: Play) -> None:
    play.bed.delay(play.host("worker/1"), 1, loss_percent=40)


def _rate(play: Play) -> None:
    host = play.host("worker/1")
    shape = ("root", "tbf", "rate", "100kbit", "burst", "4kb", "latency", "2s")
    host.do("tc", "qdisc", "add", "dev", "eth0", *shape)


def _firewall(host: BedHost, verdict: str) -> None:
    """No new connection from another host to a port above 1024."""
    hook = "type filter hook input priority 0"
    rules = f"table inet closed {{\n chain closed {{\n {hook}\n {OTHERS} {verdict}\n }}\n}}\n"
    subprocess.run(host.inside("nft", "-f", "-"), input=rules, text=True, check=True, capture_output=True)


OTHERS = 'iifname "eth0" tcp dport 1024-65535 tcp flags & (syn | ack) == syn'


def _firewall_drops(play: Play) -> None:
    for host in play.hosts:
        _firewall(host, "drop")


def _firewall_rejects(play: Play) -> None:
    _firewall(play.hosts[2], "reject with tcp reset")


def _loopback(play: Play) -> None:
    play.entries = ["host1", "host2", {"name": "host3", "address": "127.0.0.1"}]


def _elsewhere(play: Play) -> None:
    play.entries = ["host1", "host2", {"name": "host3", "address": "10.78.0.3"}]


def _nameless(play: Play) -> None:
    play.entries = ["host1", "host2", {"name": "host3", "address": "storage.cluster.example"}]


NETWORKS = (
    Cause(
        "net-cut",
        causes.NETWORKS,
        "Packets between a worker and the ps are dropped in mid-run",
        asynchronous(size=LARGE),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_cut,
        cause=LOST,
        place=W1_PS,
        symptom=r"worker/1|host[23]",
        misleading=r"worker/0[^\n]*(hang|stuck|lost)|host1[^\n]*lost",
    ),
    Cause(
        "net-cut-mirrored",
        causes.NETWORKS,
        "Packets between two workers of an all-reduce are dropped in mid-run",
        mirrored(size=LARGE),
        MWMS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_cut_workers,
        cause=LOST,
        place=between(r"(host2|worker/1)", r"(host3|worker/2)"),
        symptom=r"worker/[12]|host[23]",
    ),
    Cause(
        "net-cut-coordinator",
        causes.NETWORKS,
        "Packets between the coordinator and a worker are dropped in mid-run",
        coordinated(),
        PSS_RUN,
        hosts=4,
        proof="step 40,",
        after="step 40,",
        fault=_cut_chief,
        cause=LOST,
        place=between(r"(host1|chief/0)", r"(host3|worker/1)"),
        symptom=r"worker/1|host3",
        misleading=r"worker/0[^\n]*(hang|stuck|lost)",
    ),
    Cause(
        "net-one-way",
        causes.NETWORKS,
        "What a worker sends to the ps is lost, the other direction is whole",
        asynchronous(size=LARGE),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_cut_to_ps,
        cause=LOST,
        place=W1_PS,
        symptom=r"worker/1|host[23]",
        misleading=r"worker/0[^\n]*(hang|stuck|lost)",
    ),
    Cause(
        "net-one-way-back",
        causes.NETWORKS,
        "What the ps sends to a worker is lost, the other direction is whole",
        asynchronous(size=LARGE),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_cut_from_ps,
        cause=LOST,
        place=W1_PS,
        symptom=r"worker/1|host[23]",
        misleading=r"worker/0[^\n]*(hang|stuck|lost)",
    ),
    Cause(
        "net-reset",
        causes.NETWORKS,
        "A firewall begins to refuse a worker at the ps in mid-run",
        asynchronous(size=LARGE),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_refuse,
        cause=r"refus|reset|connection[^\n]*(lost|closed|broke)|Unavailable|firewall",
        place=W1_PS,
        symptom=r"worker/1|host[23]",
    ),
    Cause(
        "net-mtu-before",
        causes.NETWORKS,
        "Large packets between a worker and the ps are dropped from the beginning (MTU)",
        asynchronous(size=LARGE),
        PS_RUN,
        prepare=_narrow,
        proof="training 3 tasks",
        cause=r"MTU|large packets",
        place=between("host2", "host3"),
        symptom=r"worker/1|host[23]",
    ),
    Cause(
        "net-mtu",
        causes.NETWORKS,
        "Large packets between a worker and the ps are dropped in mid-run (MTU)",
        asynchronous(size=LARGE),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_narrow,
        cause=r"MTU|large packets",
        place=W1_PS,
        symptom=r"worker/1|host[23]|packets[^\n]*lost",
    ),
    Cause(
        "net-rate",
        causes.NETWORKS,
        "The link of a worker is down to 100 kbit/s",
        asynchronous(size=200 * LARGE // 10),
        PS_RUN,
        proof="step 20 of worker 1",
        after="step 20 of worker 1",
        fault=_rate,
        cause=r"(slow|kbit|KiB/s|kB/s|Mbit|MB/s|throughput|bandwidth)",
        place=r"worker/1|host2",
        symptom=r"worker/1|host2",
        misleading=r"worker/0[^\n]*(hang|stuck|lost)",
    ),
    Cause(
        "net-loss-40",
        causes.NETWORKS,
        "The cable of a worker loses 40 % of all packets",
        asynchronous(size=LARGE),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_lossy,
        cause=r"packets?[^\n]*(lost|loss|dropped)|loss|retransm",
        place=r"worker/1|host2",
        symptom=r"worker/1|host2",
        misleading=r"worker/0[^\n]*(hang|stuck|lost)",
    ),
    Cause(
        "net-latency",
        causes.NETWORKS,
        "Packets to one host take 300 ms longer than between the others",
        asynchronous(size=LARGE),
        PS_RUN,
        prepare=_slow,
        proof="training 3 tasks",
        cause=r"RTT|round.trip|latency|\d{3} ms",
        place=r"host2",
        symptom=r"slow|ms",
        patience_s=60,
    ),
    Cause(
        "net-firewall-drops",
        causes.NETWORKS,
        "The firewalls of all hosts drop what comes to ports above 1024",
        asynchronous(),
        PS_RUN,
        prepare=_firewall_drops,
        proof="training 3 tasks",
        cause=r"dropped|firewall",
        place=r"host\[?\d",
        fix=r"ports:|firewall|--no-dial-check|open",
        symptom=r"cannot reach",
    ),
    Cause(
        "net-firewall-rejects",
        causes.NETWORKS,
        "The firewall of one host refuses what comes to ports above 1024",
        asynchronous(),
        PS_RUN,
        prepare=_firewall_rejects,
        proof="training 3 tasks",
        cause=r"refus|firewall|reject",
        place=r"host3|ps/0",
        fix=r"ports:|firewall|--no-dial-check|open",
        symptom=r"cannot reach",
    ),
    Cause(
        "net-address-loopback",
        causes.NETWORKS,
        "The hostfile says that the ps has the address 127.0.0.1",
        asynchronous(),
        PS_RUN,
        prepare=_loopback,
        proof="training 3 tasks",
        cause=r"127\.0\.0\.1|loopback",
        place=r"host3",
        fix=r"address",
        symptom=r"cannot reach|ps/0",
    ),
    Cause(
        "net-address-elsewhere",
        causes.NETWORKS,
        "The hostfile gives the ps an address that its host does not have",
        asynchronous(),
        PS_RUN,
        prepare=_elsewhere,
        proof="training 3 tasks",
        cause=r"10\.78\.0\.3",
        place=r"host3|ps/0",
        fix=r"address",
        symptom=r"cannot reach|ps/0",
    ),
    Cause(
        "net-address-unknown",
        causes.NETWORKS,
        "The hostfile gives the ps an address that is a name which the hosts do not know",
        asynchronous(),
        PS_RUN,
        prepare=_nameless,
        proof="training 3 tasks",
        cause=r"storage\.cluster\.example",
        place=r"host3|ps/0",
        fix=r"address|/etc/hosts|DNS|resolve",
        symptom=r"cannot reach|ps/0",
    ),
    Cause(
        "net-address-moved",
        causes.NETWORKS,
        "The ps's host gets another address in mid-run",
        asynchronous(size=LARGE),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_move,
        cause=rf"{LOST}|address",
        place=r"host3",
        symptom=r"worker/\d|host3",
    ),
    Cause(
        "net-unplugged",
        causes.NETWORKS,
        "The cable of a worker's host is pulled",
        mirrored(size=LARGE),
        MWMS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_unplug,
        cause=r"(is lost|out of reach|no answer|unreachable)",
        place=r"host2",
        symptom=r"worker/1|host2",
    ),
    Cause(
        "net-power-off",
        causes.NETWORKS,
        "The host of a worker loses its power",
        asynchronous(),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_power_off,
        cause=r"(is lost|out of reach|no answer|unreachable)",
        place=r"host2",
        symptom=r"worker/1|host2",
    ),
    Cause(
        "net-host-hangs",
        causes.NETWORKS,
        "The host of a worker hangs: it answers pings, and no process runs",
        asynchronous(),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_freeze,
        cause=r"(is lost|out of reach|no answer|silent|unreachable)",
        place=r"host2",
        symptom=r"worker/1|host2",
    ),
)
