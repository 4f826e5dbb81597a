"""The API server of a Kubernetes cluster, by the user's own kubectl: with its contexts, its logins and its proxies."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tflaunch.engines.client_command import ClientFailed, answer
from tflaunch.protocol.errors import ConnectError, TflaunchError

TIMEOUT_S = 30.0  # for an answer
REQUEST_S = 20  # for one request of it
SAID = 500  # characters of what kubectl says
INSIDE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # of a pod that runs tflaunch
_FORBIDDEN = re.compile(
    r'is forbidden: User "(?P<user>[^"]{1,200})" cannot (?P<verb>\w{1,20}) resource "(?P<resource>[^"]{1,100})"'
    r'(?: in API group "(?P<group>[^"]{0,100})")?(?: in the namespace "(?P<namespace>[^"]{1,100})")?'
)


APPLY = "docs/kubernetes.md has a role with all rights that tflaunch needs; who runs the cluster can apply it"


class KubectlFailed(ClientFailed):
    """kubectl has failed, with these words of it."""


@dataclass(frozen=True)
class Kubectl:
    """A namespace of a cluster."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""  # $KUBECONFIG of whoever took the slots

    def words(self, *words: str) -> list[str]:
        """The command line."""
        flags = [f"--context={self.context}"] if self.context else []
        flags += [f"--namespace={self.namespace}"] if self.namespace else []
        env = ["env", f"KUBECONFIG={self.kubeconfig}"] if self.kubeconfig else []
        return [*env, "kubectl", *flags, *words]

    def run(self, *words: str, text: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """What kubectl prints.  Raises KubectlFailed where it fails, ConnectError where there is none."""
        if shutil.which("kubectl") is None:
            raise ConnectError(
                "kubernetes: there is no kubectl here",
                "install it, and have it reach your cluster: kubectl get pods",
            )
        asked = self.words(*words)
        return answer(asked, KubectlFailed, said, name=f"kubectl {words[0]}", text=text, timeout_s=timeout_s)

    def ask(self, *words: str, text: str = "") -> str:
        """The same for one request of the API server."""
        # With that option kubectl does not look for the service account of the pod that it runs in.
        is_pods_own = not self.context and not self.kubeconfig and INSIDE.exists()
        limit = () if is_pods_own else (f"--request-timeout={REQUEST_S}s",)
        return self.run(*words, *limit, text=text)

    def objects(self, kinds: str, *words: str) -> list[dict[str, Any]]:
        """The objects of these kinds.  Raises KubectlFailed, ConnectError."""
        try:
            found = json.loads(self.ask("get", kinds, "-o", "json", *words))
            return [dict(each) for each in found["items"]]
        except (ValueError, KeyError, TypeError):
            raise KubectlFailed(f"kubectl get {kinds} has printed no list") from None

    def exec_words(self, pod: str, container: str, *command: str, stdin: bool = True) -> list[str]:
        """The command line that runs a command in a pod."""
        flags = ["-i"] if stdin else []
        return self.words("exec", *flags, pod, "-c", container, "--", *command)


def here(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Kubectl:
    """The namespace that these settings and the user's kubeconfig mean, in words that hold in any terminal.

    Raises ConnectError.
    """
    paths = [each for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    kubeconfig = os.pathsep.join(str(Path(each).absolute()) for each in paths)
    context, namespace = settings.get("context", ""), settings.get("namespace", "")
    asked = Kubectl(context=context, kubeconfig=kubeconfig)
    try:
        config = json.loads(asked.run("config", "view", "--minify", "-o", "json"))
    except KubectlFailed as error:
        if INSIDE.exists() and not context:
            return Kubectl(namespace or INSIDE.read_text("utf-8").strip(), "", "")
        raise ConnectError(
            f"kubernetes: {error}", "which cluster? kubectl config get-contexts lists those that you have"
        ) from None
    except ValueError:
        config = {}
    found = [each.get("context") or {} for each in config.get("contexts") or ()]
    if not found and not context and INSIDE.exists():
        return Kubectl(namespace or INSIDE.read_text("utf-8").strip())
    namespace = namespace or str((found or [{}])[0].get("namespace") or "default")
    return Kubectl(namespace, context or str(config.get("current-context") or ""), kubeconfig)


def whoami(kubectl: Kubectl) -> str:
    """The user, as the cluster knows them, in letters that a label may have."""
    try:
        said = json.loads(kubectl.ask("auth", "whoami", "-o", "json"))
        name = str(said["status"]["userInfo"]["username"])
    except (KubectlFailed, ValueError, KeyError, TypeError):  # a cluster before 1.28
        name = ""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def error_of(refused: KubectlFailed, doing: str) -> TflaunchError:
    """What has gone wrong while `doing` something, for the user."""
    text = str(refused)
    if lacks := _FORBIDDEN.search(text):
        what = f"{lacks['verb']} {lacks['resource']}"
        group = f" of {lacks['group']}" if lacks["group"] else ""
        space = f" in the namespace {lacks['namespace']}" if lacks["namespace"] else ""
        return ConnectError(
            f"kubernetes: {lacks['user']} lacks the right to {what}{group}{space}",
            APPLY,
        )
    return ConnectError(f"kubernetes: {doing}: {text}", "does kubectl get pods work here?")


def said(stderr: str) -> str:
    """The line that says why, of what kubectl has written to stderr."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"[EWI]\d{4} |Warning: ", line)] or lines
    return " ".join(lines)[-SAID:] if lines else ""
