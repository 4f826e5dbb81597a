"""`tflaunch report`: what a real run has left, as text, as a document and as a page; while it goes on, and later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.bed import Bed, FarLauncher
from tests.support.launcher import Launcher
from tests.support.patience import until
from tflaunch.documents.json_objects import of_document, of_event
from tflaunch.runs.samples import read_samples

PSI = Path("/proc/pressure/cpu").exists()

# worker/0 sends to ps/0 as fast as it can; the run ends when the test says so.
TRAINER = """
    import json, os, pathlib, socket, time
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    host, port = cluster["ps"][0].rsplit(":", 1)
    if os.environ["TFLAUNCH_TASK"] == "ps/0":
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((host, int(port)))
        server.listen()
        peer, _ = server.accept()
        while data := peer.recv(65536):
            peer.sendall(data)
        time.sleep(600)
    while True:
        try:
            peer = socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.1)
    step = 0
    while not pathlib.Path(os.environ["END"]).exists():
        peer.sendall(b"x" * 50000)
        left = 50000
        while left:
            left -= len(peer.recv(left))
        step += 1
        print(f"step {step} loss {1 / step:.4f} {os.environ['HF_TOKEN']}", flush=True)
        time.sleep(0.05)
    raise ValueError(f"login with {os.environ['HF_TOKEN']} failed")
"""


def samples(launcher: Launcher) -> int:
    """How many bins the samples of the only run have, as its report tells it."""
    done = launcher.run("report", "--json")
    found = json.loads(done.out)["runs"][0]["samples"] if done.code == 0 else None
    return len(found["bins"]) if found else 0


def test_a_run_is_reported_while_it_goes_on_and_later(bed: Bed, far: FarLauncher, tmp_path: Path) -> None:
    launcher, hosts = far, bed.up(2)
    assert "no run is on record here" in launcher.run("report").ran(2).sentences
    words = [far.hostfile(hosts), launcher.script(TRAINER), "--ps=1", "--workers=1", "--ps-grace=1s"]
    with launcher.start("run", *words, "--env=END=/tmp/end", "--env=HF_TOKEN=geheim1234") as running:
        until(lambda: samples(launcher) >= 2, "two bins of samples")
        shown = launcher.run("report").ran().out
        assert " running; it began " in shown
        for host in hosts:
            host.do("touch", "/tmp/end")
        assert running.done().code == 1

    (run,) = json.loads(launcher.run("report", "--json").ran().out)["runs"]
    assert (run["status"], run["exit_code"], run["missing"]) == ("failed", 1, [])
    failure = run["verdicts"][0]
    assert failure["text"].startswith("worker/0 on ") and "login with *** failed" in failure["text"], failure
    kinds = [moment["kind"] for moment in run["timeline"]]
    for kind in (
        "connecting",
        "shipping",
        "staging",
        "started",
        "printed",
        "listens",
        "peers",
        "ended",
        "failed",
    ):
        assert kind in kinds, kinds
    tasks = {task["task"]: task for task in run["tasks"]}
    ps, worker = tasks["ps/0"], tasks["worker/0"]
    assert worker["end"]["code"] == 1 and ps["end"]["stopped"]
    assert worker["means"]["peers"] > 10_000 and ps["means"]["peers"] > 10_000, (ps, worker)
    assert worker["step"] > 10 and worker["steps_s"] > 0 and 0 < worker["loss"] < 1
    assert worker["means"]["cores"] > 0
    names = [host.name for host in hosts]
    assert sorted(host["host"] for host in run["hosts"]) == (names if PSI else [])
    assert all(
        0 <= host["means"]["cpu_pressure"] <= host["most"]["cpu_pressure"] <= 100 for host in run["hosts"]
    )
    assert "--env=HF_TOKEN=***" in run["command"]

    (record,) = launcher.state.iterdir()
    for name in ("events.jsonl", "samples.jsonl"):
        assert "geheim1234" not in (record / name).read_text(), name
    events = [json.loads(line) for line in (record / "events.jsonl").read_text().splitlines()]
    assert not [fault for event in events if (fault := of_event(event))]

    text = launcher.run("report").ran().out
    assert "worker/0" in text and "login with *** failed" in text and "geheim1234" not in text
    page = tmp_path / "page.html"
    assert f"written to {page}" in launcher.run("report", run["run_id"][:-1], "--html", page).ran().sentences
    assert "geheim1234" not in page.read_text() and run["run_id"] in page.read_text()
    trace, metrics = tmp_path / "trace.json", tmp_path / "run.prom"
    launcher.run("report", "--trace", trace, "--openmetrics", metrics).ran()
    assert any(
        event["name"] == "worker/0: exit code 1" for event in json.loads(trace.read_text())["traceEvents"]
    )
    assert f'tflaunch_run_exit_code{{run="{run["run_id"]}"}} 1' in metrics.read_text()
    for host in names if PSI else ():
        assert (
            f'tflaunch_host_io_pressure_percent{{run="{run["run_id"]}",host="{host}"}}' in metrics.read_text()
        )
    assert "geheim1234" not in trace.read_text() + metrics.read_text()
    assert {path.name for path in tmp_path.iterdir()} >= {"trace.json", "run.prom", "page.html"}
    one = launcher.run("report", run["run_id"], "worker/0", "--json").ran()
    assert [task["task"] for task in json.loads(one.out)["runs"][0]["tasks"]] == ["worker/0"]
    assert not of_document("report", json.loads(one.out))
    twice = launcher.run("report", run["run_id"], run["run_id"][:-1]).ran(2)
    assert "are the same run" in twice.sentences


def test_what_cannot_be_reported_is_said(launcher: Launcher, tmp_path: Path) -> None:
    assert "no run 'trainer'" in launcher.run("report", "trainer").ran(2).sentences
    launcher.run("run", launcher.local(1), launcher.script("print('done')"), "--workers=1", "--ps=0").ran()
    refused = launcher.run("report", "--html", tmp_path / "nowhere" / "page.html").ran(2)
    assert f"there is no directory {tmp_path / 'nowhere'}" in refused.sentences
    done = launcher.run("report", "--html", tmp_path / "page.html", "--trace", tmp_path).ran(2)
    assert f"--trace {tmp_path}: a directory" in done.sentences
    assert not (tmp_path / "page.html").exists()
    assert "leave one of them out" in launcher.run("report", "--html", "x", "--json").ran(2).out


def kept_on_hosts(launcher: Launcher) -> int:
    """How many lines of samples the deciding host of the only run has."""
    return sum(path.read_text().count("\n[") for path in launcher.hosts.glob("tflaunch-*/*/*/samples.jsonl"))


# Of two tasks, one that computes, and writes how far it is.
COMPUTES = """
    import os, time
    step = 0
    while os.environ["TFLAUNCH_TASK"] == "worker/0":
        step += sum(range(100000)) > 0
        print(f"step {step} loss 0.5", flush=True)
        time.sleep(0.05)
    time.sleep(600)
"""


def test_a_detached_run_has_the_curves_of_its_hosts(launcher: Launcher, tmp_path: Path) -> None:
    words = (launcher.local(2), launcher.script(COMPUTES), "--workers=2", "--ps=0")
    launcher.run("run", *words, "--detach").ran()
    until(lambda: kept_on_hosts(launcher) >= 5, "three looks at a host, of which two are written")
    (run,) = json.loads(launcher.run("report", "--json").ran().out)["runs"]
    assert run["status"] == "detached"
    (missing,) = run["missing"]
    assert f"tflaunch status {run['run_id']}" in missing
    assert "detached" in [moment["kind"] for moment in run["timeline"]]
    assert run["samples"]["bins"]
    worker, other = run["tasks"]
    assert worker["step"] > 10 and worker["loss"] == 0.5 and worker["means"]["cores"] > 0
    assert other["step"] is None and other["means"]["cores"] < worker["means"]["cores"]
    assert [host["host"] for host in run["hosts"]] == (["local1", "local2"] if PSI else [])
    for path in launcher.hosts.glob("tflaunch-*/*/*/samples.jsonl"):
        assert "loss" not in path.read_text(), "numbers alone leave a host"
    launcher.run("stop").ran()

    for path in launcher.hosts.glob("tflaunch-*/*/*/samples.jsonl"):
        assert path.read_text().endswith('{"over":true}\n')
    (later,) = json.loads(launcher.run("report", "--json").ran().out)["runs"]
    assert len(later["samples"]["bins"]) >= len(run["samples"]["bins"])
    shutil.rmtree(launcher.hosts)  # all is here now
    (last,) = json.loads(launcher.run("report", "--json").ran().out)["runs"]
    assert last["samples"] == later["samples"] and len(last["missing"]) == 1
    page = tmp_path / "page.html"
    launcher.run("report", "--html", page).ran()
    assert '"bins"' in page.read_text()


def test_a_run_that_was_handed_over_has_one_curve(launcher: Launcher) -> None:
    words = (launcher.local(2), launcher.script(COMPUTES), "--workers=2", "--ps=0")
    with launcher.start("run", *words) as running:
        until(lambda: samples(launcher) >= 2, "two bins of samples")
        launcher.run("detach", running.run_id).ran()
        running.done().ran()
    until(lambda: kept_on_hosts(launcher) >= 5, "three looks at a host, of which two are written")
    (run,) = json.loads(launcher.run("report", "--json").ran().out)["runs"]
    (record,) = launcher.records()
    before = read_samples(record / "samples.jsonl")
    assert before is not None
    numbers = [number for number, *_ in run["samples"]["bins"]]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > len(before.bins), "what its hosts have comes behind it"
    worker = run["tasks"][0]
    assert worker["step"] > max(value for _, value in before.series("worker/0", "step"))
    launcher.run("stop").ran()
