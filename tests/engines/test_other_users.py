"""Another user of a host that has a slot, while a run uses it: he finds no secret, and neither door lets him in."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.engines.conftest import OnSlots
from tests.support.bed import Bed
from tests.support.other_users import BECOME
from tests.support.patience import until
from tests.support.plain import get
from tests.support.scheduler import Scheduler

TRAINS = """
    import os, time
    print("trains", flush=True)
    while not os.path.exists(os.environ["OUT"] + "/end"):
        time.sleep(0.1)
"""
# What he reads and where he knocks; he is told each secret backwards, lest his own words have it.  Prints how much he
# could look at, so that the test sees that he looked.
ATTACK = f"""\
import encodings.idna, glob, ssl
{BECOME}
secrets = [each[::-1] for each in sys.argv[1].split()]
port = int(sys.argv[2])
read, refused = 0, 0
places = ("/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ", "/proc/[0-9]*/fd/*", "/proc/[0-9]*/task/*/environ")
paths = [path for place in places for path in glob.glob(place)]
for top in ("/tmp", "/var/tmp", "/run", "/home", "/dev/shm"):
    paths += [os.path.join(place, name) for place, _, names in os.walk(top) for name in names]
for path in paths:
    if path.startswith("/proc/" + str(os.getpid()) + "/"):
        continue
    try:
        if not path.startswith("/proc") and not os.path.isfile(path):
            continue
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        refused += 1
        continue
    try:
        text = os.read(descriptor, 1 << 22).decode(errors="replace")
    except OSError:
        continue
    finally:
        os.close(descriptor)
    read += 1
    assert not [secret for secret in secrets if secret in text], path
entered = 0
names = [line.split()[7] for line in open("/proc/net/unix").read().splitlines()[1:] if len(line.split()) > 7]
for name in (*names, sys.argv[3]):
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(10)
    heard = b""
    try:
        caller.connect(chr(0) + name[1:] if name.startswith("@") else name)
        entered += name == sys.argv[3]
        caller.sendall(b'{{"look": true}}' + bytes([10]))
        heard = caller.recv(100)
    except OSError:
        pass
    assert heard == b"", (name, heard)
if port:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for token in ("", "00" * 16):
        heard = b""
        try:
            with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20)) as line:
                line.sendall(json.dumps({{"token": token, "start": "id"}}).encode() + bytes([10]))
                heard = line.recv(100)
        except OSError:
            pass
        assert heard == b"", heard
print(json.dumps([read, refused, entered]))
"""


def test_another_user_has_no_way_to_a_slot_of_a_run(
    user: OnSlots, scheduler: Scheduler, bed: Bed, shared: Path, door: Mapping[str, str]
) -> None:
    words = ("--ps=0", "--workers=2", "--no-flags", f"--env=OUT={shared}")
    with user.start("run", user.slots(**door), user.script(TRAINS), *words) as running:
        running.wait_for("trains", 2)
        [job] = scheduler.requests()
        text = get(scheduler.directory / "requests" / f"{job}.json")["slots"][0]["text"]
        told = text.splitlines()[-1].removeprefix("main(json.loads(").removesuffix("))")
        settings = json.loads(ast.literal_eval(told))
        secrets = [settings["token"], settings["key"].splitlines()[1]]
        for host, slot in zip(bed.hosts, ("s0", "s1"), strict=True):
            told = scheduler.slot(slot).told
            if slot == "s1":  # as if his way were open
                host.path(told["directory"]).chmod(0o755)
                host.path(told["socket"]).chmod(0o777)
            backwards = " ".join(secret[::-1] for secret in secrets)
            words = (ATTACK, backwards, str(told["port"]), told["socket"])
            read, refused, entered = json.loads(host.do(sys.executable, "-c", *words))
            assert read > 5
            assert refused > 5
            assert entered == (slot == "s1")
            for each in host.processes():  # and as root would see it
                assert not [s for s in secrets if any(s in word for word in each.words)]
                assert not [s for s in secrets if s in "".join(each.env.values())]
        assert not [s for s in secrets if s in running.out + running.err]
        (shared / "end").touch()
        running.done().ran()
    until(lambda: not user.leftovers(), "nothing is left")
