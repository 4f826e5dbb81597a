"""Slots on Slurm, as far as no cluster is needed: words for them, the job, what its commands say."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from tflaunch.engines import slurm_words as words
from tflaunch.engines.engine import check
from tflaunch.engines.slurm_commands import JobFacts, Slurm, SlurmFailed, said
from tflaunch.engines.slurm_in_job import InJob
from tflaunch.engines.slurm_jobs import sbatch_words, script, step_words
from tflaunch.engines.slurm_place import own_place
from tflaunch.engines.slurm_slots import ENGINE
from tflaunch.inputs.engine_words import WantedSlots, wanted
from tflaunch.protocol.errors import ConnectError, HostfileError, PlanError, UsageError
from tflaunch.slot import slurm_task

PLACE = Path("/home/ada/t-1")
NOW = datetime.datetime(2026, 11, 27, 12, 0)


def slots(word: str) -> WantedSlots:
    return check(wanted(word), ENGINE, word)


def job(**fields: str) -> JobFacts:
    return JobFacts([" ".join(["JobId=7", *(f"{name}={value}" for name, value in fields.items())])])


def test_one_size_is_one_job() -> None:
    asked = slots(
        "slurm:4x8,partition=gpu,account=lab,time=90m,cpus=16,memory=64G,gpu=a100,options=--exclusive -C ib"
    )
    made = sbatch_words(asked, "t-1", PLACE)
    assert made[:2] == ["sbatch", "--parsable"]
    for word in (
        "--nodes=4",
        "--ntasks-per-node=1",
        "--gres=gpu:a100:8",
        "--partition=gpu",
        "--account=lab",
        "--time=90",
        "--cpus-per-task=16",
        "--mem=64G",
        "--signal=URG@70",
        "--no-requeue",
        "--exclusive",
    ):
        assert made.count(word) == 1, word
    assert made[-2:] == ["-C", "ib"]
    assert "--gres" not in " ".join(sbatch_words(slots("slurm:4"), "t-1", PLACE))
    assert "{ srun --ntasks-per-node=1" in script(asked, PLACE / "holder.py")
    assert "python3 -I -S - 0 < /home/ada/t-1/holder.py" in script(asked, PLACE / "holder.py")


def test_sizes_by_role_are_the_parts_of_one_job() -> None:
    both = slots("slurm:ps=1x0+worker=2x4,notice=2m")
    made = sbatch_words(both, "t-1", PLACE)
    assert made.count(":") == 1
    assert made.count("--signal=URG@130") == 2
    assert ["--gres=gpu:4" in part for part in (made[: made.index(":")], made[made.index(":") :])] == [
        False,
        True,
    ]
    assert " : --het-group=1 " in script(both, PLACE / "holder.py")


def test_words_that_cannot_be() -> None:
    with pytest.raises(HostfileError, match="did you mean partition"):
        slots("slurm:4,partion=gpu")
    with pytest.raises(HostfileError, match="is not a time"):
        slots("slurm:4,time=1-00:00:00")
    for option in ("--array=1-3", "-N2", "-N 2", ":", "--wrap=x"):
        with pytest.raises(UsageError, match="is for tflaunch to say"):
            sbatch_words(slots(f"slurm:4,options={option}"), "t-1", PLACE)
    with pytest.raises(UsageError, match="this is no job"):
        InJob.here({})


def test_inside_a_job() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    inside = InJob.here({**environ, "CUDA_VISIBLE_DEVICES": "NoDevFiles"})
    assert inside.nodes == ["n1", "n2", "n3"]
    assert [each["slots"] for each in inside.allotted().values()] == [2, 2, 1]
    assert not any(each["gpus"] for each in inside.allotted().values())
    assert "--overlap" in step_words("7", "n[1-3]", 3, "python3")
    with pytest.raises(UsageError, match="counts 2 nodes"):
        InJob.here({**environ, "SLURM_TASKS_PER_NODE": "2(x2)"}).allotted()


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        (
            job(JobState="PENDING", Reason="Resources", StartTime="2026-11-27T14:20:00"),
            "PENDING (Resources), about 14:20",
        ),
        (job(JobState="PENDING", Reason="Priority", StartTime="Unknown"), "PENDING (Priority)"),
        (
            job(
                JobState="PENDING",
                Reason="ReqNodeNotAvail,_UnavailableNodes:gpu_2",
                StartTime="2026-11-29T08:00:00",
            ),
            "PENDING (ReqNodeNotAvail, UnavailableNodes:gpu_2), about Sun 29 Nov 08:00",
        ),
        (job(JobState="CONFIGURING", Reason="None", StartTime="2026-11-27T11:59:00"), "CONFIGURING"),
    ],
)
def test_why_a_job_waits(facts: JobFacts, shown: str) -> None:
    assert words.waits(facts, NOW) == shown
    assert words.never(facts) is None


def test_why_slot_holders_have_not_started() -> None:
    log = [
        "srun: error: Task launch for StepId=12.0 failed on node host3: Communication connection failure",
        "srun: error: Application launch failed: Communication connection failure",
        "srun: Job step aborted: Waiting up to 17 seconds for job step to finish.",
    ]
    error = words.not_started("12", PLACE, log)
    assert "node host3 has not started its part of job 12: Communication connection failure" in str(error)
    assert "has written nothing to /home/ada/t-1" in str(words.not_started("12", PLACE, None))
    error = words.not_started(
        "12",
        PLACE,
        [
            "srun: error: cluster configuration lacks support for cpu binding",
            "slurmstepd-n1: error: execve(): /no/python: No such file or directory",
        ],
    )
    assert str(error).endswith(
        "not started: slurmstepd-n1: error: execve(): /no/python: No such file or directory"
    )


def test_what_can_never_be() -> None:
    error = words.never(job(JobState="PENDING", Reason="PartitionTimeLimit"))
    assert error is not None
    assert "more time than the partition" in error.message


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        (job(JobState="CANCELLED"), "job 7 was cancelled (scancel)"),
        (
            job(JobState="TIMEOUT", TimeLimit="01:00:00"),
            "job 7 has reached its time limit, 01:00:00 (TIMEOUT)",
        ),
        (
            job(JobState="COMPLETING", Reason="TimeLimit", TimeLimit="01:00:00"),
            "its time limit, 01:00:00 (TIMEOUT)",
        ),
        (job(JobState="PREEMPTED"), "job 7 was preempted by another job (PREEMPTED)"),
        (
            job(JobState="RUNNING", PreemptTime="2026-11-27T12:00:00"),
            "was preempted by another job (PREEMPTED)",
        ),
        (job(JobState="NODE_FAIL"), "job 7 has lost a node (NODE_FAIL)"),
        (
            job(JobState="PENDING", Reason="BeginTime", Restarts="1"),
            "put into the queue again, PENDING (BeginTime)",
        ),
        (None, "Slurm has forgotten how"),
        (job(JobState="RUNNING", PreemptTime="None", Reason="None"), ""),
        (job(JobState="COMPLETING", PreemptTime="None", Reason="None"), ""),
    ],
)
def test_why_a_job_ends(facts: JobFacts | None, shown: str) -> None:
    said_of_it = words.end(facts, "7")
    assert shown in said_of_it if shown else said_of_it == ""


def test_a_time_limit_that_is_near() -> None:
    runs = job(JobState="RUNNING", StartTime="2026-11-26T11:55:00", TimeLimit="1-00:10:00")
    assert (
        words.limit_is_near(runs, "7", NOW, 301) == "the time limit of job 7, 1-00:10:00, is near (TIMEOUT)"
    )
    assert words.limit_is_near(runs, "7", NOW, 299) == ""
    over = job(
        JobState="FAILED",
        StartTime="2026-11-26T11:55:00",
        EndTime="2026-11-27T12:04:00",
        TimeLimit="1-00:10:00",
    )
    assert words.limit_is_near(over, "7", NOW, 61) != ""
    assert words.limit_is_near(job(JobState="RUNNING", TimeLimit="UNLIMITED"), "7", NOW, 9e9) == ""
    assert words.limit_is_near(job(JobState="CANCELLED", TimeLimit="00:01:00"), "7", NOW, 9e9) == ""


def test_a_slot_that_is_over() -> None:
    def gone(
        facts: JobFacts | None, sweeps: bool = True, ours: bool = True
    ) -> tuple[bool, bool, int | None] | None:
        error = words.gone(facts, "7", sweeps=sweeps, ours=ours)
        return None if error is None else (error.swept, error.in_order, error.code)

    assert gone(job(JobState="RUNNING")) is None
    assert gone(job(JobState="COMPLETING")) is None
    assert gone(job(JobState="COMPLETED", ExitCode="0:0")) == (False, True, 0)
    assert gone(job(JobState="FAILED", ExitCode="3:0")) == (False, True, 3)
    assert gone(job(JobState="FAILED", ExitCode="3:0"), ours=False) == (True, False, None)
    assert gone(job(JobState="CANCELLED")) == (True, False, None)
    assert gone(job(JobState="CANCELLED"), sweeps=False) == (False, False, None)
    assert gone(job(JobState="NODE_FAIL")) == (False, False, None)  # a node that is cut off may run on
    assert gone(None) == (True, False, None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            ConnectError,
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            UsageError,
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            PlanError,
        ),
    ],
)
def test_a_refused_job(text: str, kind: type[Exception]) -> None:
    error = words.refused(SlurmFailed(said(text)))
    assert type(error) is kind
    assert "submission failed" not in error.message


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({"SLURM_STEP_GPUS": "1,3"}, "minor:1,3"),
        ({"SLURM_JOB_GPUS": "0"}, "minor:0"),
        ({"SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, "uuid:MIG-a,MIG-b"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "none"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "none"),
        ({}, "none"),
    ],
)
def test_gpus_of_a_step(environ: dict[str, str], shown: str) -> None:
    assert slurm_task.gpus(environ, managed=True) == shown


def test_what_a_task_tells_its_holder() -> None:
    assert slurm_task.gpus({}, managed=False) == ""  # a cluster that does not count GPUs
    environ = {
        "SLURMD_NODENAME": "n2",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": "7",
        "PATH": "/bin",
    }
    settings = slurm_task.given({"gpus": "none", "managed": True}, "1", environ)
    assert json.loads(settings["slot"]) == {"group": 1, "node": "n2", "step": "0", "task": 1}
    assert settings["gpus"] == "none"
    assert "SLURM_PROCID" in settings["clean"]
    assert "SLURM_JOB_ID" not in settings["clean"]


def test_commands_do_not_see_the_step_that_they_are_called_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_NTASKS", "SLURM_STEP_ID", "SBATCH_EXPORT", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    env = Slurm().env("7")
    assert (env["SLURM_JOB_ID"], env["SLURM_CONF"], env["SBATCH_ACCOUNT"]) == ("7", "/etc/other.conf", "lab")
    assert not {"SLURM_NTASKS", "SLURM_STEP_ID", "SBATCH_EXPORT", "AWS_SECRET_ACCESS_KEY"} & env.keys()
    assert Slurm("/mine.conf").env()["SLURM_CONF"] == "/mine.conf"
    wire = Slurm().wire_words("7", "n1", "true")
    assert "--unset=SLURM_NTASKS" in wire
    assert wire[-1] == "true"


def test_a_place_where_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_place({}, {}) == tmp_path / ".local/state/tflaunch/slurm"
    open_to_all = tmp_path.parent / f"{tmp_path.name}-open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        own_place({"dir": str(open_to_all / "mine")}, {})
