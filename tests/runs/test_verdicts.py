"""How a task ended is told behind all that it has printed: a whole run, on slow links."""

from __future__ import annotations

from tests.support.bed import Bed, FarLauncher


def test_on_slow_links_every_verdict_stands_behind_its_traceback(bed: Bed, far: FarLauncher) -> None:
    hosts = bed.up(3)
    for host in hosts[1:]:
        bed.delay(host, 40)
    trainer = far.script(
        """
        import os, sys
        task = os.environ["TFLAUNCH_TASK"]
        for number in range(30_000):
            print(task, "step", number, "." * 40)
        sys.stdout.write("Traceback\\nValueError: no end of " + task)
        sys.stdout.flush()
        os._exit(3)
        """
    )
    words = ("--ps=0", "--workers=3", "--restarts=1", "--restart=cluster", "--json")
    done = far.run("run", far.hostfile(hosts), trainer, *words).ran(3)
    last: dict[str, str] = {}
    ends = 0
    for event in done.events:
        if event["event"] == "log":
            last[event["task"]] = event["line"]
        elif event["event"] == "exited" and not event["stopped"]:
            ends += 1
            assert event["missing"] == 0
            assert last.pop(event["task"]) == f"ValueError: no end of {event['task']}"
    assert ends >= 2
