"""The addresses that a host tells of are those of its interfaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tflaunch.agent.host_facts import interface_addresses

SCRIPT = f"""
ip link set lo up
ip address add 10.99.1.2/24 dev lo
ip address add 10.99.1.3/24 dev lo label lo:x
ip address add 10.99.2.1 peer 10.99.2.2 dev lo
ip address add 169.254.3.3/16 dev lo
ip -6 address add 2001:db8::5/64 dev lo
ip -6 address add fe80::7/64 dev lo
for number in $(seq 200); do ip address add 10.77.0.$number/32 dev lo; done
exec {sys.executable} -c "if True:
    import json
    from tflaunch.agent.host_facts import interface_addresses
    print(json.dumps(interface_addresses()))"
"""


def test_they_are_those_that_ip_tells_of() -> None:
    if not shutil.which("ip"):
        pytest.skip("no iproute2 here")
    said = subprocess.run(["ip", "-json", "address"], capture_output=True, check=True).stdout
    told = [
        (each.get("label", interface["ifname"]), each["local"], each["prefixlen"])
        for interface in json.loads(said)
        for each in interface["addr_info"]
        if each["family"] == "inet" or each["scope"] == "global"
    ]
    told = [each for each in told if not each[1].startswith(("127.", "169.254."))]
    assert sorted(interface_addresses()) == sorted(told)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_second_ones_labels_and_the_far_end_of_a_line() -> None:
    done = subprocess.run(
        ["unshare", "--net", "sh", "-e", "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert ["lo", "10.99.1.2", 24] in found
    assert ["lo", "10.99.2.1", 32] in found
    assert ["lo:x", "10.99.1.3", 24] in found
    assert ["lo", "10.77.0.200", 32] in found
    assert found[-1] == ["lo", "2001:db8::5", 64]
    assert len(found) == 204, "as many as there are, none of this link alone"
