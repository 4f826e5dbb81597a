"""Secrets in a code directory: which files are secrets, by their names or content, and what they hold."""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

_SEARCHED_BYTES = 64 * 1024  # no file of keys is larger; of others only the beginning is looked at
_BEGINNING_BYTES = 4096


class Secret(NamedTuple):
    """A file or directory that is left out, and why."""

    path: str  # relative to the code directory; a directory has a slash at its end
    why: str


class _Known(NamedTuple):
    """A row of the table."""

    name: str  # the last parts of its path, each a glob; a directory has a slash at its end
    why: str
    holds: str = ""  # a regular expression that its content must match, too


_TABLE = (
    _Known(".ssh/", "SSH keys"),
    _Known("id_rsa", "an SSH key"),
    _Known("id_dsa", "an SSH key"),
    _Known("id_ecdsa", "an SSH key"),
    _Known("id_ed25519", "an SSH key"),
    _Known("id_ecdsa_sk", "an SSH key"),
    _Known("id_ed25519_sk", "an SSH key"),
    _Known("*.ppk", "a PuTTY key"),
    _Known(".gnupg/", "GnuPG keys"),
    _Known(".password-store/", "passwords"),
    _Known("*.kdbx", "a KeePass database"),
    _Known("*.p12", "a key with its certificate"),
    _Known("*.pfx", "a key with its certificate"),
    _Known("*.jks", "a Java key store"),
    _Known("*.keystore", "a key store"),
    _Known(".local/share/keyrings/", "GNOME's key ring"),
    _Known(".env", "variables, mostly passwords and tokens"),
    _Known(".env.*", "variables, mostly passwords and tokens"),
    _Known(".envrc", "variables, mostly passwords and tokens", r"(?m)^\s*export\b"),
    _Known(".netrc", "passwords of other machines"),
    _Known("_netrc", "passwords of other machines"),
    _Known(".wandb/netrc", "a key of Weights & Biases"),
    _Known(".git-credentials", "passwords of git"),
    _Known(".config/git/credentials", "passwords of git"),
    _Known(".config/gh/", "a token of GitHub"),
    _Known(".config/glab-cli/", "a token of GitLab"),
    _Known(".aws/", "keys of AWS"),
    _Known(".s3cfg", "keys of S3"),
    _Known(".boto", "keys of Google Cloud or AWS"),
    _Known(".config/gcloud/", "keys of Google Cloud"),
    _Known("application_default_credentials.json", "keys of Google Cloud"),
    _Known(".azure/", "keys of Azure"),
    _Known(".oci/", "keys of Oracle Cloud"),
    _Known(".config/doctl/", "a token of DigitalOcean"),
    _Known(".config/rclone/", "keys of cloud storage"),
    _Known("rclone.conf", "keys of cloud storage"),
    _Known(".databrickscfg", "a token of Databricks"),
    _Known(".terraform.d/credentials.tfrc.json", "tokens of Terraform"),
    _Known(".vault-token", "a token of Vault"),
    _Known(".kube/", "keys of Kubernetes"),
    _Known(".docker/config.json", "passwords of image registries"),
    _Known(".dockercfg", "passwords of image registries"),
    _Known("containers/auth.json", "passwords of image registries"),
    _Known(".pypirc", "passwords of package indexes"),
    _Known(".npmrc", "a token of npm", r"(?m)^[^#;\n]*(_authToken|_auth|_password)\s*="),
    _Known(".yarnrc.yml", "a token of npm", r"npmAuth(Token|Ident)\s*:"),
    _Known(".cargo/credentials", "a token of crates.io"),
    _Known(".cargo/credentials.toml", "a token of crates.io"),
    _Known(".gem/credentials", "a key of RubyGems"),
    _Known("kaggle.json", "a key of Kaggle"),
    _Known(".kaggle/", "a key of Kaggle"),
    _Known(".huggingface/", "a token of Hugging Face"),
    _Known("huggingface/token", "a token of Hugging Face"),
    _Known("huggingface/stored_tokens", "tokens of Hugging Face"),
    _Known(".comet.config", "a key of Comet", r"(?m)^\s*api_key\s*="),
    _Known(".streamlit/secrets.toml", "secrets of Streamlit"),
    _Known(".pgpass", "passwords of PostgreSQL"),
    _Known(".my.cnf", "passwords of MySQL"),
    _Known(".mylogin.cnf", "passwords of MySQL"),
    _Known(".htpasswd", "passwords of a web server"),
    _Known(".bash_history", "commands, some with passwords"),
    _Known(".zsh_history", "commands, some with passwords"),
    _Known(".python_history", "commands, some with passwords"),
)
_HARMLESS = (".example", ".sample", ".template", ".dist", ".tmpl", ".pub")

# The first line of a private key.
_FIRST_LINES = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:(?P<key>-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    rb"|---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----)"
    rb"|(?P<putty>PuTTY-User-Key-File-)"
    rb"|(?:#[^\n]*\n)*(?P<age>AGE-SECRET-KEY-))"
)
# Or a later line, where certificates and notes may stand before the key.
_LATER_LINE = re.compile(rb"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----", re.MULTILINE)
_KEY_FILES = ("", ".pem", ".key", ".crt", ".cer", ".cert", ".p8", ".pk8", ".asc")
_JSON = (
    (re.compile(rb'"type"\s*:\s*"service_account"'), rb'"private_key"', "the key of a service account"),
    (re.compile(rb'"type"\s*:\s*"authorized_user"'), rb'"refresh_token"', "keys of Google Cloud"),
)


_BY_LAST_PART: dict[str, list[_Known]] = {}
for _row in _TABLE:
    _BY_LAST_PART.setdefault(_row.name.rstrip("/").rpartition("/")[2], []).append(_row)
_WITH_CONTENT = {row.name for row in _TABLE if row.holds}
_BEGINNINGS = tuple(name[:-1] for name in _BY_LAST_PART if name.endswith("*"))
_ENDS = tuple(name[1:] for name in _BY_LAST_PART if name.startswith("*"))


def _rows(path: str, is_directory: bool) -> list[_Known]:
    last = path[path.rfind("/") + 1 :]
    if last not in _BY_LAST_PART and not last.startswith(_BEGINNINGS) and not last.endswith(_ENDS):
        return []  # nearly all paths
    if last.endswith(_HARMLESS):
        return []
    below = f"/{path}{'/' * is_directory}"
    return [
        row
        for name, rows in _BY_LAST_PART.items()
        if fnmatch.fnmatchcase(last, name)
        for row in rows
        if row.name.endswith("/") == is_directory and ("*" in name or below.endswith(f"/{row.name}"))
    ]


def by_name(path: str, is_directory: bool) -> str:
    """Why that path is a secret, whatever is in it; "" if it is not."""
    return next((row.why for row in _rows(path, is_directory) if not row.holds), "")


def in_secret_directory(path: str) -> str:
    """Why everything in a directory of that path is a secret; "" if it is not."""
    parts = path.strip("/").split("/")
    whys = (by_name("/".join(parts[:depth]), True) for depth in range(1, len(parts) + 1))
    return next(filter(None, whys), "")


def by_content(path: str, content: bytes) -> str:
    """Why a file of that path with that content is a secret; "" if it is not."""
    if found := _FIRST_LINES.match(content, 0, _BEGINNING_BYTES):
        return {"putty": "a PuTTY key", "age": "an age key"}.get(found.lastgroup or "", "a private key")
    if len(content) > _SEARCHED_BYTES:
        return ""
    if b"PRIVATE KEY" in content and _suffix(path) in _KEY_FILES and _LATER_LINE.search(content):
        return "a private key"
    if content[:1] in b"{ \t\r\n":
        for kind, key, why in _JSON:
            if key in content and kind.search(content):
                return why
    for row in _rows(path, False) if path[path.rfind("/") + 1 :] in _WITH_CONTENT else ():
        if row.holds and re.search(row.holds, content.decode("utf-8", "replace")):
            return row.why
    return ""


def _suffix(path: str) -> str:
    stem, dot, suffix = path[path.rfind("/") + 1 :].rpartition(".")
    return f".{suffix.lower()}" if dot and stem else ""
