"""Secrets in the user's code stay here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.code import KEY, files, grow
from tflaunch.code.bundle import bundle
from tflaunch.protocol.errors import EXIT_USAGE, UsageError

SERVICE = '{\n "type": "service_account",\n "private_key": "-----BEGIN PRIVATE KEY-----\\n"}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".ssh/config", ""),
        (".aws/credentials", ""),
        ("deep/in/.gnupg/pubring.kbx", ""),
        (".kube/config", ""),
        (".netrc", ""),
        (".docker/config.json", "{}"),
        (".git-credentials", ""),
        (".pypirc", ""),
        (".env", "A=1"),
        ("conf/.env.production", "A=1"),
        (".config/gcloud/credentials.db", ""),
        (".azure/accessTokens.json", ""),
        ("kaggle.json", "{}"),
        (".huggingface/token", ""),
        (".cache/huggingface/token", ""),
        ("deploy", KEY),
        ("conf/key.txt", "\n" + KEY),
        ("a.pem", KEY.replace("OPENSSH", "RSA")),
        ("a.key", "Bag Attributes\n    friendlyName: me\n" + KEY.replace("OPENSSH ", "")),
        (
            "both.pem",
            "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n" + KEY.replace("OPENSSH", "EC"),
        ),
        ("gpg.asc", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n"),
        ("windows.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\r\n"),
        ("mine.ppk", ""),
        ("mine.txt", "PuTTY-User-Key-File-3: ssh-ed25519\n"),
        ("age.txt", "# created: 2024\n# public key: age1\nAGE-SECRET-KEY-1XX\n"),
        ("gcp.json", SERVICE),
        (
            "adc",
            SERVICE.replace("service_account", "authorized_user").replace("private_key", "refresh_token"),
        ),
        (".npmrc", "//registry.npmjs.org/:_authToken=x\n"),
        (".envrc", "export A=1\n"),
    ],
)
def test_a_secret_is_named_and_stays_here_unless_it_is_asked_for(
    tmp_path: Path, name: str, text: str
) -> None:
    grow(tmp_path, {"trainer.py": "", name: text})
    packed = bundle(tmp_path)
    assert files(packed) == {"trainer.py"}
    [secret] = packed.secrets
    assert f"{name}/".startswith(secret.path.rstrip("/") + "/")
    assert secret.why
    assert files(bundle(tmp_path, ship=[name])) == {"trainer.py", name}
    assert files(bundle(tmp_path, ship=[str(tmp_path / name)])) == {"trainer.py", name}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env.example", "A="),
        (".env.sample", "A="),
        (".env.template", "A="),
        ("docker/config.json", "{}"),
        ("id_rsa.pub", "ssh-rsa AAAA"),
        ("ca.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("test_keys.py", f'KEY = """\n{KEY}"""\n'),
        ("key.py", "# -----BEGIN RSA PRIVATE KEY-----\n"),
        ("types.json", '{"type": "service_account"}'),
        (".npmrc", "registry=https://example.org\n"),
        (".config/app.json", "{}"),
        ("credentials.py", ""),
        ("huggingface/model.py", ""),
        (".envs/a.py", ""),
    ],
)
def test_what_only_looks_like_a_secret_is_shipped(tmp_path: Path, name: str, text: str) -> None:
    grow(tmp_path, {name: text})
    assert (files(bundle(tmp_path)), bundle(tmp_path).secrets) == ({name}, ())


def test_a_directory_that_is_asked_for_comes_without_its_secrets(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            ".gitignore": "out/\n",
            "out/a": "",
            "out/.env": "",
            "out/deep/b": "",
            ".ssh/config": "",
            ".ssh/k": KEY,
        },
    )
    packed = bundle(tmp_path, ship=["out", ".ssh", "out/deep/"])
    assert files(packed) == {".gitignore", "out/a", "out/deep/b", ".ssh/config"}
    assert {secret.path for secret in packed.secrets} == {"out/.env", ".ssh/k"}
    assert files(bundle(tmp_path, ship=["out/deep/b"])) == {".gitignore", "out/deep/b"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "--ship nowhere: there is no such file in"),
        ("../code2/x", "--ship ../code2/x: it is not in"),
        ("/etc/passwd", "--ship /etc/passwd: it is not in"),
        (".", "--ship .: that is all of"),
        ("", "--ship : that is all of"),
        ("sub/..", "that is all of"),
        ("out/x", "--ship out/x: a link leads out of"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, path: str, message: str) -> None:
    code = grow(tmp_path, {"code/trainer.py": "", "code/sub/": "", "code2/x": ""}) / "code"
    (code / "out").symlink_to("../code2")
    with pytest.raises(UsageError) as raised:
        bundle(code, ship=[path])
    assert message in raised.value.message
    assert raised.value.exit_code == EXIT_USAGE
