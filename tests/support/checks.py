"""Answers of hosts to `tflaunch check`, as tests make them up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tests.support.gpus import facts
from tflaunch.hosts import Host
from tflaunch.survey.check_answers import CheckAnswers, Clock, HostAnswer, TaskAnswer
from tflaunch.survey.check_findings import CheckFinding, Findings

GIB = 2**30
LIMITS = {"nofile": 1048576, "nproc": None, "memlock": 8 << 20, "core": 0}
VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1", "protobuf": "7.36.2", "numpy": "2.4.6"}
BUILD = {"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": "True"}


def task_answer(**changes: Any) -> TaskAnswer:
    """A task that has told; `tensorflow` and `limits` are changed in part."""
    report = {
        "python": "3.11.7",
        "executable": "/usr/bin/python3",
        "limits": {**LIMITS, **changes.pop("limits", {})},
        "proxies": [],
        "versions": {**VERSIONS, **changes.pop("versions", {})},
        "error": "",
        "tensorflow": {"seconds": 3.0, "build": BUILD, "gpus": 0, **changes.pop("tensorflow", {})},
        **changes,
    }
    return TaskAnswer(report, 0, "", 3.5)


def host_answer(
    name: str,
    *gpus: Any,
    host: dict[str, Any] | None = None,
    held: tuple[int, ...] = (20001, 20072),
    **changes: Any,
) -> HostAnswer:
    told: dict[str, Any] = {
        "facts": dataclasses.replace(
            facts(name, *gpus, disk_free_bytes=500 * GIB, **changes.pop("facts", {})), ports=held
        ),
        "task": task_answer(),
        "clock": Clock(0.0, 0.001),
        "ports": (20001, 20072),
        "visible_gpus": tuple(each for each in gpus if not each.busy),
        "system": system(),
    }
    return HostAnswer(Host(name=name, **(host or {})), **{**told, **changes})


def system(**changes: Any) -> dict[str, Any]:
    return {
        "interfaces": [{"name": "eth0", "addresses": ["10.0.0.1"], "mtu": 1500}],
        "infiniband": [],
        "disks": [{"path": "/var/tmp/tflaunch-1000/check-1/a", "free_bytes": 500 * GIB, "free_files": 10**6}],
        "logout": {"kills": False, "session": "", "user": "ada", "linger": False},
        **changes,
    }


def found(*hosts: HostAnswer, **more: Any) -> list[CheckFinding]:
    return Findings(CheckAnswers(hosts, **more)).all


def only(*hosts: HostAnswer, **more: Any) -> CheckFinding:
    [finding] = found(*hosts, **more)
    return finding


def ways(*open_ways: str, hosts: str = "abc") -> dict[str, Any]:
    """Who reaches whom; those not named are dropped."""
    return {
        a: {
            b: {
                "address": f"10.0.0.{ord(b) - 96}",
                "port": 20001,
                "result": 0.2 if a + b in open_ways else ["silent", ""],
            }
            for b in hosts
        }
        for a in hosts
    }


def fake_tensorflow(directory: Path, version: str = "2.21.0", body: str = "") -> Path:
    """A package of that name; returns what PYTHONPATH must hold."""
    (directory / "tensorflow").mkdir(parents=True)
    (directory / "tensorflow/__init__.py").write_text(
        f"""__version__ = {version!r}
class sysconfig:
    get_build_info = staticmethod(lambda: {{"cuda_version": "12.5.1", "is_cuda_build": True}})
class config:
    list_physical_devices = staticmethod(lambda kind: [])
{body}
"""
    )
    return directory
