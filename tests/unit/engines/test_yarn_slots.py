"""Slots on YARN, as far as no cluster is needed: words for them, the applications, what YARN says."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tflaunch.engines import yarn_words as words
from tflaunch.engines.engine import check
from tflaunch.engines.yarn_applications import Submission, check_limits, check_nodes, client_words, sizes
from tflaunch.engines.yarn_board import read_log
from tflaunch.engines.yarn_commands import (
    client_env,
    config,
    configured,
    private_directory,
    said,
    wants_ticket,
    write_overlay,
)
from tflaunch.engines.yarn_hosts import application_of
from tflaunch.engines.yarn_manager import (
    AppReport,
    ContainerEnd,
    YarnNode,
    addresses,
    largest_in,
    nodes_of,
    report_from,
    report_of,
)
from tflaunch.engines.yarn_slots import ENGINE
from tflaunch.inputs.engine_words import WantedSlots, wanted
from tflaunch.protocol.errors import ConnectError, HostfileError, NotGiven, PlanError, UsageError
from tflaunch.slot.yarn_task import LogEcho

NODES = """\
Total Nodes:2
         Node-Id\t     Node-State\tNode-Http-Address\tNumber-of-Running-Containers
     host2:18000\t        RUNNING\t      host2:18042\t                           0
Detailed Node Information :
\tConfigured Resources : <memory:2048, vCores:8, yarn.io/gpu: 2>
\tAllocated Resources : <memory:512, vCores:1>
\tResource Utilization by Node : PMem:5336 MB, VMem:5336 MB, VCores:0.0
\tResource Utilization by Containers : PMem:0 MB, VMem:0 MB, VCores:0.0
\tNode-Labels : big,fast
     host1:18000\t        RUNNING\t      host1:18042\t                           0
Detailed Node Information :
\tConfigured Resources : <memory:4096, vCores:8>
\tAllocated Resources : <memory:0, vCores:0>
\tResource Utilization by Node : PMem:5140 MB, VMem:5140 MB, VCores:0.0
\tResource Utilization by Containers : PMem:0 MB, VMem:0 MB, VCores:0.0
\tNode-Labels :\x20
"""
STATUS = """\
Application Report :
\tApplication-Id : application_7_0001
\tApplication-Name : tflaunch-1
\tUser : ada
\tQueue : root.ml
\tProgress : 0%
\tState : ACCEPTED
\tFinal-State : UNDEFINED
\tDiagnostics : [Sat Nov 28 05:19:43 +0000 2026] Application is added to the scheduler and is not yet activated.
Queue's AM resource limit exceeded.
\tUnmanaged Application : false
"""
CONTAINER = "container_e17_7_0001_01_000005"
AT = Path("/at")


def slots(word: str) -> WantedSlots:
    return check(wanted(word), ENGINE, word)


def of(word: str) -> Submission:
    return Submission("tflaunch-1", ("tflaunch", "train-abc123"), "/ds.jar", slots(word).settings)


def test_roles_of_one_size_share_anapplication_of() -> None:
    assert [each.count for each in sizes(slots("yarn:4x1"))] == [4]
    assert [each.roles for each in sizes(slots("yarn:ps=1x0+worker=2x0"))] == [(("ps", 1), ("worker", 2))]
    assert [each.roles for each in sizes(slots("yarn:ps=1x0+worker=2x1+chief=1x0"))] == [
        (("ps", 1), ("chief", 1)),
        (("worker", 2),),
    ]


def test_what_the_client_is_told() -> None:
    word = "yarn:4x2,memory=8g,cpus=4,queue=ml,label=big,python=/opt/python3"
    [size] = sizes(slots(word))
    made = client_words(size, of(word), AT)
    for option, value in {
        "-container_resources": "memory-mb=8192,vcores=4,yarn.io/gpu=2",
        "-num_containers": "4",
        "-queue": "ml",
        "-node_label_expression": "big",
        "-localize_files": "/at/slot.py,/at/slot.json",
        "-application_tags": "tflaunch,train-abc123",
        "-master_memory": "512",
        "-shell_command": "exec /opt/python3 slot.py",
    }.items():
        assert made[made.index(option) + 1] == value
    assert "-keep_containers_across_application_attempts" in made
    # YARN's own script has the command between double quotes.
    assert not set("\"'`$\\") & set(" ".join(made))


@pytest.mark.parametrize(
    "word",
    [
        'yarn:2,python="$(id)"',
        "yarn:2,queue=a b",
        "yarn:2,memory=lots",
        "yarn:2,archive=/nowhere/env.tar.gz",
        "yarn:2,archive=hdfs:///user/ada/env.tar.gz",
        "yarn:",
    ],
)
def test_what_cannot_be(word: str) -> None:
    with pytest.raises(UsageError):
        client_words(sizes(slots(word))[0], of(word), AT)


def test_settings_are_known() -> None:
    with pytest.raises(HostfileError, match="did you mean queue"):
        slots("yarn:2,queu=ml")


def test_an_archive_is_unpacked_by_the_container(tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").touch()
    word = f"yarn:2,archive={tmp_path}/env.tar.gz"
    made = client_words(sizes(slots(word))[0], of(word), AT)
    assert f"{tmp_path}/env.tar.gz" in made[made.index("-localize_files") + 1]
    command = made[made.index("-shell_command") + 1]
    assert command == (
        "mkdir environment && tar -xf env.tar.gz -C environment && exec ./environment/bin/python3 slot.py"
    )


def test_what_no_node_has_is_refused() -> None:
    nodes = nodes_of(NODES)
    assert nodes == [
        YarnNode("host2", {"memory": 2048, "vCores": 8, "yarn.io/gpu": 2}, 1536, ("big", "fast")),
        YarnNode("host1", {"memory": 4096, "vCores": 8}, 4096, ()),
    ]
    check_nodes(sizes(slots("yarn:9x2,memory=4g")), nodes)
    for word, why in {
        "yarn:1x3": "the largest has yarn.io/gpu:2",
        "yarn:1,memory=5g": "the largest has memory:4096",
        "yarn:1,memory=4g,label=big": "fits into no node with the label big: of 1 node the largest has memory:2048",
        "yarn:1,label=slow": "has the label slow; labels there are: big, fast",
    }.items():
        with pytest.raises(PlanError) as refused:
            check_nodes(sizes(slots(word)), nodes)
        assert why in refused.value.message


def test_the_command_tells_what_the_web_service_does() -> None:
    report = report_of(STATUS)
    assert (report.state, report.queue, report.pending) == ("ACCEPTED", "root.ml", None)
    assert words.waits({"a": report}) == "no room for the master: the queue's share for masters is used up"


# Of a ResourceManager of Hadoop 3.4.2.
SHARE = """\
[Sat Nov 28 13:27:07 +0000 2026] Application is added to the scheduler and is not yet activated. Queue's AM resource
limit exceeded.  Details : AM Partition = <DEFAULT_PARTITION>; AM Resource Request = <memory:256, vCores:1>; Queue
Resource Limit for AM = <memory:64, vCores:1, yarn.io/gpu: 1>; User AM Resource Limit of the queue = <memory:64,
vCores:1, yarn.io/gpu: 1>; Queue AM Resource Usage = <memory:256, vCores:1>;\x20
"""
FULL = """\
[Sat Nov 28 13:24:31 +0000 2026] Application is Activated, waiting for resources to be assigned for AM.  Details : AM
Partition = <DEFAULT_PARTITION> ; Partition Resource = <memory:4096, vCores:16> ; Queue's Absolute capacity = 60.0 % ;
Queue's Absolute used capacity = 78.125 % ; Queue's Absolute max capacity = 100.0 % ; Queue's capacity (absolute
resource) = <memory:2457, vCores:9> ; Queue's used capacity (absolute resource) = <memory:3200, vCores:3> ; Queue's
max capacity (absolute resource) = <memory:4096, vCores:16> ;\x20
"""


@pytest.mark.parametrize(
    ("diagnostics", "told"),
    [
        (
            SHARE,
            "no room for the master: the queue's share for masters is used up: AM Resource Request = <memory:256, "
            "vCores:1>; Queue Resource Limit for AM = <memory:64, vCores:1, yarn.io/gpu: 1>; User AM Resource Limit of "
            "the queue = <memory:64, vCores:1, yarn.io/gpu: 1>; Queue AM Resource Usage = <memory:256, vCores:1>",
        ),
        (
            FULL,
            "no room for the master: Queue's used capacity (absolute resource) = <memory:3200, vCores:3>; "
            "Queue's max capacity (absolute resource) = <memory:4096, vCores:16>",
        ),
        ("AM container is launched, waiting for AM container to Register with RM", "the master starts"),
        ("Something new.", "ACCEPTED: Something new."),
        ("", "the application is ACCEPTED"),
    ],
)
def test_what_an_application_waits_for_before_it_runs(diagnostics: str, told: str) -> None:
    assert words.waits({"a": AppReport("ACCEPTED", diagnostics=diagnostics)}) == told


# Of ResourceManagers of Hadoop 3.4.2, in part: to those whom it knows, and where it has ACLs, to all others.
SHOWN = {
    "startedTime": 1795871141781,
    "resourceRequests": [
        {"resourceName": "*", "numContainers": 2, "capability": {"memory": 8192, "vCores": 4}},
        {"resourceName": "/default-rack", "numContainers": 2, "capability": {"memory": 8192, "vCores": 4}},
        {"resourceName": "*", "numContainers": 0, "capability": {"memory": 512, "vCores": 1}},
    ],
}
HIDDEN = {
    "startedTime": 0,
    "runningContainers": 0,
    "resourceInfo": {
        "resourceUsagesByPartition": [
            {
                "partitionName": "",
                "pending": {"memory": 16384, "vCores": 8},
                "used": {"memory": 256, "vCores": 1},
            }
        ]
    },
}
NOTHING = {"resourceInfo": {"resourceUsagesByPartition": [{"pending": {"memory": 0, "vCores": 0}}]}}


@pytest.mark.parametrize(
    ("app", "pending"),
    [
        (SHOWN, ("2 x <memory:8192, vCores:4>",)),
        (HIDDEN, ("<memory:16384, vCores:8> in all",)),
        (HIDDEN | NOTHING, ()),
        ({"startedTime": 0}, None),  # older
    ],
)
def test_what_waits_for_room(app: dict[str, Any], pending: tuple[str, ...] | None) -> None:
    report = report_from({"state": "RUNNING", "queue": "root.ml", **app}, None)
    assert report.pending == pending
    told = words.waits({"a": report}, nodes_of(NODES))
    room = "pending in the queue root.ml; free: host2 1536 MB, host1 4096 MB"
    assert told == (f"{pending[0]} {room}" if pending else "the slot holders start")


def test_more_than_a_container_may_have_is_refused() -> None:
    """Hadoop's distributed shell would ask for less, and not say so."""
    small, large = {"memory": 2048, "vCores": 4}, {"memory": 8192, "vCores": 4, "resourceInformations": {}}
    scheduler = {
        "queueName": "root",
        "maximumAllocation": large,
        "queues": {"queue": [{"queueName": "ml", "queuePath": "root.ml", "maximumAllocation": small}]},
    }
    most = partial(largest_in, scheduler)
    check_limits(sizes(slots("yarn:2,memory=8g,cpus=4")), most)
    check_limits(sizes(slots("yarn:2,memory=2g,queue=ml")), most)
    check_limits(sizes(slots("yarn:2x8,memory=900g")), partial(largest_in, {}))
    for word, why in {
        "yarn:1,cpus=5": "<memory:4096, vCores:5> is more than this cluster gives a container: vCores:4 at most",
        "yarn:1,queue=ml": "is more than the queue ml gives a container: memory:2048 at most",
        "yarn:1,queue=root.ml": "is more than the queue root.ml gives a container: memory:2048 at most",
    }.items():
        with pytest.raises(PlanError) as refused:
            check_limits(sizes(slots(word)), most)
        assert why in refused.value.message


def test_when_a_slot_is_over() -> None:
    runs = AppReport("RUNNING", containers=frozenset([CONTAINER]))
    assert words.gone("a", CONTAINER, runs) is None
    # After a restart of the ResourceManager.
    assert words.gone("a", CONTAINER, AppReport("ACCEPTED", containers=frozenset())) is None
    assert words.gone("a", CONTAINER, AppReport("RUNNING", containers=None)) is None
    gone = words.gone("a", CONTAINER, AppReport("RUNNING", containers=frozenset()))
    assert gone is not None
    assert gone.may_run_on
    killed = words.gone("a", CONTAINER, runs, ContainerEnd(137, "Container killed on request"))
    assert killed is not None
    assert killed.message == f"yarn: {CONTAINER} is over, exit status 137: Container killed on request"
    assert killed.may_run_on
    ended = words.gone("a", CONTAINER, runs, ContainerEnd(3, ""))
    assert ended is not None
    assert (ended.in_order, ended.code) == (True, 3)
    failed = words.gone("a", CONTAINER, AppReport("FINISHED", "FAILED", "failed = 1 ... Exit code is 3"))
    assert failed is not None
    assert (failed.in_order, failed.code) == (True, 3)
    done = words.gone("a", CONTAINER, AppReport("FINISHED", "SUCCEEDED"))
    assert done is not None
    assert done.code == 0
    by = words.gone(
        "app_1", CONTAINER, AppReport("KILLED", "KILLED", "Application app_1 was killed by user ada")
    )
    assert by is not None
    assert by.message == "yarn: Application app_1 was killed by user ada"
    assert application_of(CONTAINER) == "application_7_0001"


# Of NodeManagers of Hadoop 3.4.2.
OVER_ITS_MEMORY = """\
[2026-11-28 09:12:43.335]Container [pid=1094,containerID=container_e17_7_0001_01_000005] is running 537690112B beyond
the 'PHYSICAL' memory limit. Current usage: 768.8 MB of 256 MB physical memory used; 853.5 MB of 537.6 MB virtual memory
used. Killing container.
Dump of the process-tree for container_e17_7_0001_01_000005 :
"""
KILLED = """\
[2026-11-28 09:23:51.408]Container killed on request. Exit code is 137
[2026-11-28 09:23:51.411]Container exited with a non-zero exit code 137.\x20
[2026-11-28 09:23:51.411]Killed by external signal
"""


@pytest.mark.parametrize(
    ("code", "diagnostics", "told"),
    [
        (
            -104,
            OVER_ITS_MEMORY,
            "has used 768.8 MB of its 256 MB of memory, and YARN has killed it; memory= asks for more",
        ),
        (
            -103,
            OVER_ITS_MEMORY,
            "has used 853.5 MB of its 537.6 MB of virtual memory, and YARN has killed it; memory= ",
        ),
        (-104, "Somehow.", "is over, exit status -104: Somehow."),
        (137, KILLED, "is over, exit status 137: Container killed on request. Killed by external signal"),
        (3, "", "is over, exit status 3"),
    ],
)
def test_how_a_container_has_ended(code: int, diagnostics: str, told: str) -> None:
    assert words.container_words(CONTAINER, ContainerEnd(code, " ".join(diagnostics.split()))).startswith(
        f"{CONTAINER} {told}"
    )


def test_the_client_keeps_what_the_user_has_set() -> None:
    user = {"HADOOP_CLIENT_OPTS": "-Xmx1g  -Djava.io.tmpdir=/scratch", "HADOOP_CLASSPATH": "/a:/b"}
    env = client_env(Path("/overlay"), "/tmp/private", user)
    assert (
        env["HADOOP_CLIENT_OPTS"] == "-Xmx1g -Djava.io.tmpdir=/scratch -Djava.io.tmpdir=/tmp/private"
    )  # the last counts
    assert env["HADOOP_CLASSPATH"] == "/overlay:/a:/b"
    assert client_env(Path("/overlay"), "/tmp/p", {})["HADOOP_CLIENT_OPTS"] == "-Djava.io.tmpdir=/tmp/p"


@pytest.mark.parametrize("name", ["a b", "a:b", "a,b"])
def test_a_temporary_directory_that_would_be_taken_apart_is_not_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / name
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    with private_directory() as made:
        assert name not in made and Path(made).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("security", "status", "more", "wants"),
    [
        ("kerberos", 1, {}, True),
        ("kerberos", 0, {}, False),
        ("kerberos", 127, {}, False),  # it cannot say
        ("kerberos", 1, {"HADOOP_TOKEN_FILE_LOCATION": "/tokens"}, False),
        ("simple", 1, {}, False),
    ],
)
def test_a_cluster_that_wants_a_ticket(
    tmp_path: Path, security: str, status: int, more: dict[str, str], wants: bool
) -> None:
    (tmp_path / "core-site.xml").write_text(
        f"<configuration><property><name>hadoop.security.authentication</name><value>{security}</value></property>"
        "</configuration>"
    )
    klist = tmp_path / "klist"
    klist.write_text(f"#!/bin/sh\nexit {status}\n")
    klist.chmod(0o755)
    assert wants_ticket(tmp_path, {"PATH": str(tmp_path), **more}) is wants
    assert not wants_ticket(tmp_path, {"PATH": "/nowhere", **more})


def test_who_has_started_a_container(tmp_path: Path) -> None:
    """YARN's own executor, which knows no images, or Docker."""
    script = tmp_path / "default_container_executor.sh"
    script.write_text('"$@"\nexit\n')
    look = "from tflaunch.slot.yarn_task import is_by_executor; print(is_by_executor())"
    for above, told in {("bash", str(script)): "True", (): "False"}.items():
        argv = [*above, sys.executable, "-c", look]
        assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip() == told


def test_why_no_slots_came() -> None:
    [size] = sizes(slots("yarn:2"))
    assert isinstance(words.not_there("a", None, "", size), NotGiven)
    assert isinstance(words.not_there("a", AppReport("KILLED"), "", size), NotGiven)
    failed = words.not_there("a", AppReport("FINISHED", "FAILED"), "bash: python9: not found", size)
    assert isinstance(failed, ConnectError)
    assert failed.message.endswith("its slots were there: bash: python9: not found")


def test_nodes_that_do_not_see_what_was_put_there_for_them() -> None:
    """The words are those of Hadoop 3.4.2."""
    jar = "/home/ada/tflaunch-98e51413/application_7_0002/AppMaster.jar"
    diagnostics = (
        "Application application_7_0002 failed 2 times due to AM Container for appattempt_7_0002_000002 exited with  "
        "exitCode: -1000\nFailing this attempt.Diagnostics: [2026-11-28 09:30:20.242]"
        f"File file:{jar} does not exist\njava.io.FileNotFoundException: File file:{jar} does not exist\n"
    )
    [size] = sizes(slots("yarn:2"))
    unseen = words.not_there("application_7_0002", AppReport("FAILED", "FAILED", diagnostics), "", size)
    assert f"nodes do not see {jar}" in unseen.message
    assert "must be HDFS, or your home directory" in str(unseen.hint)


@pytest.mark.parametrize(
    ("exception", "why", "hint"),
    [
        (
            "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.security.AccessControlException): "
            'Permission denied: user=ada, access=WRITE, inode="/":root:supergroup:drwxr-xr-x',
            'submitted: Permission denied: user=ada, access=WRITE, inode="/"',
            "hdfs dfs -chown NAME",
        ),
        (
            "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs.server.namenode.SafeModeException): "
            "Cannot create file/user/ada/t/AppMaster.jar. Name node is in safe mode.",
            "submitted: Cannot create file/user/ada/t/AppMaster.jar. Name node is in safe mode",
            "hdfs dfsadmin -safemode get",
        ),
        ("java.net.ConnectException: Connection refused", "submitted: Connection refused", "hdfs dfs -ls"),
        ("/opt/hadoop/bin/yarn: line 23: exec: java: not found", "exec: java: not found", "set JAVA_HOME"),
    ],
)
def test_an_hdfs_that_takes_no_files(exception: str, why: str, hint: str) -> None:
    """The words are those of Hadoop 3.4.2."""
    refused = words.refused(Exception(said(f"Caused by: {exception}\n\tat java.base/java.lang.Thread.run\n")))
    assert isinstance(refused, ConnectError)
    assert why in refused.message
    assert hint in str(refused.hint)


def test_what_hadoop_says_without_its_stack() -> None:
    text = (
        "2026-11-28 05:19:43,123 INFO impl.YarnClientImpl: hello\n"
        'Exception in thread "main" java.lang.IllegalArgumentException: Queue nosuch not present in scheduler.\n'
        "\tat org.apache.hadoop.yarn.Client.run(Client.java:7)\n"
    )
    assert said(text) == "Queue nosuch not present in scheduler."
    assert isinstance(
        words.refused(Exception("Queue nosuch not present in scheduler configuration.")), UsageError
    )


def test_where_the_resource_managers_are(tmp_path: Path) -> None:
    def site(**values: str) -> dict[str, str]:
        lines = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in values.items()
        )
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{lines}</configuration>")
        assert configured(["/nowhere", str(tmp_path), "/jars/*"]) == tmp_path
        return config(tmp_path)

    name = "yarn.resourcemanager"
    assert addresses(site(**{f"{name}.hostname": "rm1"})) == ["http://rm1:8088"]
    address = {f"{name}.hostname": "rm1", f"{name}.webapp.address": f"${{{name}.hostname}}:80"}
    assert addresses(site(**address)) == ["http://rm1:80"]
    two = {f"{name}.ha.rm-ids": "a,b", f"{name}.hostname.a": "h1", f"{name}.webapp.https.address.b": "h2:9"}
    assert addresses(site(**two, **{"yarn.http.policy": "HTTPS_ONLY"})) == ["https://h1:8090", "https://h2:9"]
    assert addresses({}) == addresses(config(None)) == []


def test_the_clusters_own_configuration_goes_before_ours_but_for_the_mask(tmp_path: Path) -> None:
    conf, overlay = tmp_path / "conf", tmp_path / "overlay"
    conf.mkdir()
    (conf / "core-site.xml").touch()
    write_overlay(overlay, conf)
    text = (overlay / "core-site.xml").read_text()
    assert text.index((conf / "core-site.xml").as_uri()) < text.index("077")
    assert overlay.stat().st_mode & 0o077 == 0


def test_slot_holders_are_found_in_logs() -> None:
    where = {"container": CONTAINER, "node": "n1", "web": "n1:8042", "python": "/usr/bin/python3"}
    told = {"slot": json.dumps(where), "port": 7}
    text = f"Container: {CONTAINER} on n1_8041\nLogContents:\n{json.dumps(told)}\nworker/0: {{}}\n{{}}\n{{nonsense\n"
    assert [each["where"] for each in read_log(text)] == [where]


def test_tasks_lines_go_to_stdout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "worker-0.1.log"
    echo = LogEcho(f"{tmp_path}/*.log")
    echo.look()
    with log.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        echo.look()
        file.write(b"o\n{}\nrest")
        echo.look()
    log.write_bytes(b"")  # its task may do that
    echo.look()
    with log.open("ab", buffering=0) as file:
        file.write(b" of it\n")
        echo.look()
    assert capfd.readouterr().out == "".join(
        f"worker/0: {line}\n" for line in ("one", "two", "{}", "rest of it")
    )
