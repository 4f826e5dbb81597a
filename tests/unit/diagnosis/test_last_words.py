"""What the last words of a failed task lead to: the line that is shown, whatever a log may say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tflaunch.diagnosis.last_words import RULES, advice

from tests.support.code import grow
from tflaunch.console.code_page import where_it_lies

GIVEN = "--ps_hosts=a:1 --worker_hosts=b:1 --job_name=worker --task_index=0"
NO_FLAGS, ONE, WITH, WRONG = (
    "--no-flags leaves them out",
    "--flag {0}=NAME says",
    "--flags passes them",
    "correct what follows --",
)
# as the libraries write it -> what to type
WORDS = {
    f"trainer.py: error: unrecognized arguments: {GIVEN}": NO_FLAGS,
    f"trainer.py: error: unrecognized arguments: -x --no-thing {GIVEN} --epoch 3": NO_FLAGS,
    "trainer.py: error: unrecognized arguments: --job_name=worker --task_index=0": ONE.format("job_name"),
    "trainer.py: error: unrecognized arguments: --task_index=0": ONE.format("task_index"),
    "trainer.py: error: unrecognized arguments: --epoch 3": WRONG,
    "FATAL Flags parsing error: Unknown command line flag 'ps_hosts'. Did you mean: ps-hosts ?": NO_FLAGS,
    "absl.flags._exceptions.UnrecognizedFlagError: Unknown command line flag 'worker_hosts'": NO_FLAGS,
    "FATAL Flags parsing error: Unknown command line flag 'task_index'": ONE.format("task_index"),
    "FATAL Flags parsing error: Unknown command line flag 'epoch'. Did you mean: epochs ?": WRONG,
    "FATAL Flags parsing error: flag --ps_hosts=None: Flag --ps_hosts must have a value other than None.": WITH,
    "FATAL Flags parsing error: flag --epochs=x: invalid literal for int() with base 10: 'x'": WRONG,
    "Error: No such option: --ps_hosts": NO_FLAGS,
    "Error: No such option '--ps_hosts'.": NO_FLAGS,
    "│ No such option: --ps_hosts                                            │": NO_FLAGS,
    "Error: no such option: --task_index  Did you mean --task-index?": ONE.format("task_index"),
    "Error: No such option: --epoch Did you mean --epochs?": WRONG,
    "Error: Got unexpected extra argument (3)": WRONG,
    "Error: Got unexpected extra arguments (3 4)": WRONG,
    "│ Got unexpected extra argument(s) (x)                                  │": WRONG,
    "ERROR: Could not consume arg: --ps_hosts=a:1": NO_FLAGS,
    "getopt.GetoptError: option --ps_hosts not recognized": NO_FLAGS,
    "trainer.py: error: the following arguments are required: --task_id, --ps-hosts": WITH,
    "ModuleNotFoundError: No module named 'tensorflow'": "/py on gpu01 has no tensorflow: name another Python",
    "/usr/bin/python3: No module named pkg.trainer": "/py on gpu01 has no pkg.trainer: name another",
    "ck/model.ckpt-0_temp; No such file or directory": "with --no-sync, or its path as the program's own argument)",
    "logs/model.ckpt-12_temp_9f/part-00000-of-00002.index; No such file or directory": "Saver(sharded=False)",
    "ValueError: There is no id for task_type 'ps'": "--ps 0",
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 1, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use": "--framework torch",
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The "
    "server socket has failed to bind to [::]:1 (errno: 98 - Address already in use).": "--framework torch",
    "ValueError: Number of processes must be defined.": "JAX_NUM_PROCESSES",
    "RuntimeError: Gloo connectFullMesh failed with [/__w/gloo/transport/tcp/pair.cc:152] timed out connecting: "
    "Connection refused, remote=[127.0.1.1]:2465": "on gpu01, /etc/hosts must",
    "RuntimeError: Unable to initialize backend 'cpu': [enforce fail at external/gloo/gloo/transport/tcp/device.cc:99] "
    "rv == 0. -3 vs 0 (you may need to": "/etc/hosts must give that name",
    "torch.AcceleratorError: CUDA error: invalid device ordinal": "cuda:LOCAL_RANK",
    # of which nothing is known
    "we have No module named 'x' but go on": "",
    "data/train.csv; No such file or directory": "",
    "ValueError: shapes do not match": "",
    "": "",
}


@pytest.mark.parametrize("words", WORDS)
def test_words_that_are_known(words: str) -> None:
    told = advice(
        ["usage: trainer.py [-h]", words, "Pass --helpshort to see help."], python="/py", host="gpu01"
    )
    assert WORDS[words] in told
    assert bool(told) == bool(WORDS[words])
    assert "\n" not in told


def test_every_rule_has_words() -> None:
    told = {advice([words], python="{python}", host="{host}") for words in WORDS}
    for rule in RULES:
        start = rule.advice.partition("{0}")[0]
        assert any(line.startswith(start.format(python="{python}", host="{host}")) for line in told), rule


def test_the_last_words_count_and_old_ones_do_not() -> None:
    unknown, missing = (
        "error: unrecognized arguments: --ps_hosts=a",
        "ModuleNotFoundError: No module named 'x'",
    )
    assert "has no x" in advice([unknown, missing])
    assert NO_FLAGS in advice([missing, unknown])
    assert not advice([missing, *["step"] * 30])
    temp = "ck/model.ckpt-0_temp; No such file or directory"
    assert "Saver" in advice([temp, *["  File 'graph.py', line 3"] * 200])


def test_a_log_chooses_a_rule_and_says_nothing_itself() -> None:
    evil = "ModuleNotFoundError: No module named '{host.__class__}"
    assert not advice([evil])
    assert "rm -rf" not in advice(["ModuleNotFoundError: No module named 'x; rm -rf ~'"])
    longest = advice([f"ModuleNotFoundError: No module named '{'m' * 500}'"])
    assert "m" * 81 not in longest


@pytest.mark.parametrize(
    "line",
    [
        "unrecognized arguments: " * 5000,
        "unrecognized arguments: " + "--ps_host " * 5000,
        "a: " * 5000,
        "a" * 20000 + ": No module named '" + "a." * 5000,
        "ckpt" * 5000,
        "ckpt_temp" * 5000,
        "the following arguments are required: " + "- " * 9000,
    ],
)
def test_hostile_lines_take_no_time(line: str) -> None:
    assert advice([line] * 1000, where=str) in ("", advice([line]))  # exponential, it would not end


def test_a_module_that_lies_here_is_named_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(
        tmp_path,
        {
            "proj/train/trainer.py": "",
            "proj/train/secret.py": "",
            "proj/train/data/x.csv": "",
            "proj/train/pkg/mod.py": "",
            "proj/lib/__init__.py": "",
        },
    )
    monkeypatch.chdir(tmp_path / "proj/train")
    train, proj = tmp_path / "proj/train", tmp_path / "proj"
    assert where_it_lies("secret", train, "trainer.py") == (
        f"secret lies in {train} and did not come to the hosts: --ship secret.py ships it"
    )
    assert "--ship pkg/mod.py" in where_it_lies("pkg.mod", train, "trainer.py")
    assert "--code-dir .. --env PYTHONPATH=." in where_it_lies("lib", train, "trainer.py")
    assert "--ship train/secret.py" in where_it_lies("secret", proj, "train/trainer.py")
    assert "--env PYTHONPATH=. finds it" in where_it_lies("lib", proj, "train/trainer.py")
    for module in ("tensorflow", "data", "pkg.other", "lib.more"):
        assert where_it_lies(module, train, "trainer.py") == ""
    told = advice(["E: No module named lib"], where=lambda name: where_it_lies(name, train, "trainer.py"))
    assert told.startswith(f"lib lies in {proj}")
