"""The configuration files: what they may say, what counts, and how their mistakes are told."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tflaunch.inputs import config_model
from tflaunch.inputs.config import ETC, Config, load, paths
from tflaunch.inputs.options.in_files import OF_VERB
from tflaunch.inputs.toml_document import read
from tflaunch.inputs.yaml_document import Tree
from tflaunch.protocol.errors import ConfigError

Configured = Callable[[str, str], Config]


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    """Writes the machine's file and the user's ("": none), and loads them."""

    def configured(machines: str, users: str) -> Config:
        environ = {ETC: str(tmp_path / "etc"), "HOME": str(tmp_path)}
        for path, text in zip(paths(environ), (machines, users), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            if text:
                path.write_text(textwrap.dedent(text))
        return load(environ)

    return configured


def test_where_the_files_are() -> None:
    machines, users = paths({"HOME": "/home/ada"})
    assert (str(machines), str(users)) == (
        "/etc/tflaunch/config.toml",
        "/home/ada/.config/tflaunch/config.toml",
    )
    assert paths({"XDG_CONFIG_HOME": "/x"})[1] == Path("/x/tflaunch/config.toml")
    assert paths({"XDG_CONFIG_HOME": "relative", "HOME": "/h"})[1] == Path("/h/.config/tflaunch/config.toml")


def test_the_users_file_wins_key_by_key(configured: Configured) -> None:
    found = configured(
        """\
        banner = "hello"
        connect_timeout = 5
        [run]
        grace = "30s"
        restarts = 2
        """,
        """\
        # mine

        [run]
        restarts = 3
        [stop]
        grace = "1m"
        """,
    )
    counts = {each.name: (each.value, Path(each.file).parent.name, each.line) for each in found.settings()}
    assert counts == {
        "banner": ("hello", "etc", 1),
        "connect_timeout": (5.0, "etc", 2),
        "run.grace": (30.0, "etc", 4),
        "run.restarts": (3, "tflaunch", 4),
        "stop.grace": (60.0, "tflaunch", 6),
    }
    assert [each.place.rpartition("/")[2] for each in found.overridden()] == ["config.toml:5"]
    banner = found.get("banner")
    assert banner is not None
    assert banner.of_machine
    assert found.get("hosts") is None


@pytest.mark.parametrize(("machines", "users", "counts"), [(4, 8, 4), (8, 4, 4)])
def test_of_two_limits_the_smaller_one_counts(
    configured: Configured, machines: int, users: int, counts: int
) -> None:
    found = configured(f"max_gpus_per_user = {machines}", f"max_gpus_per_user = {users}")
    setting = found.get("max_gpus_per_user")
    assert setting is not None
    assert setting.value == counts


def test_all_mistakes_of_both_files_at_once(configured: Configured) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(
            """\
            runs_dir = "/scratch"
            grace = "3s"
            hostfile = "hosts.yaml"
            """,
            """\
            max_gpus_per_user_per_host = 2
            connect_timeout = 0
            [run]
            grcae = "30s"
            done = "chef"
            env = { A = 1, B = true, TF_CONFIG = "x" }
            stacks = "no"
            [rnu]
            """,
        )
    told = [f"{each.line}: {each.message}" for each in raised.value.problems]
    assert told[:3] == [
        "1: unknown key 'runs_dir'; did you mean 'run_dir'?",
        "2: unknown key 'grace'; it is an option of `run`: put it under [run]",
        "3: unknown key 'hostfile'; did you mean 'hosts'?",
    ]
    assert told[3].startswith("1: max_gpus_per_user_per_host counts only in ")
    assert told[4:] == [
        "2: connect_timeout: '0' is less than 1 s",
        "4: unknown key 'grcae'; did you mean 'grace'?",
        "5: done: 'chef' is none of auto, chief, workers, all, never",
        "6: B: 'true' is a boolean, and text is wanted; put it in quotes",
        *(each for each in told if "'TF_CONFIG' is what tflaunch sets" in each),
        "7: stacks: 'no' is neither true nor false",
        "8: unknown key 'rnu'; did you mean 'run'?",
    ]
    assert {each.where.rpartition("/")[2] for each in raised.value.problems} == {"config.toml"}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a = 1\nb 2\n", 2, "not TOML: Expected '=' after a key"),
        ("[run\n", 1, "not TOML: Expected ']'"),
        ('banner = """never ends\n\n', 3, "not TOML: Unterminated string"),
        ("ports = [1, 2]\nports = [3, 4]\n", 2, "not TOML: Cannot overwrite a value"),
    ],
)
def test_what_is_no_toml(configured: Configured, text: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(text, "")
    (problem,) = raised.value.problems
    assert (problem.line, problem.message[: len(said)]) == (line, said)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_line_of_every_key(end: str) -> None:
    text = """\
# first
a = '''
[x]
b = 1
'''

[run]
env.A = 1
"c" = [
  1, # one
  2,
]
[run.env2]
d = { e = 1, f = { g = 2 } }
"""
    tree = Tree("config.toml")
    data, parsed = read(text.replace("\n", end), tree)
    assert not tree.problems
    lines = {".".join(map(str, loc)): node.start_mark.line + 1 for loc, node in tree.keys.items()}
    assert lines == {
        "a": 2, "run": 7, "run.env": 8, "run.env.A": 8, "run.c": 9, "run.c.0": 9, "run.c.1": 9, "run.env2": 13,
        "run.env2.d": 14, "run.env2.d.e": 14, "run.env2.d.f": 14, "run.env2.d.f.g": 14,
    }  # fmt: skip
    assert parsed["run"]["c"] == [1, 2]
    assert data["run"]["c"] == ["1", "2"]


def test_a_file_that_others_may_write_is_refused(configured: Configured, tmp_path: Path) -> None:
    configured('banner = "hello"', "")
    (tmp_path / "etc" / "config.toml").chmod(0o666)
    with pytest.raises(ConfigError) as raised:
        configured("", "")
    assert "config.toml: is not read: it may be written by everybody (mode 0666)" in raised.value.message
    assert "chmod go-w" in raised.value.hint


def test_paths_are_relative_to_their_file(configured: Configured, tmp_path: Path) -> None:
    found = configured('[run]\nrequirements = "r.txt"\nenv_file = [".env", "/abs"]', 'ssh_config = "~/s"')
    etc, users = found.files
    assert etc.defaults["run"].options == {"requirements": tmp_path / "etc" / "r.txt"}
    assert etc.defaults["run"].lists["env_file"] == (tmp_path / "etc" / ".env", Path("/abs"))
    assert users.defaults[""].options == {"ssh_config": Path("~/s").expanduser()}


def test_the_schema_has_every_key() -> None:
    schema = config_model.json_schema()
    json.dumps(schema)
    tables = schema["$defs"]
    top = schema["properties"]
    assert set(top) == {*config_model.keys_of(""), *OF_VERB}
    for name in OF_VERB:
        properties = tables[f"{name.capitalize()}Table"]["properties"]
        assert set(properties) == set(config_model.keys_of(name))
        assert all(each.get("description") for each in properties.values()), name
    assert all(top[key].get("description") for key in config_model.keys_of(""))
