"""Outputs that the agent finds and reads, under every Python."""

from __future__ import annotations

from tests.support.agent_over_pipes import Host, running, shell
from tests.support.patience import until
from tflaunch.inputs.patterns import Pattern, WantedPaths


def test_the_agent_reads_nothing_outside_of_the_working_directory(any_host: Host) -> None:
    channel = any_host.start()
    script = """
        mkdir -p a/b locked; echo 1 > a/one; echo 22 > a/b/two; printf 'odd' > "$(printf 'a/\\377 x')"
        ln -s /etc/passwd a/out; ln -s /etc gone; mkfifo a/pipe; ln -s . a/loop; sleep 1000
    """
    running(channel, shell(script))
    until((any_host.directory / "work/a/loop").is_symlink, "its files")
    found = channel.ask("find", patterns=[["^a/", True], ["^a/b/", False]], roots=["a"], answer="found")
    assert found["last"]
    assert {path: size for path, size, _, _ in found["files"]} == {"a/one": 2, "a/\udcff x": 3}
    assert {path: why for path, why, _ in found["left"]} == {
        "a/out": "a link, which is not followed",
        "a/loop": "a link, which is not followed",
        "a/pipe": "a pipe",
    }
    found = channel.ask("find", patterns=[["^gone/", True]], roots=["gone"], answer="found")
    assert found["left"] == [["gone", "a link, which is not followed", False]]
    assert found["there"] == ["a", "gone", "locked"]

    def read(path: str, **fields: object) -> tuple[bytes, str]:
        wanted = {"offset": 0, "size": 100, "digest": False, **fields}
        said = channel.ask("read", path=path, answer="piece", **wanted)
        return said.body, said["why"]

    assert read("a/b/two") == (b"22\n", "")
    assert read("a/b/two", offset=1) == (b"2\n", "")
    assert len(read("a/b/two", digest=True)[0]) == 32
    assert read("a/\udcff x") == (b"odd", "")
    for path in (
        "a/out",
        "gone/passwd",
        "a/loop/one",
        "../plan.json",
        "/etc/passwd",
        "a/../../plan.json",
        "a",
        "",
    ):
        body, why = read(path)
        assert (body, bool(why)) == (b"", True), path
    assert read("a/pipe") == (b"", "a pipe")
    channel.send("read", path="a\0b", offset=0, size=100, digest=False)
    refused = channel.next()
    assert refused is not None
    assert (refused.type, "path is not a path" in refused["reason"]) == ("failed", True)


def test_agents_match_as_the_launcher_does(any_host: Host) -> None:
    channel = any_host.start()
    script = """
        mkdir -p r/.deep/er .cache .git/hooks .GIT
        touch r/a.txt r/.b.txt r/.deep/c.txt r/.deep/er/d.txt .cache/e .git/hooks/f
        touch .GIT/g .h aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; sleep 1000
    """
    running(channel, shell(script))
    until((any_host.directory / "work/.h").exists, "its files")
    long = "a" * 81
    for texts, come, hidden in (
        (["**"], {"r/a.txt", long}, {"r/.b.txt", "r/.deep", ".cache", ".h"}),
        (["r/*.txt"], {"r/a.txt"}, {"r/.b.txt"}),
        ([".*", "!.h"], {".cache/e", "r/.b.txt", "r/.deep/c.txt", "r/.deep/er/d.txt"}, set()),
        (["*a" * 20 + "*b"], set(), set()),
        (["[[:alpha:]]*a"], {long}, set()),
    ):
        wanted = WantedPaths([Pattern.parse(text) for text in texts])
        found = channel.ask("find", patterns=wanted.regexes, roots=[""], answer="found")
        assert {row[0] for row in found["files"]} == come
        assert {path for path, why, bad in found["left"] if not bad and "begins with a dot" in why} == hidden
        assert all(wanted.says(path) for path in come)
