"""The hostfile in all its forms: what is read, and every way in which it is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support import ROOT
from tests.support.hostfiles import Write, host, problems
from tflaunch.hosts import Host, Hostfile, fold, load, match
from tflaunch.inputs import yaml_document
from tflaunch.inputs.hostfile_model import Settings, json_schema
from tflaunch.protocol.errors import HostfileError

HOSTFILES = ROOT / "hostfiles"


GOOD = {
    "short": ("- b\n- a\n", [host("b"), host("a")]),
    "short, flow": ("[b, a]", [host("b"), host("a")]),
    "json": ('{"hosts": ["a", {"name": "b", "port": 22}]}', [host("a"), host("b", port=22)]),
    "range": ("- gpu[09-10].lab", [host("gpu09.lab"), host("gpu10.lab")]),
    "range as written": ("- n[3,1-2]", [host("n3"), host("n1"), host("n2")]),
    "two ranges and a step": ("- r[1-2]n[0-4/4]", [host("r1n0"), host("r1n4"), host("r2n0"), host("r2n4")]),
    "name of digits": ("- 007\n- 10.0.0.1", [host("007"), host("10.0.0.1")]),
    "byte order mark": ("\ufeff- a", [host("a")]),
    "windows line ends": ("hosts:\r\n- a\r\n", [host("a")]),
    "defaults": (
        "defaults: {user: me, gpus: 0}\nhosts: [a, {name: b, user: you}]",
        [host("a", user="me", gpus=0), host("b", user="you", gpus=0)],
    ),
    "innermost wins, env and labels merge": (
        """
defaults: {port: 1, user: d, env: {A: 1, B: 1, C: 1}, labels: {x: 1}}
hosts:
- group: outer
  port: 2
  env: {B: 2, C: 2}
  hosts:
  - group: inner
    setup: [one, two]
    labels: {y: 2}
    hosts:
    - name: a
      port: 3
      env: {C: 3}
      setup: three
  - b
- c
""",
        [
            host(
                "a",
                port=3,
                user="d",
                env={"A": "1", "B": "2", "C": "3"},
                labels={"x": "1", "group": "inner", "y": "2"},
                setup=("three",),
            ),
            host(
                "b", port=2, user="d", env={"A": "1", "B": "2", "C": "2"}, labels={"x": "1", "group": "outer"}
            ),
            host("c", port=1, user="d", env={"A": "1", "B": "1", "C": "1"}, labels={"x": "1"}),
        ],
    ),
    "env as written": (
        "- {name: a, env: {A: 010, B: 1.10, C: 1e3, D: '', E: 'yes', F: 20:30, G: 2026-01-01}}",
        [
            host(
                "a",
                env={
                    "A": "010",
                    "B": "1.10",
                    "C": "1e3",
                    "D": "",
                    "E": "yes",
                    "F": "20:30",
                    "G": "2026-01-01",
                },
            )
        ],
    ),
    "ports": (
        "- {name: a, ports: 20000-20999}\n- {name: b, ports: [1024, 65535]}",
        [host("a", ports=(20000, 20999)), host("b", ports=(1024, 65535))],
    ),
    "gpus": (
        "- {name: a, gpus: auto}\n- {name: b, gpus: 4}\n- {name: c, gpus: [2, 0]}\n"
        "- {name: d, gpus: [GPU-1a, 3]}\n- {name: e, gpus: [MIG-41-f, 0.0, '3.1']}",
        [
            *(host("a"), host("b", gpus=4), host("c", gpus=(2, 0)), host("d", gpus=("GPU-1a", 3))),
            host("e", gpus=("MIG-41-f", "0.0", "3.1")),
        ],
    ),
    "setup of several lines": (
        "- name: a\n  setup: |\n    one\n    \ttwo\n",
        [host("a", setup=("one\n\ttwo",))],
    ),
    "ranges side by side": (
        "- {name: 'a[1-2]', ssh: 'b[3-4].lab', address: '10.0.0.[8,7]'}",
        [
            host("a1", ssh_host="b3.lab", address="10.0.0.8"),
            host("a2", ssh_host="b4.lab", address="10.0.0.7"),
        ],
    ),
    "ssh by address": ("- {name: a, ssh: 'fe80::1%eth0'}", [host("a", ssh_host="fe80::1%eth0")]),
    "one machine for two local hosts": (
        "defaults: {connection: local, ssh: x}\nhosts: ['l[1-2]']",
        [host("l1", connection="local", ssh_host="x"), host("l2", connection="local", ssh_host="x")],
    ),
    "one address, two ports": (
        "- {name: a, ssh: x, port: 1}\n- {name: b, ssh: x, port: 2}",
        [host("a", ssh_host="x", port=1), host("b", ssh_host="x", port=2)],
    ),
    "alias": (
        "- {name: a, env: &e {X: 1}}\n- {name: b, env: *e}",
        [host("a", env={"X": "1"}), host("b", env={"X": "1"})],
    ),
    "directories": (
        "- {name: a, workdir: ~/x, run_dir: /local, python: '~/venv/bin/python '}",
        [host("a", workdir="~/x", run_dir="/local", python="~/venv/bin/python")],
    ),
    "jumps": ("- {name: a, proxy_jump: 'me@x:2222,y'}", [host("a", proxy_jump="me@x:2222,y")]),
    "plain, slots": ("# mpi\n\na slots=4\nb slots = 2 # two\n", [host("a", slots=4), host("b", slots=2)]),
    "plain, colon": ("me@a:4\nb", [host("a", slots=4, user="me"), host("b")]),
    "plain, tabs": ("a\tslots=4\tmax_slots=8\nb\tmax-slots=3", [host("a", slots=4), host("b", slots=3)]),
    "plain, repeated": ("a\nb\na\n", [host("a", slots=2), host("b")]),
    "plain, one name": ("a", [host("a")]),
    "plain, range": ("a[1-2] slots=0", [host("a1", slots=0), host("a2", slots=0)]),
    "plain, this machine": ("localhost slots=4", [host("localhost", slots=4, connection="local")]),
}


@pytest.mark.parametrize(("text", "hosts"), GOOD.values(), ids=GOOD)
def test_good_file(write: Write, text: str, hosts: list[Host]) -> None:
    assert load(write(text)) == Hostfile("hosts.yaml", tuple(hosts))


BOOLEAN = "is a boolean to YAML, and text is wanted; put it in quotes"
KEYS = ", ".join(Settings.model_fields)


# Everything after `hosts.yaml`; each a complete account of what is wrong with the file.
BAD = {
    "empty": ("", [": the file is empty; list at least one host: `- gpu01`"]),
    "comments only": ("# nothing\n", [": the file is empty; list at least one host: `- gpu01`"]),
    "text": ("'a b'", [":1:1: 'a b' is not a hostfile: want a list of hosts, or a mapping with `hosts:`"]),
    "no value": ("hosts:", [":1:1: hosts: has no value; want a list of hosts, as [gpu01, gpu02]"]),
    "no hosts": (
        "defaults: {}\nhosts: []",
        [":2:8: hosts: an empty list; write at least one host: `- gpu01`"],
    ),
    "short, no hosts": ("[]", [":1:1: hosts: an empty list; write at least one host: `- gpu01`"]),
    "hosts is a mapping": (
        "hosts: {a: b}",
        [":1:8: hosts: a mapping is not a list of hosts, as [gpu01, gpu02]"],
    ),
    "hosts is a name": ("hosts: a", [":1:8: hosts: 'a' is not a list of hosts, as [gpu01, gpu02]"]),
    "a column too far left": (
        "hosts:\n  - name: a\n   port: 1\n",
        [
            ":3:4: not YAML: this line fits nothing above it: what belongs together begins in one column "
            "(while parsing a block collection that begins at line 2, column 3: "
            "expected <block end>, but found '<block mapping start>')"
        ],
    ),
    "no colon in the line before": (
        "- name a\n  port: 1\n",
        [
            ":2:7: not YAML: a ':' where none may be: is one missing in the line above, or does a value need quotes? "
            "(mapping values are not allowed here)"
        ],
    ),
    "no colon": (
        "- name: a\n  user bob\n",
        [
            ":3:1: not YAML: a key without its ':' "
            "(while scanning a simple key that begins at line 2, column 3: could not find expected ':')"
        ],
    ),
    "key for hosts misspelt": ("host: [a]", [":1:1: unknown key 'host'; did you mean 'hosts'?"]),
    "setting at the top": ("user: me\nhosts: [a]", [":1:1: unknown key 'user'; put it under `defaults:`"]),
    "unknown at the top": (
        "usr: me\nhosts: [a]",
        [":1:1: unknown key 'usr'; the keys here are defaults, hosts"],
    ),
    "misspelt keys": (
        "hosts:\n- name: a\n  prot: 22\n- nmae: b\n- group: g\n  IdentityFile: k\n  hosts: [c]\n",
        [
            ":3:3: unknown key 'prot'; did you mean 'port'?",
            ":4:3: unknown key 'nmae'; did you mean 'name'?",
            ":6:3: unknown key 'IdentityFile'; did you mean 'identity_file'?",
        ],
    ),
    "key like nothing": (
        "- {name: a, zzz: 1}",
        [f":1:13: unknown key 'zzz'; the keys here are name, {KEYS}"],
    ),
    "key given twice": (
        "- name: a\n  port: 1\n  port: 2",
        [":3:3: the key 'port' is given twice; first at line 2, column 3"],
    ),
    "key is a list": ("- {[a]: b, name: c}", [":1:4: a key is plain text, not a list or a mapping"]),
    "merge key": (
        "- {name: a, <<: {user: b}}",
        [":1:13: '<<' is not read here; put shared settings under `defaults:` or in a group"],
    ),
    "host without name": ("- {user: me}", [":1:3: this host has no `name:`"]),
    "group without name": ("- hosts: [a]", [":1:3: this group has no `group:`"]),
    "group without hosts": ("- group: g", [":1:3: this group has no `hosts:`"]),
    "entry is a list": (
        "- [a, b]",
        [":1:3: a list is not a host: want a name, a range, or a mapping with `name:` or `group:`"],
    ),
    "entry is nothing": ("- a\n-\n", [":2:2: this item has no value; write a host name, or leave it out"]),
    "name is a boolean": (
        "- no\n- 'no'\n- {name: on}",
        [f":1:3: 'no' {BOOLEAN}", f":3:10: name: 'on' {BOOLEAN}"],
    ),
    "user in a name": ("- me@a", [":1:3: 'me@a' has a user in it; write {name: a, user: me}"]),
    "very large number in a name": (
        "- a:" + "9" * 5000,
        [
            f":1:3: 'a:{'9' * 55}...' has ':' in it; a host name is made of letters, digits, '.', '_' and '-'",
        ],
    ),
    "number in a name": (
        "- a:4\n- gpu01:22\n- name: gpu02:2222",
        [
            ":1:3: 'a:4' has a number of slots in it; write {name: a, slots: 4}",
            ":2:3: 'gpu01:22' has a port in it; write {name: gpu01, port: 22}",
            ":3:9: name: 'gpu02:2222' has a port in it; write {name: gpu02, port: 2222}",
        ],
    ),
    "IPv6 as a name": (
        "- {name: 'fe80::1'}",
        [":1:10: name: 'fe80::1' is an IPv6 address; give it a name: {name: h1, ssh: 'fe80::1'}"],
    ),
    "a command for an interpreter": (
        "- {name: a, python: python3 -u}\n- {name: b, python: /usr/bin/env python3.11}\n"
        "- {name: c, python: conda run -n tf python}\n- {name: d, python: $HOME/venv/bin/python}\n"
        "- {name: e, python: /usr/bin}\n- {name: f, python: ~/.venv}\n- {name: g, python: /x/python3/}\n"
        "- {name: h, python: python3 -O}\n- {name: i, python: uv run python}\n- {name: j, python: $X/python}\n",
        [
            ":1:21: python: 'python3 -u' has arguments, and an interpreter is wanted; "
            "write `python: python3`: output is never held back",
            ":2:21: python: '/usr/bin/env python3.11' is a command, not an interpreter; write `python: python3.11`",
            ":3:21: python: 'conda run -n tf python' is a command, not an interpreter; write `conda: tf`",
            ":4:21: python: '$HOME/venv/bin/python' has a $ in it, and no shell expands it; "
            "write `python: ~/venv/bin/python`",
            ":5:21: python: '/usr/bin' is a directory, and an interpreter is wanted; write `python: /usr/bin/python3`",
            ":6:21: python: '~/.venv' is a directory, and an interpreter is wanted; "
            "write `python: ~/.venv/bin/python3`",
            ":7:21: python: '/x/python3/' is a directory, and an interpreter is wanted; write `python: /x/python3`",
            ":8:21: python: 'python3 -O' has arguments, and an interpreter is wanted; "
            "write `python: python3`; for -O there are variables, as `env:`",
            ":9:21: python: 'uv run python' is a command, not an interpreter; "
            "write `venv:` with the directory of the environment",
            ":10:21: python: '$X/python' has a $ in it, and no shell expands it; "
            "write the path itself; ~/ is your home there",
        ],
    ),
    "a setup that is too long": (
        f"- {{name: a, setup: {'x' * 65_537}}}",
        [
            f":1:20: setup: '{'x' * 57}...' has 65,537 characters; 65,536 are the most; "
            "put it into a script on the hosts: `. ~/setup.sh`"
        ],
    ),
    "space in a name": (
        "- gpu 1",
        [":1:3: 'gpu 1' has ' ' in it; a host name is made of letters, digits, '.', '_' and '-'"],
    ),
    "dash first": (
        "- -oProxy",
        [":1:3: '-oProxy' begins with '-'; a host name begins with a letter, a digit or '_'"],
    ),
    "dot first": ("- .a", [":1:3: '.a' begins with '.'; a host name begins with a letter, a digit or '_'"]),
    "path as a name": (
        "- ../a",
        [":1:3: '../a' has '/' in it; a host name is made of letters, digits, '.', '_' and '-'"],
    ),
    "long name": (
        f"- {'a' * 98}[001]",
        [f":1:3: '{'a' * 57}...' makes names of 101 characters; at most 100 are allowed"],
    ),
    "huge range": (
        "- gpu[1-99999999]",
        [":1:3: 'gpu[1-99999999]' stands for 99,999,999 hosts; at most 10,000 are allowed in all"],
    ),
    "huge product": (
        "- a[1-101]b[1-100]",
        [":1:3: 'a[1-101]b[1-100]' stands for 10,100 hosts; at most 10,000 are allowed in all"],
    ),
    "too many in all": (
        "- a[1-9999]\n- [b1]\n- b\n- c[1-3]",
        [
            ":2:3: a list is not a host: want a name, a range, or a mapping with `name:` or `group:`",
            ":4:3: 'c[1-3]' makes 10,003 hosts; at most 10,000 are allowed in all",
        ],
    ),
    "reversed range": (
        "- a[5-1]",
        [":1:3: 'a[5-1]' has an empty range '5-1'; the smaller number goes first"],
    ),
    "padding": (
        "- a[1-016]",
        [":1:3: 'a[1-016]' pads '1-016' to two widths; write both ends with as many digits"],
    ),
    "letters in a range": (
        "- a[x-z]",
        [":1:3: 'a[x-z]' has 'x-z' as a range; write it as [01-16], [1,3,5] or [0-14/2]"],
    ),
    "unclosed range": ("- a[1-2", [":1:3: 'a[1-2' has an unmatched '['; write a range as gpu[01-16]"]),
    "unquoted range in a flow list": (
        "[gpu[1-2]]",
        [
            ":1:5: not YAML: while parsing a flow sequence that begins at line 1, column 1: "
            "expected ',' or ']', but got '[' (a range inside [ ] needs quotes: [\"gpu[01-16]\"])"
        ],
    ),
    "duplicates": (
        "- a\n- b[1-4]\n- name: a\n- b[3-5]\n- a\n",
        [
            ":3:9: a is listed twice; first at line 1, column 3",
            ":4:3: b[3-4] are listed twice; first at line 2, column 3",
            ":5:3: a is listed twice; first at line 1, column 3",
        ],
    ),
    "duplicates beside another fault": (
        "- a\n- {name: a, port: x}\n- {name: [b]}\n",
        [
            ":2:10: a is listed twice; first at line 1, column 3",
            ":2:19: port: 'x' is not a whole number from 1 to 65535",
            ":3:10: name: a list is not a host name",
        ],
    ),
    "one machine twice": (
        "- gpu.lab\n- {name: b, ssh: GPU.lab}\n- {name: c, ssh: x, port: 5, user: me}\n"
        "- {name: d, ssh: x, port: 5, user: me}",
        [
            ":2:10: b is the same machine as gpu.lab at line 1, column 3 (ssh GPU.lab)",
            ":4:10: d is the same machine as c at line 3, column 10 (ssh x, port 5, user me)",
        ],
    ),
    "one machine for a range": (
        "- {name: 'a[1-9]', ssh: x}",
        [":1:10: 'a[1-9]' are several hosts, and `ssh: x` is one; write it as a range"],
    ),
    "ranges of two sizes": (
        "- {name: 'a[1-9]', ssh: 'x[1-8]'}\n- {name: b, address: '10.0.0.[1-9999]'}",
        [
            ":1:25: ssh: 'x[1-8]' stands for 8 machines, and 'a[1-9]' for 9; write ranges of one size",
            ":2:22: address: '10.0.0.[1-9999]' stands for 9999 machines, and 'b' for 1; "
            "write ranges of one size",
        ],
    ),
    "ssh and address": (
        "- {name: a, ssh: me@x, address: 'x:22'}\n- {name: b, ssh: -v, address: 'a b'}",
        [
            ":1:18: ssh: 'me@x' has a user in it; write the user as `user:`",
            ":1:33: address: 'x:22' has a port in it; write the port of sshd as `port:`",
            ":2:18: ssh: '-v' is not a host name or address",
            ":2:31: address: 'a b' is not a host name or address",
        ],
    ),
    "port": (
        "- {name: a, port: 0}\n- {name: b, port: 65536}\n- {name: c, port: ssh}\n- {name: d, port: yes}\n"
        "- {name: e, port: -1}\n- {name: f, port: 1.5}\n- {name: g, port: [1]}\n- {name: h, port: 022}\n",
        [
            ":1:19: port: '0' is not a whole number from 1 to 65535",
            ":2:19: port: '65536' is not a whole number from 1 to 65535",
            ":3:19: port: 'ssh' is not a whole number from 1 to 65535",
            ":4:19: port: 'yes' is not a whole number from 1 to 65535",
            ":5:19: port: '-1' is not a whole number from 1 to 65535",
            ":6:19: port: '1.5' is not a whole number from 1 to 65535",
            ":7:19: port: a list is not a whole number from 1 to 65535",
            ":8:19: port: '022' begins with 0, which YAML reads as octal; "
            "write a whole number from 1 to 65535 without it",
        ],
    ),
    "ports": (
        "- {name: a, ports: 20999-20000}\n- {name: b, ports: 80-90}\n- {name: c, ports: 60000-70000}\n"
        "- {name: d, ports: 20000:20999}\n- {name: e, ports: 20000}\n- {name: f, ports: [1, 2, 3]}\n",
        [
            ":1:20: ports: '20999-20000' is reversed; write 20000-20999",
            ":2:20: ports: '80-90' is not a range of ports within 1024-65535, "
            "as 20000-20999 or [20000, 20999]",
            ":3:20: ports: '60000-70000' is not a range of ports within 1024-65535, "
            "as 20000-20999 or [20000, 20999]",
            ":4:20: ports: '20000:20999' is a number in base 60 to YAML; write 20000-20999",
            ":5:20: ports: '20000' is not a range of ports within 1024-65535, "
            "as 20000-20999 or [20000, 20999]",
            ":6:20: ports: a list is not a range of ports within 1024-65535, "
            "as 20000-20999 or [20000, 20999]",
        ],
    ),
    "gpus": (
        "- {name: a, gpus: all}\n- {name: b, gpus: []}\n- {name: c, gpus: [0, x]}\n"
        "- {name: d, gpus: [1, 1]}\n- {name: e, gpus: 5000}\n- {name: f, gpus: [0, 3.10]}\n"
        "- {name: g, gpus: 3.1}\n- {name: h, gpus: [3.1, 3.1]}\n",
        [
            ":1:19: gpus: 'all' is not `auto`, a count, 0, or a list of indices or UUIDs "
            "such as [0, 1] or [GPU-8f3c…]",
            ":2:19: gpus: an empty list names no GPU; write 0 to use none, `auto` to use all",
            ":3:23: gpus: 'x' is not the index or UUID of a GPU (3, GPU-…) or MIG instance (3.1, MIG-…)",
            ":4:23: gpus: '1' is listed twice",
            ":5:19: gpus: '5000' is not a whole number from 0 to 1024",
            ":6:23: gpus: '3.10' is not the index or UUID of a GPU (3, GPU-…) or MIG instance (3.1, MIG-…)",
            ":7:19: gpus: '3.1' is not `auto`, a count, 0, or a list of indices or UUIDs "
            "such as [0, 1] or [GPU-8f3c…]",
            ":8:25: gpus: '3.1' is listed twice",
        ],
    ),
    "env": (
        "defaults:\n  env:\n    A: yes\n    B:\n    1C: x\n    D: [1]\nhosts: [a]",
        [
            f":3:8: A: 'yes' {BOOLEAN}",
            ':4:5: B: has no value; write its value ("" for an empty one), or leave it out',
            ":5:5: '1C' is not the name of a variable: letters, digits and '_', not a digit first",
            ':6:8: D: a list is not its value ("" for an empty one)',
        ],
    ),
    "env is no mapping": (
        "- {name: a, env: [A=1]}",
        [":1:18: env: a list is not a mapping of keys to values"],
    ),
    "labels": (
        "- {name: a, labels: {x: on, y: 'a,b'}}",
        [
            f":1:25: x: 'on' {BOOLEAN}",
            ":1:32: y: 'a,b' is not a label: text without spaces, commas, '=' or any of ! & ^ @ * ? [ ]",
        ],
    ),
    "setup": (
        "- {name: a, setup: yes}\n- {name: b, setup: [x, {y: z}]}",
        [
            ":1:20: setup: 'yes' is not a line of shell text; put it in quotes",
            ":2:24: setup: a mapping is not a line of shell text; put it in quotes",
        ],
    ),
    "directories": (
        "- {name: a, workdir: train, run_dir: ~you/x, identity_file: ~you/key}",
        [
            ":1:22: workdir: 'train' is relative; write a directory on the host that begins with / or ~/",
            ":1:38: run_dir: '~you/x' is relative; write a directory on the host that begins with / or ~/",
            ":1:61: identity_file: '~you/key' is not the path of a private key: "
            "absolute, from ~/, or relative to the hostfile",
        ],
    ),
    "user, jump, connection, slots": (
        "- {name: a, user: a b, proxy_jump: -x, connection: telnet, slots: many, python: ''}",
        [
            ":1:19: user: 'a b' is not a user name",
            ":1:36: proxy_jump: '-x' is not `none` or [user@]host[:port], several separated by commas",
            ":1:52: connection: 'telnet' is not ssh, openssh or local",
            ":1:67: slots: 'many' is not a whole number from 0 to 10000",
            ":1:81: python: '' is not a Python interpreter: python3, or a path on the host",
        ],
    ),
    "control character": (
        '- {name: a, user: "a\\nb"}',
        [":1:19: user: 'a\\nb' holds a line break or a control character"],
    ),
    "surrogate": (
        '- {name: a, env: {A: "\\ud800"}}',
        [":1:22: A: '\\ud800' holds a character that no environment takes"],
    ),
    "tab": ("hosts:\n\t- a", [":2:1: a tab; YAML wants spaces"]),
    "tab in a mapping": ("- name: a\n\tport: 22", [":2:1: a tab; YAML wants spaces"]),
    "unclosed quote": (
        "- 'a\n- b\n",
        [
            ":3:1: not YAML: while scanning a quoted scalar that begins at line 1, column 3: "
            "found unexpected end of stream"
        ],
    ),
    "two documents": (
        "- a\n---\n- b\n",
        [
            ":2:1: not YAML: expected a single document in the stream that begins at line 1, column 1: "
            "but found another document"
        ],
    ),
    "tag": (
        "- !!python/object:os.system a\n- !x b\n",
        [
            ":1:3: the tag 'tag:yaml.org,2002:python/object:os.system' has no meaning here; leave it out",
            ":2:3: the tag '!x' has no meaning here; leave it out",
        ],
    ),
    "escape out of range": ('- "\\UFFFFFFFF"', [":1:6: not YAML: a number or an escape is out of range"]),
    "unprintable": ("- a\n- b\x01\n", [":2:4: not YAML: the character U+0001 is not allowed"]),
    "nested": ("- a: " + "[" * 40, [":1:36: nested more than 32 deep, or an alias of itself"]),
    "alias of itself": ("- &a [*a]", [":1:3: nested more than 32 deep, or an alias of itself"]),
    "bomb": (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        [":1:4: the document has more than 100,000 values, its aliases expanded"],
    ),
    "plain, unknown words": (
        "a slots=4 gpus=2\nb four\nc slots=x\nd:x\ne:99999\n",
        [
            ":1:11: 'gpus=2' is not known here; a line is `host`, `host:4` or `host slots=4`",
            ":2:3: 'four' is not known here; a line is `host`, `host:4` or `host slots=4`",
            ":3:3: slots: 'x' is not a whole number from 0 to 10000",
            ":4:1: 'x' is not a number of slots (host:4, at most 256) nor SSH's port (host:2222)",
            ":5:1: '99999' is not a number of slots (host:4, at most 256) nor SSH's port (host:2222)",
        ],
    ),
    "plain, twice": ("a slots=2\n  me@a slots=3", [":2:6: a is listed twice; first at line 1, column 1"]),
    "plain, user": (
        "-l@a\n",
        [":1:1: '-l@a' is not a hostfile: want a list of hosts, or a mapping with `hosts:`"],
    ),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_bad_file(write: Write, text: str, said: list[str]) -> None:
    assert problems(write(text)) == [f"hosts.yaml{line}" for line in said]


def test_many_values_without_aliases_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_document, "MOST_NODES", 10_000)  # 100,000 take seconds to be read
    assert problems(write("- a\n" * 10_001)) == [
        "hosts.yaml:10000:3: the document has more than 10,000 values, its aliases expanded"
    ]


CONTENT = {
    "not UTF-8": (b"- a\n- \xc3\xa9\xff\n", ":2:4: the byte 0xff is not UTF-8; save the file as UTF-8"),
    "UTF-16": ("- a\n".encode("utf-16"), ": is in UTF-16; save it as UTF-8"),
    "binary": (b"\x7fELF\0\0", ": is a binary file; a hostfile is text"),
    "large": (b"#" * (4 * 1024**2 + 1), ": is larger than 4 MiB; is it a hostfile?"),
}


@pytest.mark.parametrize(("content", "said"), CONTENT.values(), ids=CONTENT)
def test_bad_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts.yaml").write_bytes(content)
    assert problems("hosts.yaml") == [f"hosts.yaml{said}"]


def test_directory_and_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpu01").mkdir()
    assert problems("gpu01") == ["gpu01: is a directory"]
    for missing in (
        "no.yaml",
        "a/b",
        "hosts",
        "myhostfile",
        "hostfile.txt",
        "~/no-such-file",
        "node_list",
        "./x",
        "hosts.mpi",
        "cluster.toml",
        "lab.ini",
        "hostfile.openmpi",
    ):
        assert problems(missing) == [f"{missing}: no such file"]


def test_unreadable_file(write: Write) -> None:
    Path(write("- a")).chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        assert problems("hosts.yaml") == ["hosts.yaml: may not be read"]
    finally:
        os.seteuid(user)


def test_identity_file_is_relative_to_the_hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = keys_at(tmp_path / "home/me", "b")
    monkeypatch.setenv("HOME", str(home))
    keys_at(tmp_path, "a")
    path = tmp_path / "hosts.yaml"
    path.write_text("- {name: a, identity_file: .ssh/a}\n- {name: b, identity_file: ~/.ssh/b}\n")
    files = [host.identity_file for host in load(str(path)).hosts]
    assert files == [str(tmp_path / ".ssh/a"), str(home / ".ssh/b")]


def keys_at(home: Path, *names: str) -> Path:
    """A home with private keys, as far as a hostfile is concerned."""
    (home / ".ssh").mkdir(parents=True)
    for name in names:
        (home / ".ssh" / name).touch()
    return home


def test_an_identity_file_that_is_not_there_is_said_once(write: Write, tmp_path: Path) -> None:
    path = write(
        "defaults: {identity_file: keys/a}\n"
        "hosts: ['n[1-3]', {name: b, identity_file: '~/no/key'}, {name: c, connection: local},\n"
        "  {name: d, identity_file: 'keys/%h'}, {name: e, identity_file: /}]\n"
    )
    there = "identity_file: there is no file"
    assert problems(path) == [
        f"hosts.yaml:1:27: {there} '{tmp_path}/keys/a' on this machine",
        f"hosts.yaml:2:44: {there} '{Path('~/no/key').expanduser()}' on this machine",
        f"hosts.yaml:3:65: {there} '/' on this machine",
    ]


def test_shipped_hostfiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(keys_at(tmp_path, "id_ed25519")))
    local = load(str(HOSTFILES / "local.yaml"))
    assert local.hosts == tuple(host(f"local{i}", connection="local", gpus=0) for i in range(1, 5))
    small = HOSTFILES / "small.yaml"
    assert len(load(str(small)).hosts) == 4
    assert len(small.read_text().splitlines()) == 6
    cluster = load(str(HOSTFILES / "cluster.yaml"))
    assert (
        fold(host.name for host in cluster.hosts)
        == "gpu[01-08].lab,fat[1-2],vm[1-5],boxed,old,storage,vault,here"
    )
    assert fold(host.name for host in match("zone=a", cluster)) == "vm[1-4]"


def test_the_annotated_hostfile_shows_every_key() -> None:
    def keys(data: object) -> set[str]:
        if isinstance(data, dict):
            return {*data}.union(*map(keys, data.values()))
        return set().union(*map(keys, data)) if isinstance(data, list) else set()

    shown = keys(yaml.safe_load((HOSTFILES / "cluster.yaml").read_text()))
    assert {"defaults", "hosts", "group", "name", *Settings.model_fields} <= shown


def test_json_schema_describes_every_key() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert {"$ref": "#/$defs/Document"} in schema["oneOf"]
    for name in ("Settings", "HostSettings", "GroupSettings"):
        model = schema["$defs"][name]
        assert model["additionalProperties"] is False
        assert all("description" in key for key in model["properties"].values())
        assert not any("default" in key for key in model["properties"].values())
    assert schema["$defs"]["GroupSettings"]["required"] == ["group", "hosts"]
    assert schema["$defs"]["Settings"].get("required") is None


# Text that is likely to get past the first hurdle: the words and the signs of a hostfile.
words = st.sampled_from(
    [
        *Settings.model_fields,
        "hosts",
        "defaults",
        "name",
        "group",
        "a",
        "gpu[1-2]",
        "22",
        "yes",
        "~",
        "&x",
        "*x",
        "<<",
        "!!int",
        "''",
    ]
)
signs = st.sampled_from(
    [": ", "\n", "\n- ", "\n  - ", "\n  ", "- ", "[", "]", "{", "}", ", ", ":", "#", "\t", "|\n", "@"]
)
texts = st.one_of(st.text(), st.lists(words | signs).map("".join))


@given(texts)
@example('"\\UFFFFFFFF"')
@example("%YAML 1.1\n--- !<")
@example("? {a: b}\n: c")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_bytes(text.encode())
    for source in (str(path), text):
        try:
            assert load(source).hosts
        except HostfileError as error:
            assert error.problems


@given(st.binary())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_bytes(content)
    try:
        assert load(str(path)).hosts
    except HostfileError as error:
        assert error.problems
