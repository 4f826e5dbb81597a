"""A real Kubernetes: its control plane on one host of a bed; each other one is a node with containerd and a kubelet.

    cluster = KubernetesCluster(bed, directory)      # one for each module: it takes some 20 s to start
    space = cluster.space()                          # a namespace, with a kubeconfig for it
    space.do("get", "pods"); space.list("pods,jobs"); cluster.do("cordon", "host2")

Every process is one of a host's, and ends with it.  The binary is one for all of Kubernetes, by the name that it is
started with: scripts/engines kubernetes.  The images are made of this machine's own Python, for there is no registry.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.bed import Bed, FarLauncher
from tests.support.bed.machines import BedHost
from tests.support.launcher import HERE, Inside, Launcher, Process, processes
from tests.support.patience import until

KUBERNETES_S = 240.0  # for a control plane that starts beside others
VERSION = "1.37.2"
BINARY = f"hyperkube-{VERSION}"
VARIABLE = "TFLAUNCH_TEST_KUBERNETES"
POINTED = os.environ.get(
    "TFLAUNCH_TEST_KUBECONFIG", ""
)  # of a cluster that there is: kind, minikube, a real one
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOOLS = ("containerd", "ctr", "runc", "kubectl", "zstd")
PATH = f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"  # which may have kubectl by its wheel
PLUGINS = Path("/usr/lib/cni")
OWN_IMAGE = "docker.io/local/python:1"
# Any with a python3 and a /bin/sh; one that the cluster can pull, if that is not the tests' own.
IMAGE = os.environ.get("TFLAUNCH_TEST_IMAGE") or (
    "docker.io/library/python:3.12-slim" if POINTED else OWN_IMAGE
)
PAUSE = "docker.io/local/pause:1"
GROUPS = Path("/sys/fs/cgroup")
PYTHON = Path("/usr/bin/python3")
# By these, the scheduler places pods of one PodGroup all together.
GATES = ("--feature-gates=GenericWorkload=true",)
GANGS = ("--runtime-config=scheduling.k8s.io/v1beta1=true",)
GRACE_S = 20  # from the last word of a kubelet until its node counts as not ready


def cache() -> Path:
    """Where scripts/engines keeps the binary."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tflaunch-tests/kubernetes"


def binary() -> Path | None:
    """The binary, or what it is packed in; None where there is none."""
    places = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    found = [place / f"{BINARY}{end}" for place in (*places, cache()) for end in ("", ".zst")]
    return next((each for each in found if each.is_file()), None)


def missing() -> str:
    """Why there can be no Kubernetes here; "" when there can."""
    if POINTED:
        there = Path(POINTED).is_file() and shutil.which("kubectl", path=PATH)
        return "" if there else f"TFLAUNCH_TEST_KUBECONFIG={POINTED}: no such file, or no kubectl here"
    lacking = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    if not (PLUGINS / "bridge").exists():
        lacking.append("the CNI plugins")
    if lacking or binary() is None:
        lacking += [] if binary() else [f"the binary of Kubernetes {VERSION}"]
        return f"no Kubernetes here, for want of {', '.join(lacking)}: scripts/engines kubernetes"
    return ""


class KubernetesCluster:
    """One for each bed: the first host has the control plane, each other one is a node."""

    def __init__(self, bed: Bed, directory: Path, *, gates: bool = False) -> None:
        self.bed, self.directory = bed, directory
        self.control, *self.nodes = bed.hosts
        self._gates = GATES if gates else ()
        self._started: list[subprocess.Popen[bytes]] = []
        self._kubelets: dict[str, subprocess.Popen[bytes]] = {}
        self.group = f"tflaunch-k8s-{os.getpid()}-{secrets.token_hex(2)}"
        directory.mkdir(parents=True, exist_ok=True)
        _remove_old_groups()
        self._programs()
        self.kubeconfig = self._control()
        images = directory / "images.tar"
        make_images(images)
        for node in self.nodes:
            self._node(node, images)
        for node in self.nodes:
            self._kubelet(node)
        self.wait_until_ready()

    def close(self) -> None:
        """End the cluster; the bed ends the hosts."""
        for process in self._started:
            process.kill()
            process.wait()
        for node in self.nodes:
            for pid in _others(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            until(lambda node=node: not _others(node), f"the end of all on {node.name}")  # type: ignore[misc]
        _remove_groups(self.group)

    # -- what a user does

    def typed_at(self, cwd: Path) -> Inside:
        """Where its users type their commands."""
        launcher = self.bed.launcher
        return Inside(launcher.inside(cwd=cwd), launcher.namespace_files(), cwd)

    def do(self, *words: str, text: str = "") -> str:
        """Run kubectl as the administrator; returns what it printed, fails when it fails."""
        return _kubectl(self, self.kubeconfig, words, text)

    def wait_until_ready(self) -> None:
        """Until every node takes pods."""

        def ready() -> bool:
            with contextlib.suppress(AssertionError):
                nodes = json.loads(self.do("get", "nodes", "-o", "json"))["items"]
                return sum(_condition(each, "Ready") == "True" for each in nodes) == len(self.nodes)
            return False

        until(ready, f"the nodes are ready; see {self.directory}", KUBERNETES_S)

    def space(self, *, security: str = "") -> Namespace:
        """A new namespace."""
        return Namespace(self, f"test-{secrets.token_hex(3)}", security)

    def give(self, node: BedHost, resource: str, count: int) -> None:
        """Let a node have so many of an extended resource."""
        path = f"/status/capacity/{resource.replace('~', '~0').replace('/', '~1')}"
        patch = json.dumps([{"op": "add", "path": path, "value": str(count)}])
        self.do("patch", "node", node.name, "--subresource=status", "--type=json", "-p", patch)

        def given() -> bool:
            status = json.loads(self.do("get", "node", node.name, "-o", "json"))["status"]
            return bool(status["allocatable"].get(resource) == str(count))

        until(given, f"{node.name} has {resource}", KUBERNETES_S)

    def stop_kubelet(self, node: BedHost) -> None:
        """Kill the kubelet with -9: the pods on its node run on, and kubectl exec does not reach them."""
        for each in node.processes():
            if each.words[0].rpartition("/")[2] == "kubelet":
                each.kill()
        self._kubelets.pop(node.name).wait()  # nsenter, which waits for it

    def start_kubelet(self, node: BedHost, *, wait: bool = True) -> None:
        """Start it again."""
        self._kubelet(node)
        if wait:
            self.wait_until_ready()

    def in_pods(self, node: BedHost) -> list[Process]:
        """What runs in the pods of a node."""
        found = []
        for each in processes():
            with contextlib.suppress(OSError):
                if (
                    f"/{self.group}/{node.name}/" in Path(f"/proc/{each.pid}/cgroup").read_text()
                    and each.words
                ):
                    found.append(each)
        return found

    # -- the parts

    def _programs(self) -> None:
        found = binary()
        assert found is not None
        self.programs = self.directory / "programs"
        self.programs.mkdir()
        target = self.programs / "hyperkube"
        if found.suffix == ".zst":
            subprocess.run(["zstd", "-dq", str(found), "-o", str(target)], check=True)
        else:  # a host sees this directory, and not every other
            shutil.copyfile(found, target)
        target.chmod(0o755)
        for name in PROGRAMS:
            (self.programs / name).symlink_to("hyperkube")

    def _start(self, host: BedHost, name: str, *words: str) -> subprocess.Popen[bytes]:
        env = {"PATH": f"{self.programs}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home/root"}
        with (self.directory / f"{host.name}-{name}.log").open("ab") as log:
            process = subprocess.Popen(
                host.inside(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )
        self._started.append(process)
        return process

    def _control(self) -> Path:
        here, address = self.directory, self.control.address
        keys = here / "keys"
        keys.mkdir(mode=0o700)
        _make_key(keys / "sa.key")
        self.tokens = {"admin": secrets.token_hex(16), "manager": secrets.token_hex(16)}
        self.tokens |= {"scheduler": secrets.token_hex(16), "stranger": secrets.token_hex(16)}
        rows = [
            f"{self.tokens['admin']},admin,admin,system:masters",
            f"{self.tokens['manager']},system:kube-controller-manager,manager,system:masters",
            f"{self.tokens['scheduler']},system:kube-scheduler,scheduler,system:masters",
            f"{self.tokens['stranger']},stranger,stranger",
        ]
        for node in self.nodes:
            self.tokens[node.name] = secrets.token_hex(16)
            rows.append(f"{self.tokens[node.name]},system:node:{node.name},{node.name},system:nodes")
        (keys / "tokens.csv").write_text("".join(f"{row}\n" for row in rows))
        self._start(
            self.control,
            "etcd",
            "etcd",
            *("--data-dir", str(here / "etcd"), "--unsafe-no-fsync", "--log-level", "warn"),
            *(
                "--listen-client-urls",
                "http://127.0.0.1:2379",
                "--advertise-client-urls",
                "http://127.0.0.1:2379",
            ),
            *("--listen-peer-urls", "http://127.0.0.1:2380"),
        )
        self._start(
            self.control,
            "apiserver",
            "kube-apiserver",
            *("--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=10.96.0.0/16"),
            *(f"--bind-address={address}", f"--advertise-address={address}", f"--cert-dir={keys}"),
            *(f"--token-auth-file={keys / 'tokens.csv'}", "--authorization-mode=Node,RBAC"),
            "--service-account-issuer=https://kubernetes.test",
            f"--service-account-signing-key-file={keys / 'sa.key'}",
            f"--service-account-key-file={keys / 'sa.key'}",
            *("--kubelet-preferred-address-types=InternalIP", "--endpoint-reconciler-type=none"),
            *("--profiling=false", *self._gates, *(GANGS if self._gates else ())),
        )
        admin = self.config("admin")

        def answers() -> bool:
            with contextlib.suppress(AssertionError):
                return _kubectl(self, admin, ("get", "--raw", "/readyz"), "") == "ok"
            return False

        until(answers, f"the API server; see {here}", KUBERNETES_S)
        self._start(
            self.control,
            "scheduler",
            "kube-scheduler",
            *(f"--kubeconfig={self.config('scheduler')}", "--leader-elect=false", "--secure-port=0"),
            *self._gates,
        )
        self._start(
            self.control,
            "manager",
            "kube-controller-manager",
            *(f"--kubeconfig={self.config('manager')}", "--leader-elect=false", "--secure-port=0"),
            *self._gates,
            f"--service-account-private-key-file={keys / 'sa.key'}",
            f"--root-ca-file={keys / 'apiserver.crt'}",
            *(f"--node-monitor-grace-period={GRACE_S}s", "--node-monitor-period=2s"),
        )
        return admin

    def config(self, user: str, namespace: str = "default") -> Path:
        """A kubeconfig for that user."""
        path = self.directory / f"{user}-{namespace}.kubeconfig"
        server = {"server": f"https://{self.control.address}:6443", "insecure-skip-tls-verify": True}
        context = {"cluster": "test", "user": user, "namespace": namespace}
        said = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.touch(0o600)
        path.write_text(yaml.safe_dump(said))
        return path

    def _node(self, node: BedHost, images: Path) -> None:
        place, number = self.directory / node.name, self.nodes.index(node)
        for each in ("cni", "net", "containerd", "kubelet", "logs"):
            (place / each).mkdir(parents=True)
        for group in _controllers():
            (group / self.group / node.name).mkdir(parents=True)
        for each in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(OSError):  # of the first generation: a new group has none
                said = (GROUPS / "cpuset" / each).read_text()
                (GROUPS / "cpuset" / self.group / each).write_text(said)
                (GROUPS / "cpuset" / self.group / node.name / each).write_text(said)
        network: dict[str, Any] = {
            "type": "host-local",
            "dataDir": str(place / "net"),
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        network["ranges"] = [[{"subnet": f"10.78.{number}.0/24"}]]
        plugin = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": network}
        (place / "cni/10-bridge.conflist").write_text(
            json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]})
        )
        (place / "containerd.toml").write_text(CONTAINERD.format(place=place, pause=PAUSE, plugins=PLUGINS))
        (place / "kubelet.yaml").write_text(
            yaml.safe_dump({**KUBELET, **self._kubelet_settings(node, place)})
        )
        node.do("mkdir", "-p", "/var/lib/kubelet")
        node.do("mount", "-t", "tmpfs", "tmpfs", "/var/lib/kubelet")
        node.do("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        for other, host in enumerate(self.nodes):
            if host is not node:
                node.do("ip", "route", "add", f"10.78.{other}.0/24", "via", host.address)
        self._start(node, "containerd", "containerd", "-c", str(place / "containerd.toml"))
        ctr = ("ctr", "-a", f"{CONTAINERD_RUN}/containerd.sock", "-n", "k8s.io")
        until(lambda: node.path(f"{CONTAINERD_RUN}/containerd.sock").exists(), "containerd", KUBERNETES_S)
        node.do(*ctr, "images", "import", str(images))

    def _kubelet_settings(self, node: BedHost, place: Path) -> dict[str, Any]:
        return {
            "cgroupRoot": f"/{self.group}/{node.name}",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_RUN}/containerd.sock",
            "address": node.address,
            "podLogsDir": str(place / "logs"),
        }

    def _kubelet(self, node: BedHost) -> None:
        place = self.directory / node.name
        self._kubelets[node.name] = self._start(
            node,
            "kubelet",
            "kubelet",
            *(f"--kubeconfig={self.config(node.name)}", f"--config={place / 'kubelet.yaml'}"),
            *(f"--root-dir={place / 'kubelet'}", f"--cert-dir={place / 'kubelet/pki'}"),
            *(f"--hostname-override={node.name}", f"--node-ip={node.address}"),
        )


class PointedCluster(KubernetesCluster):
    """The cluster to which TFLAUNCH_TEST_KUBECONFIG leads, whose user may do all in it; its nodes are not ours."""

    def __init__(self, directory: Path) -> None:
        self.kubeconfig, self._kept = Path(POINTED), directory
        self.nodes = []

    def close(self) -> None:
        """Leave it: the tests have removed their namespaces."""

    def typed_at(self, cwd: Path) -> Inside:  # noqa: ARG002 - on this machine
        return HERE

    def config(self, user: str, namespace: str = "default") -> Path:
        said = json.loads(self.do("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        for context in said["contexts"]:
            context["context"]["namespace"] = namespace
        if user != "admin":
            for each in said["users"]:
                each["user"]["as"] = user
        path = self._kept / f"{user}-{namespace}.kubeconfig"
        path.touch(0o600)
        path.write_text(yaml.safe_dump(said))
        return path


class Namespace:
    """A namespace of a test's own."""

    def __init__(self, cluster: KubernetesCluster, name: str, security: str = "") -> None:
        self.cluster, self.name = cluster, name
        labels = {"pod-security.kubernetes.io/enforce": security} if security else {}
        self.apply(kind="Namespace", metadata={"name": name, "labels": labels})
        # Pods need the namespace's service account, which comes a moment later.
        until(lambda: "default" in self.do("get", "serviceaccounts", "-o", "name"), "its service account")
        self.kubeconfig = cluster.config("admin", name)

    def do(self, *words: str, text: str = "") -> str:
        """Run kubectl in it."""
        return self.cluster.do("-n", self.name, *words, text=text)

    def apply(self, **document: Any) -> None:
        """Make an object."""
        self.do("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", **document}))

    def objects(self, kinds: str) -> list[dict[str, Any]]:
        """All objects of these kinds."""
        found: list[dict[str, Any]] = json.loads(self.do("get", kinds, "-o", "json"))["items"]
        return found

    def pods(self) -> list[dict[str, Any]]:
        return self.objects("pods")

    def names(self, kinds: str) -> list[str]:
        """The names of all objects of these kinds, but for those that every namespace has."""
        names = [f"{each['kind']}/{each['metadata']['name']}" for each in self.objects(kinds)]
        return [name for name in names if name != "ConfigMap/kube-root-ca.crt"]

    def wait_until_free(self, patience_s: float = KUBERNETES_S) -> None:
        """Until nothing that a run makes is left in it."""
        kinds = "pods,jobs,secrets,configmaps"
        until(lambda: not self.names(kinds), "an empty namespace", patience_s)

    def allow(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Have the kubeconfig be that of a user who may do this alone."""
        group = "rbac.authorization.k8s.io"
        about = {"apiVersion": f"{group}/v1", "metadata": {"name": "tflaunch"}}
        self.apply(kind="Role", rules=list(rules), **about)
        bound = [{"kind": "User", "name": "stranger", "apiGroup": group}]
        role = {"kind": "Role", "name": "tflaunch", "apiGroup": group}
        self.apply(kind="RoleBinding", subjects=bound, roleRef=role, **about)
        self.kubeconfig = self.cluster.config("stranger", self.name)

    def close(self) -> None:
        self.cluster.do("delete", "namespace", self.name, "--wait=false")


class OnKubernetes(FarLauncher):
    """`tflaunch` for a user of a namespace there."""

    def __init__(self, directory: Path, cluster: KubernetesCluster) -> None:
        Launcher.__init__(self, directory)
        self.space = cluster.space()
        if cluster.nodes:
            self.bed = cluster.bed

    def inside(self) -> Inside:
        return self.space.cluster.typed_at(self.code)

    def run_directories(self) -> list[Path]:
        """None that outlives its pod."""
        return []

    def env(self, **more: str) -> dict[str, str]:
        return super().env(**{"KUBECONFIG": str(self.space.kubeconfig), "PATH": PATH, **more})

    def slots(self, sizes: str, *words: str) -> str:
        """The word for so many slots."""
        small = () if any(each.startswith("cpus=") for each in words) else ("cpus=100m",)
        return ",".join([f"k8s:{sizes}", f"image={IMAGE}", "memory=200Mi", *small, *words])

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What of tflaunch runs in pods on the nodes: a sandbox's own process is furniture there."""
        nodes = self.space.cluster.nodes
        found = [
            each for node in nodes for each in self.space.cluster.in_pods(node) if not is_furniture(each)
        ]
        return [each for each in found if run is None or each.env.get("TFLAUNCH_RUN") == run]

    def launchers_kubectl(self) -> list[Process]:
        """The kubectl processes of this user's launchers."""
        mine = [each for each in processes() if each.env.get("HOME") == str(self.home)]
        return [each for each in mine if each.words[0].rpartition("/")[2] == "kubectl"]

    def holders(self) -> list[Process]:
        """The slot holders on all nodes."""
        return [each for each in self.leftovers() if is_holder(each)]


def is_holder(process: Process) -> bool:
    """Whether it is a slot holder."""
    return process.words[:2] == ("python3", "-c") and "zlib" in process.words[2]


def is_furniture(process: Process) -> bool:
    """Whether it is a sandbox's first process, or what starts one."""
    return process.words[0].startswith("runc") or "pause()" in process.words[-1]


def make_images(path: Path) -> None:
    """An archive for `ctr images import`: this machine's Python and /bin/sh as an image, by two names."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for name in (
            "proc",
            "sys",
            "dev",
            "etc",
            "tmp",
            "root",
            "var",
            "var/tmp",
            "usr",
            "usr/bin",
            "usr/lib",
        ):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(info)
        for name in ("bin", "lib", "lib64", "sbin"):
            if Path(f"/{name}").exists():
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, "usr/bin" if "bin" in name else f"usr/{name}"
                tar.addfile(info)
        real = PYTHON.resolve()
        stdlib = Path(f"/usr/lib/{real.name}")
        for target, source in _programs_of(real):
            tar.add(source, target)
        info = tarfile.TarInfo("usr/bin/python3")
        info.type, info.linkname = tarfile.SYMTYPE, real.name
        tar.addfile(info)
        tar.add(stdlib, str(stdlib)[1:], filter=_needed)
        passwd = b"root:x:0:0:root:/root:/bin/sh\n"
        info = tarfile.TarInfo("etc/passwd")
        info.size = len(passwd)
        tar.addfile(info, io.BytesIO(passwd))
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    environment = ["PATH=/usr/bin:/bin", "HOME=/root"]
    waits = ["/usr/bin/python3", "-c", "import signal; signal.signal(15, lambda *_: exit(0)); signal.pause()"]
    config = json.dumps(
        {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": {"Env": environment, "Entrypoint": waits},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    kind = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _blob(f"{kind}.config.v1+json", config),
            "layers": [
                {
                    "mediaType": f"{kind}.layer.v1.tar",
                    "size": layer.stat().st_size,
                    "digest": f"sha256:{digest}",
                }
            ],
        }
    ).encode()
    named = [
        {
            **_blob(f"{kind}.manifest.v1+json", manifest),
            "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "1"},
        }
        for name in (OWN_IMAGE, PAUSE)
    ]
    index = json.dumps({"schemaVersion": 2, "manifests": named}).encode()
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", index)
        for blob in (config, manifest):
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        tar.add(layer, f"blobs/sha256/{digest}")
    layer.unlink()


def _programs_of(python: Path) -> Iterator[tuple[str, str]]:
    """Programs of the image, where they go, and the libraries that they need."""
    libraries: set[str] = set()
    programs = [python, Path("/bin/sh").resolve(), *map(_found, ("sleep", "cat"))]
    modules = [str(each) for each in Path(f"/usr/lib/{python.name}/lib-dynload").glob("*.so")]
    for path in [*map(str, programs), *modules]:
        said = subprocess.run(["ldd", path], check=False, capture_output=True, text=True).stdout
        libraries |= set(re.findall(r"(/\S+) \(0x", said))
    for each in programs:
        yield f"usr/bin/{each.name}", str(each)
    yield "usr/bin/sh", str(Path("/bin/sh").resolve())
    for library in sorted(libraries):
        # /lib is /usr/lib there, too, and /lib64 is /usr/lib64.
        yield re.sub(r"^/(usr/)?", "usr/", library), str(Path(library).resolve())


def _found(name: str) -> Path:
    found = shutil.which(name)
    assert found is not None
    return Path(found)


def _needed(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = r"/(test|idlelib|lib2to3|pydoc_data|tkinter|ensurepip|config-[^/]*|dist-packages)$"
    return None if re.search(left_out, info.name) else info


def _blob(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(data), "digest": f"sha256:{hashlib.sha256(data).hexdigest()}"}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _kubectl(cluster: KubernetesCluster, kubeconfig: Path, words: Sequence[str], text: str) -> str:
    env = {**os.environ, "PATH": PATH, "KUBECONFIG": str(kubeconfig)}
    argv = [*cluster.typed_at(Path("/")).words, "kubectl", *words]
    done = subprocess.run(argv, env=env, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout


def _make_key(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))


def _condition(thing: Mapping[str, Any], kind: str) -> str:
    found = [each["status"] for each in thing["status"].get("conditions", []) if each["type"] == kind]
    return found[0] if found else ""


def _others(host: BedHost) -> list[int]:
    """What runs on a host beside its own furniture."""
    return [each.pid for each in host.processes()]


def _controllers() -> list[Path]:
    """The hierarchies of cgroups: one for each controller, or one for all."""
    if (GROUPS / "cgroup.controllers").exists():
        return [GROUPS]
    return [
        each
        for each in GROUPS.iterdir()
        if each.is_dir() and each.name != "unified" and not each.is_symlink()
    ]


def _remove_groups(name: str) -> None:
    for controller in (*_controllers(), GROUPS / "unified"):
        top = controller / name
        for group in sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()
        with contextlib.suppress(OSError):
            top.rmdir()


def _remove_old_groups() -> None:
    """What outlives tests that were killed: empty cgroups."""
    for controller in (*_controllers(), GROUPS / "unified"):
        for group in controller.glob("tflaunch-k8s-*"):
            if not Path(f"/proc/{group.name.split('-')[2]}").exists():
                _remove_groups(group.name)


CONTAINERD_RUN = "/run/k8s"  # each host has its own /run
CONTAINERD = """\
version = 2
root = "{place}/containerd"
state = "/run/k8s/state"
[grpc]
  address = "/run/k8s/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{place}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
KUBELET: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "enforceNodeAllocatable": [],
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "readOnlyPort": 0,
    "resolvConf": "",
    # The machine's own disk may be as full as it likes.
    "evictionHard": dict.fromkeys(
        ("memory.available", "nodefs.available", "imagefs.available", "nodefs.inodesFree"), "0%"
    ),
    "nodeStatusUpdateFrequency": "2s",
    "nodeStatusReportFrequency": "10s",
    "imageGCHighThresholdPercent": 100,
    "maxPods": 60,
    "shutdownGracePeriod": "0s",
}
