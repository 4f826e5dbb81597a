"""Files of variables, as the tasks get them."""

from __future__ import annotations

from pathlib import Path

from tests.support.launcher import TELL, Launcher, told
from tflaunch.protocol.errors import EXIT_USAGE


def test_tasks_get_them_and_nobody_else_sees_them(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    file = tmp_path / "secrets.env"
    file.write_text(f"OUT={out}\nTOKEN='s3cret word'\nOVER=s3cret\n")
    words: list[str | Path] = [
        launcher.local(2),
        launcher.script(TELL),
        "--env-file",
        file,
        "--env=OVER=said",
        "--ps=1",
        "--json",
    ]
    plan = launcher.run("run", *words, "--dry-run").ran()
    done = launcher.run("run", *words, "--ps-grace=0.2").ran()
    assert {task.env["TOKEN"] for task in told(out).values()} == {"s3cret word"}
    assert {task.env["OVER"] for task in told(out).values()} == {"said"}
    [event] = [event for event in plan.events if event["event"] == "plan"]
    assert [task["env"]["TOKEN"] for task in event["tasks"]] == ["***"] * 3
    assert "s3cret" not in plan.out + plan.err + done.out + done.err
    status = launcher.run("status", done.events[-1]["run_id"])
    assert "s3cret" not in status.out + status.err
    for path in (*launcher.state.rglob("*"), *launcher.hosts.rglob("*")):
        if (
            path.is_file() and b"s3cret" in path.read_bytes()
        ):  # only an agent's own request, for its user alone
            assert path.is_relative_to(launcher.hosts)
            assert path.stat().st_mode & 0o077 == 0


def test_in_a_job_file_they_are_relative_to_it(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    trainer = launcher.script(TELL)
    (trainer.parent / "job.yaml").write_text(
        "program: trainer.py\nenv_file: .env\nenv: {B: job}\nroles: {ps: 0, worker: 1}\n"
    )
    (trainer.parent / ".env").write_text(f"OUT={out}\nA=file\nB=file\n")
    (tmp_path / "more").write_text("A=more\n")
    launcher.run(
        "run", launcher.local(1), trainer.parent / "job.yaml", f"--env-file={tmp_path / 'more'}", cwd=tmp_path
    ).ran()
    task = told(out)["worker/0"]
    assert (task.env["A"], task.env["B"]) == ("more", "job")
    assert ".env" not in task.files
    (trainer.parent / ".env").write_text("A=1\nTF_CONFIG={}\n")
    done = launcher.run("run", launcher.local(1), trainer.parent / "job.yaml", cwd=tmp_path).ran(EXIT_USAGE)
    assert f"{trainer.parent / '.env'}:2" in done.sentences
