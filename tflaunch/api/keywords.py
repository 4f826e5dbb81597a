"""The options of `tflaunch run`, as keywords; `tflaunch run --help` says what each means.

`scripts/docs` writes this module: docs/generator/keywords.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict

Path = str | PathLike[str]
Time = float | str  # seconds, or as on the command line: "90s", "15m", "2h", "1d"
ByJob = Mapping[str, str | int] | Sequence[str]  # {"data": 2}, or ["data=2"]


class Keywords(TypedDict, total=False):
    """What `api.run` and `api.make_plan` take; what is None counts as not given."""

    # Cluster
    ps: int | None
    workers: int | None
    chief: bool
    evaluator: int | None
    ps_hosts: str | None
    worker_hosts: str | None
    place: Literal["spread", "pack"]
    network: str
    # GPUs
    gpus_per_worker: int | Literal["all"] | None
    gpu_model: str
    min_gpu_memory: str
    mix_models: bool
    mig: str | bool | None
    include: Sequence[str]
    exclude: Sequence[str]
    share_gpus: bool
    bind: Literal["auto", "none", "numa", "cores"]
    memory_policy: Literal["none", "membind", "interleave"]
    wait: Time | bool | None
    # Start
    name: str
    dial_check: Literal["auto", "all", "none"]
    no_dial_check: bool
    require_all: bool
    yes: bool
    # Program and code
    module: str | None
    flag: Mapping[str, str] | Sequence[str]
    flag_style: Literal["equals", "words"]
    no_empty_flags: bool
    framework: Literal["auto", "tensorflow", "jax", "torch", "horovod"]
    flags: bool | None
    code_dir: Path | None
    ship: Sequence[Path]
    follow_links: bool
    max_code: str
    no_sync: bool
    # Environment of the tasks
    env: Mapping[str, str] | Sequence[str]
    env_file: Sequence[Path]
    requirements: Path | None
    system_site_packages: bool
    container: str
    container_engine: str
    mount: Sequence[str]
    # Files that the tasks write
    fetch: Sequence[str]
    fetch_to: Path | None
    fetch_max: str
    keep_mode: bool
    overwrite: bool
    tensorboard: str | None
    tensorboard_port: int
    # The end
    done: Literal["auto", "chief", "workers", "all", "never"]
    grace: Time
    ps_grace: Time
    timeout: Time
    warn_before: Time
    startup_timeout: Time
    stall_timeout: Time
    stop_idle: Time
    on_end: str
    lease: Time | None
    # When a task fails
    restarts: int
    restart: Mapping[str, str] | Sequence[str]
    spares: str
    restart_window: Time
    restart_on: Literal["any", "retryable"]
    # Hangs
    threshold: Mapping[str, float] | Sequence[str]
    no_stacks: bool
    require_gpu: bool
    stop_on_nan: bool
    # Roles, under any job name
    job: ByJob
    job_hosts: ByJob
    job_gpus: ByJob
    job_env: Sequence[str]
    job_args: ByJob
    job_program: ByJob
    job_end: ByJob
    job_grace: ByJob
    # Connection
    accept_new: bool
    connect_timeout: Time
    ssh_config: Path | None
    connection: str
