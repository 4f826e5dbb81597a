"""What a user may do in a namespace, as the cluster says before anything is made there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tflaunch.engines.kubectl import APPLY, Kubectl, KubectlFailed, error_of
from tflaunch.protocol.errors import ConnectError

# What is done in a namespace: (API group, resource, verbs).
RIGHTS = (
    ("batch", "jobs", ("create", "get", "list", "watch", "delete")),
    ("", "pods", ("get", "list")),
    ("", "pods/exec", ("create",)),
    ("", "events", ("list",)),
)
GANGS = "scheduling.k8s.io"  # the API group of pod groups


class Rights:
    """What the user may do in the namespace of a `kubectl`.  Raises ConnectError where the cluster does not answer."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._namespace = kubectl.namespace
        self._rules: Sequence[Mapping[str, Any]] | None = None  # None: the cluster cannot tell all of them
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": kubectl.namespace},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        try:
            said = json.loads(kubectl.ask("create", "--raw", path, "-f", "-", text=json.dumps(review)))
            status = said["status"]
            if not status.get("incomplete"):
                self._rules = [dict(rule) for rule in status["resourceRules"]]
        except (ValueError, KeyError, TypeError):
            return
        except KubectlFailed as refused:
            raise error_of(refused, "the cluster cannot be asked") from None

    def has(self, group: str, resource: str, verb: str) -> bool | None:
        """Whether the user may do that; None where nobody can tell."""
        if self._rules is None:
            return None
        below = f"*/{resource.partition('/')[2]}"
        return any(
            {verb, "*"} & set(rule.get("verbs") or ())
            and {group, "*"} & set(rule.get("apiGroups") or ())
            and {resource, "*", below} & set(rule.get("resources") or ())
            and not rule.get("resourceNames")
            for rule in self._rules
        )

    def check(self) -> None:
        """Raise ConnectError with what of RIGHTS the user lacks, as far as the cluster tells."""
        lacking = [
            f"{verb} {resource}"
            for group, resource, verbs in RIGHTS
            for verb in verbs
            if self.has(group, resource, verb) is False
        ]
        if lacking:
            raise ConnectError(
                f"kubernetes: you lack the right to {', '.join(lacking)} in the namespace {self._namespace}",
                APPLY,
            )

    def may_make_gangs(self) -> bool:
        """Whether the user is known to have the right to make pod groups."""
        return bool(self.has(GANGS, "podgroups", "create"))


def places_gangs(kubectl: Kubectl) -> bool:
    """Whether the cluster places the pods of a pod group all together, or none of them."""
    try:
        found = json.loads(kubectl.ask("get", "--raw", f"/apis/{GANGS}/v1beta1"))
        return any(each["name"] == "podgroups" for each in found["resources"])
    except (KubectlFailed, ValueError, KeyError, TypeError):
        return False
