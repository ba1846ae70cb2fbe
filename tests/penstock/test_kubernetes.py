"""deploy/kubernetes: valid for Kubernetes and KEDA, and every command and variable really runs.

No cluster is needed: what a pod would run is read from the manifests and run here, with paths
and ports of the test's. docs/guide/kubernetes.md names what only a cluster can show.
"""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import ground
from gateway.server.app import GRACE as GATEWAY_GRACE
from gateway.settings import GatewaySettings
from ground.settings import variables
from penstock.commands.sandbox import _GRACE
from penstock.release import __version__
from penstock.variables import settings_models
from tests.architecture.source import ROOT
from tests.harness import leash
from tests.harness.servers import PrivateRedis, free_port, until
from tests.penstock import manifests
from tests.penstock.manifests import (
    FOLDER,
    Manifest,
    container_of,
    environment_of,
    named,
    one_of,
    pod_of,
    rendered,
    secrets_of,
)
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import open_queue

OVERLAYS = [
    (), ("landlock",), ("keda",), ("landlock", "keda"), ("gateway",),
    ("gateway", "keda", "prometheus"),
]  # fmt: skip
EVERY_OVERLAY = pytest.mark.parametrize("components", OVERLAYS, ids=lambda c: "+".join(c) or "base")
BASE, WEAKER, SCALED = rendered(), rendered("landlock"), rendered("keda")
WHOLE = rendered("gateway", "keda", "prometheus")
DEPLOYMENTS = named(BASE, "Deployment")
OLDEST = "1.33"  # user namespaces and unmasked /proc are on by default from here
PORTS = {"worker": 9200, "sandbox": 8080, "buffer": 8889, "monitor": 8890}
# `keda:"name=…"` in pkg/scalers/metrics_api_scaler.go and pkg/scalers/authentication of KEDA 2.20.2
KEDAS_WORDS = {"url", "format", "valueLocation", "targetValue", "authMode"}


# What the files say


@pytest.mark.parametrize("components", [(), ("landlock", "keda")], ids=["base", "both components"])
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_kubernetes_accepts_every_object(components: tuple[str, ...], version: str) -> None:
    checked = [one for one in rendered(*components) if schema_of(one) is None]
    assert {one["kind"] for one in checked} == {
        "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "Namespace"
    }  # fmt: skip
    for one in checked:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_the_gateway_is_a_component_whose_parts_find_each_other(version: str) -> None:
    made = rendered("gateway")
    own = [one for one in made if one["metadata"]["name"] == "gateway"]
    assert [one["kind"] for one in own] == [
        "Deployment", "Service", "PodDisruptionBudget", "ConfigMap", "NetworkPolicy"
    ]  # fmt: skip
    for one in own:
        kubernetes_validate.validate(one, version, strict=True)
    deployment, service, budget, engines, _ = own
    assert {one["metadata"]["namespace"] for one in own} == {"penstock"}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], budget["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    (port,) = container_of(deployment)["ports"]
    assert port["containerPort"] == GatewaySettings.model_fields["gateway_port"].default
    assert "gateway_token" in secrets_of(deployment).values()
    (asked,) = [e for e in container_of(deployment)["env"] if e["name"].endswith("_ENGINES")]
    assert asked["valueFrom"]["configMapKeyRef"]["key"] in engines["data"]
    assert pod_of(deployment)["terminationGracePeriodSeconds"] >= 5 + GATEWAY_GRACE


def test_kubernetes_would_refuse_a_wrong_field() -> None:
    wrong = copy.deepcopy(DEPLOYMENTS["worker"])
    pod_of(wrong)["hostUser"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def schema_of(manifest: Manifest) -> dict[str, Any] | None:
    """The schema of what an operator brings into a cluster; None for Kubernetes' own kinds."""
    folders = {"keda.sh": "keda", "monitoring.coreos.com": "prometheus"}
    folder = folders.get(str(manifest["apiVersion"]).partition("/")[0])
    if folder is None:
        return None
    file = ROOT / "tests" / "penstock" / folder / f"{manifest['kind'].lower()}s.yaml"
    (version,) = next(yaml.safe_load_all(file.read_text()))["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    for part in ("metadata", "status"):
        schema["properties"].pop(part, None)
    schema["properties"]["metadata"] = {"type": "object"}
    return closed(schema)


def closed(schema: Any) -> Any:
    """A field that the schema does not name is refused, where Kubernetes would drop it."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made["properties"] != {"type": "object"}:
        made.setdefault("additionalProperties", False)
    return made


def test_operators_accept_their_objects_and_would_refuse_a_wrong_field() -> None:
    theirs = [(one, schema) for one in WHOLE if (schema := schema_of(one)) is not None]
    assert {one["kind"] for one, _ in theirs} == {
        "ScaledObject", "TriggerAuthentication", "PodMonitor"
    }  # fmt: skip
    for one, schema in theirs:
        jsonschema.validate(one, schema)
        wrong = copy.deepcopy(one)
        wrong["spec"]["maxReplicas"] = 3
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    for trigger in one_of(SCALED, "ScaledObject", "worker")["spec"]["triggers"]:
        assert trigger["type"] == "metrics-api"
        assert trigger["metadata"].keys() == KEDAS_WORDS


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl")
def test_the_overlay_of_the_page_takes_all_its_patches_in_one_list(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guide" / "kubernetes.md").read_text()
    blocks = re.findall(r"^ *```yaml\n(.*?)^ *```$", page, re.M | re.S)
    overlay, *patches = map(textwrap.dedent, blocks)
    assert [patch.startswith("- target:") for patch in patches] == [True] * 4
    overlay = overlay.replace("# - deploy/kubernetes/gateway", "- deploy/kubernetes/gateway")
    assert pin(tmp_path, f"registry.example/penstock@{DIGEST}").returncode == 0
    (tmp_path / "kustomization.yaml").write_text(overlay + "patches:\n" + "".join(patches))
    made = kustomized(tmp_path)
    assert one_of(made, "ConfigMap", "gateway")["data"]["engines"].count("sglang=http://") == 2
    for name in ("worker", "buffer", "monitor", "gateway"):
        deployment = one_of(made, "Deployment", name)
        assert "ca.pem" in secrets_of(deployment).values()
        assert container_of(deployment)["image"] == f"registry.example/penstock@{DIGEST}"
    assert "ca.pem" not in secrets_of(one_of(made, "Deployment", "sandbox")).values()
    assert one_of(made, "ScaledObject", "worker")["spec"]["maxReplicaCount"] == 8
    (redis,) = one_of(made, "NetworkPolicy", "redis")["spec"]["egress"]
    assert (redis["to"], len(redis["ports"])) == ([{"ipBlock": {"cidr": "10.1.2.3/32"}}], 1)


def kustomized(folder: Path) -> list[Manifest]:
    made = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl")
@EVERY_OVERLAY
def test_kustomize_renders_what_is_tested_here(components: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["base"], "components": list(components),
    }  # fmt: skip
    (tmp_path / "kubernetes" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))

    def sorted_by_name(manifests: Any) -> list[Manifest]:
        return sorted(manifests, key=lambda one: (one["kind"], one["metadata"]["name"]))

    ours = sorted_by_name(rendered(*components))
    assert sorted_by_name(kustomized(tmp_path / "kubernetes")) == ours


# The security of the pods


def test_the_sandbox_has_what_the_level_ns_needs_and_no_right_more() -> None:
    sandbox = DEPLOYMENTS["sandbox"]
    pod, container = pod_of(sandbox), container_of(sandbox)
    assert environment_of(sandbox)["PENSTOCK_SANDBOX_LEVEL"] == "ns"
    assert pod["hostUsers"] is False, "procMount: Unmasked is refused without it"
    assert container["securityContext"]["procMount"] == "Unmasked"
    for profile in ("seccompProfile", "appArmorProfile"):
        assert pod["securityContext"][profile] == {"type": "Unconfined"}
    assert one_of(BASE, "Namespace", "penstock")["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "privileged",
        "pod-security.kubernetes.io/warn": "privileged",
    }


def test_at_landlock_every_pod_is_what_the_restricted_standard_allows() -> None:
    sandbox = one_of(WEAKER, "Deployment", "sandbox")
    assert environment_of(sandbox)["PENSTOCK_SANDBOX_LEVEL"] == "landlock"
    for deployment in named(WEAKER, "Deployment").values():
        pod, container = pod_of(deployment), container_of(deployment)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "appArmorProfile" not in pod["securityContext"]
        assert "procMount" not in container["securityContext"]
        assert all(v.keys() & {"secret", "emptyDir"} for v in pod["volumes"])
    labels = one_of(WEAKER, "Namespace", "penstock")["metadata"]["labels"]
    assert set(labels.values()) == {"restricted"}


@EVERY_OVERLAY
def test_no_pod_is_roots_or_has_a_capability(components: tuple[str, ...]) -> None:
    (user,) = re.findall(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text(), re.M)
    for deployment in named(rendered(*components), "Deployment").values():
        pod, container = pod_of(deployment), container_of(deployment)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == int(user)
        assert pod["automountServiceAccountToken"] is False
        own = {k: v for k, v in container["securityContext"].items() if k != "procMount"}
        assert own == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


def test_a_sandbox_holds_its_tokens_alone_and_reaches_nothing() -> None:
    assert set(secrets_of(DEPLOYMENTS["sandbox"]).values()) == {"sandbox_token", "metrics_token"}
    assert reached("sandbox", WHOLE) == set()


# From whom, to whom, on which port
CLIENTS = "namespaces with penstock/client=allowed"
WAYS = {
    ("worker", "sandbox", 8080),
    *((name, "anywhere", 6379) for name in ("worker", "buffer", "monitor", "gateway")),
    *((name, "namespaces with kubernetes.io/metadata.name=kube-system", 53)
      for name in ("worker", "buffer", "monitor", "gateway")),
    ("buffer", CLIENTS, 0), ("gateway", CLIENTS, 0),
    (CLIENTS, "buffer", 8889), (CLIENTS, "gateway", 8893),
    ("namespaces with kubernetes.io/metadata.name=keda", "monitor", 8890),
}  # fmt: skip
SCRAPER = "namespaces with kubernetes.io/metadata.name=monitoring"


def test_every_way_through_the_network_is_known_and_all_else_is_shut() -> None:
    deployments = named(WHOLE, "Deployment")
    shut = one_of(WHOLE, "NetworkPolicy", "default-deny")["spec"]
    assert shut == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert {way for name in deployments for way in ways_of(name, WHOLE)} == {
        *WAYS, *((SCRAPER, name, port) for name in deployments for port in FIGURES)
    }  # fmt: skip
    assert {container_of(one)["ports"][0]["containerPort"] for one in deployments.values()} == (
        FIGURES
    )
    monitor = named(WHOLE, "PodMonitor")["penstock"]["spec"]
    ends = {end["port"]: end for end in monitor["podMetricsEndpoints"]}
    for name, deployment in deployments.items():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert "metrics_token" in secrets_of(deployment).values(), name
        login = ends[container_of(deployment)["ports"][0]["name"]]["authorization"]["credentials"]
        assert login == {"name": "penstock", "key": "metrics_token"}


FIGURES = {*PORTS.values(), GatewaySettings.model_fields["gateway_port"].default}


def reached(name: str, manifests: list[Manifest]) -> set[tuple[str, str, int]]:
    return {way for way in ways_of(name, manifests) if way[0] == name}


def ways_of(name: str, manifests: list[Manifest]) -> set[tuple[str, str, int]]:
    """What the policies let a pod send and take, as (from, to, port); port 0 is any."""
    labels = one_of(manifests, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
    ways = set()
    for policy in named(manifests, "NetworkPolicy").values():
        spec = policy["spec"]
        if not selects(spec["podSelector"], labels):
            continue
        for rule in spec.get("egress", []):
            for peer, port in ends_of(rule, "to"):
                ways.add((name, peer, port))
        for rule in spec.get("ingress", []):
            for peer, port in ends_of(rule, "from"):
                if (peer, name, port) not in {("worker", "sandbox", 8080)}:
                    ways.add((peer, name, port))
    return ways


def ends_of(rule: dict[str, Any], side: str) -> list[tuple[str, int]]:
    peers = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] if "podSelector" in peer
        else "namespaces with " + "=".join(*peer["namespaceSelector"]["matchLabels"].items())
        for peer in rule.get(side, [])
    ]  # fmt: skip
    ports = [port["port"] for port in rule.get("ports", [{"port": 0}])]
    return [(peer, port) for peer in peers or ["anywhere"] for port in ports]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        labels[one["key"]] not in one["values"]
        for one in selector.get("matchExpressions", [])
        if one["operator"] == "NotIn"
    )


def test_every_secret_that_is_read_is_mounted_and_none_is_in_a_manifest() -> None:
    known = {name for model in settings_models() for name in variables(model)}
    for name, deployment in DEPLOYMENTS.items():
        mounted = secrets_of(deployment)
        read = set()
        for variable, value in environment_of(deployment).items():
            assert variable in {*known, "NAMESPACE"}, variable
            if re.search("TOKEN|PASSWORD|REDIS_URL", variable):
                assert variable.endswith("_FILE"), f"{name}: {variable} is a secret in the file"
                read.add(value)
        assert read == mounted.keys(), name
        assert pod_of(deployment)["enableServiceLinks"] is False, (
            "else a Service's variables may be read as settings"
        )


# Numbers that hang together


def option(name: str, word: str) -> int:
    args = container_of(DEPLOYMENTS[name])["args"]
    return int(args[args.index(word) + 1])


def number(name: str, variable: str) -> int:
    return int(environment_of(DEPLOYMENTS[name])[variable])


def test_the_gates_limit_is_what_the_sandboxes_run_at_once() -> None:
    places = number("sandbox", "PENSTOCK_SANDBOX_CONCURRENCY")
    assert option("worker", "--gate-limit") == DEPLOYMENTS["sandbox"]["spec"]["replicas"] * places


def test_keda_scales_to_as_many_workers_as_fill_the_gate() -> None:
    scaled = one_of(SCALED, "ScaledObject", "worker")["spec"]
    each = option("worker", "--concurrency")
    assert scaled["advanced"]["scalingModifiers"]["target"] == str(each)
    assert scaled["maxReplicaCount"] * each == option("worker", "--gate-limit")
    assert "replicas" not in one_of(SCALED, "Deployment", "worker")["spec"]
    assert scaled["scaleTargetRef"]["name"] in DEPLOYMENTS


def test_a_sandboxs_memory_holds_all_its_programs_and_their_files() -> None:
    limits = container_of(DEPLOYMENTS["sandbox"])["resources"]["limits"]
    each = number("sandbox", "PENSTOCK_SANDBOX_MEMORY_MB") + number(
        "sandbox", "PENSTOCK_SANDBOX_DISK_MB"
    )
    programs = number("sandbox", "PENSTOCK_SANDBOX_CONCURRENCY") * each
    assert int(limits["memory"].removesuffix("Gi")) * 1024 >= programs + 1024


def test_every_pod_has_time_to_end_in_order() -> None:
    for name, deployment in DEPLOYMENTS.items():
        pod, container = pod_of(deployment), container_of(deployment)
        paused = container.get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})
        least = paused["preStop"]["sleep"]["seconds"] + (300 if name == "worker" else _GRACE)
        assert pod["terminationGracePeriodSeconds"] >= least, name


def test_what_refers_to_something_finds_it() -> None:
    for name, service in named(BASE, "Service").items():
        labels = DEPLOYMENTS[name]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        (port,), (own,) = service["spec"]["ports"], container_of(DEPLOYMENTS[name])["ports"]
        assert (port["targetPort"], port["port"]) == (own["name"], own["containerPort"])
    for name, budget in named(BASE, "PodDisruptionBudget").items():
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert budget["spec"]["selector"] == DEPLOYMENTS[name]["spec"]["selector"]
        assert DEPLOYMENTS[name]["spec"]["replicas"] > budget["spec"]["maxUnavailable"], (
            "a budget for a single pod would hold up every drain"
        )
    for name, deployment in DEPLOYMENTS.items():
        container = container_of(deployment)
        assert container["image"] == f"penstock:{__version__}"
        (port,) = container["ports"]
        assert port["containerPort"] == PORTS[name]


@EVERY_OVERLAY
def test_only_a_sandbox_is_started_again_for_more_than_its_own_process(
    components: tuple[str, ...],
) -> None:
    for name, deployment in named(rendered(*components), "Deployment").items():
        container = container_of(deployment)
        (port,) = container["ports"]
        asked = {
            probe.removesuffix("Probe"): container[probe]["httpGet"] for probe in container
            if probe.endswith("Probe")
        }  # fmt: skip
        path = {"startup": "/livez", "readiness": "/healthz", "liveness": "/livez"}
        if name == "sandbox":  # its /healthz asks nobody either
            path["liveness"] = "/healthz"
        assert asked == {probe: {"path": path[probe], "port": port["name"]} for probe in path}


@EVERY_OVERLAY
def test_every_container_has_a_bound_on_each_resource(components: tuple[str, ...]) -> None:
    for name, deployment in named(rendered(*components), "Deployment").items():
        resources = container_of(deployment)["resources"]
        for bound in ("requests", "limits"):
            assert resources[bound].keys() == {"cpu", "memory", "ephemeral-storage"}, name
        (tmp,) = (v["emptyDir"] for v in pod_of(deployment)["volumes"] if v["name"] == "tmp")
        assert in_mebibytes(resources["limits"]["ephemeral-storage"]) > in_mebibytes(
            tmp["sizeLimit"]
        )
    sandbox = DEPLOYMENTS["sandbox"]
    cores = container_of(sandbox)["resources"]["limits"]["cpu"]
    assert cores == environment_of(sandbox)["PENSTOCK_SANDBOX_CONCURRENCY"], "a core per program"


def in_mebibytes(quantity: str) -> int:
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


@pytest.mark.skipif(not shutil.which("checkov"), reason="no checkov: make conformance-kubernetes")
@EVERY_OVERLAY
def test_a_policy_linter_objects_to_nothing_for_which_the_manifest_has_no_reason(
    components: tuple[str, ...], tmp_path: Path
) -> None:
    made = rendered(*components)
    report = objections(made, tmp_path)
    assert report["failed_checks"] == []
    assert all(one["check_result"]["suppress_comment"] for one in report["skipped_checks"])
    pod_of(one_of(made, "Deployment", "worker"))["hostNetwork"] = True
    assert [one["check_id"] for one in objections(made, tmp_path)["failed_checks"]] == [
        "CKV_K8S_19"
    ]  # fmt: skip


def objections(made: list[Manifest], folder: Path) -> dict[str, list[Any]]:
    file = folder / "all.yaml"
    file.write_text(yaml.safe_dump_all(made))
    said = subprocess.run(
        ["checkov", "--skip-download", "--framework", "kubernetes", "-o", "json", "-f", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    results: dict[str, list[Any]] = json.loads(said.stdout)["results"]
    assert len(results["passed_checks"]) > 300
    return results


# The image's digest


def test_without_a_digest_the_image_is_this_version() -> None:
    for deployment in named(rendered("gateway"), "Deployment").values():
        assert container_of(deployment)["image"] == f"penstock:{__version__}"


DIGEST = "sha256:" + "0123456789abcdef" * 4


def copied(folder: Path) -> None:
    """What a clone has of deploy/."""
    own = shutil.ignore_patterns("image", "__pycache__")
    shutil.copytree(ROOT / "deploy", folder / "deploy", dirs_exist_ok=True, ignore=own)


def pin(folder: Path, image: str, docker: str = "exit 1") -> subprocess.CompletedProcess[str]:
    """`make pinned` in a copy of deploy/, with a `docker` that runs this line of a shell."""
    copied(folder)
    (folder / "docker").write_text(f"#!/bin/sh\n{docker}\n")
    (folder / "docker").chmod(0o755)
    return subprocess.run(
        [sys.executable, "deploy/pin_image.py", image], cwd=folder, text=True,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("image", "docker"),
    [
        ("registry.example:5000/penstock:0.2.0",
         f"echo '[\"other.example/penstock@sha256:{'f' * 64}\","
         f" \"registry.example:5000/penstock@{DIGEST}\"]'"),
        (f"registry.example:5000/penstock@{DIGEST}", "exit 1"),
    ],
    ids=["pushed", "named"],
)  # fmt: skip
def test_every_pod_runs_the_image_with_the_digest_that_its_registry_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, docker: str
) -> None:
    for _ in range(2):  # a second time replaces the first
        made = pin(tmp_path, image, docker)
        assert made.returncode == 0, made.stderr
    monkeypatch.setattr(manifests, "FOLDER", tmp_path / "deploy" / "kubernetes")
    for deployment in named(rendered("gateway", "image"), "Deployment").values():
        assert container_of(deployment)["image"] == f"registry.example:5000/penstock@{DIGEST}"


@pytest.mark.parametrize("docker", ["exit 1", "echo null", "echo '[]'"])
def test_no_digest_is_written_that_no_registry_gave(tmp_path: Path, docker: str) -> None:
    made = pin(tmp_path, "registry.example/penstock:0.2.0", docker)
    assert made.returncode == 1
    assert "registry.example/penstock" in made.stderr
    assert "Traceback" not in made.stderr
    assert not (tmp_path / "deploy" / "kubernetes" / "image").exists()


def test_no_tag_is_refused_for_a_digest_that_was_written(tmp_path: Path) -> None:
    """git would not check one out that changes a file which `make pinned` had changed."""
    shutil.copy(ROOT / ".gitignore", tmp_path)
    copied(tmp_path)
    for words in (["init", "--quiet"], ["add", "deploy", ".gitignore"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert pin(tmp_path, f"registry.example/penstock@{DIGEST}").returncode == 0
    seen = ["git", "status", "--porcelain", "deploy"]
    after = subprocess.run(seen, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {line[:3] for line in after.stdout.splitlines()} == {"A  "}, "nothing is new or changed"


# What the pods run


class Pods:
    """What the cluster would start, as processes of this test."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.ports = {name: free_port() for name in PORTS}
        script = ROOT / "deploy" / "make_secrets.py"
        subprocess.run([sys.executable, script], cwd=folder, check=True)
        (folder / "secrets" / "redis_url").unlink()
        (folder / "secrets" / "redis_url").write_text(url)
        self.processes: list[subprocess.Popen[Any]] = []

    def start(self, name: str) -> None:
        deployment = DEPLOYMENTS[name]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        env = clean | {k: self.here(v) for k, v in environment_of(deployment).items()}
        env |= {f"PENSTOCK_{name.upper()}_PORT": str(self.ports[name])}
        words = [self.here(word) for word in container_of(deployment)["args"]]
        self.processes.append(
            leash.start([sys.executable, "-m", "penstock", *words], env=env,
                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )  # fmt: skip

    def get(self, name: str, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.ports[name]}{path}", headers=headers, timeout=150)

    def healthy(self, name: str) -> bool:
        try:
            return self.get(name, "/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text()

    def here(self, word: str) -> str:
        """The same word outside of a pod."""
        word = word.replace("/run/secrets/penstock", str(self.folder / "secrets"))
        word = word.replace("0.0.0.0", "127.0.0.1").replace("//sandbox:", "//127.0.0.1:")
        for name, inside in PORTS.items():
            word = re.sub(rf"(?<=:){inside}\b|^{inside}$", str(self.ports[name]), word)
        return word

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(100)


@pytest.fixture
def pods(private_redis: Any) -> Iterator[Pods]:
    server: PrivateRedis = private_redis()
    with tempfile.TemporaryDirectory() as folder:
        started = Pods(Path(folder), server.url)
        yield started
        started.end()


def as_keda_reads(exposition: str, selector: str) -> float:
    """The first series of that name that has all those labels: `getValueFromPrometheusResponse`
    of KEDA 2.20.2. `StopIteration` is its error "value not found"."""
    name, labels = re.fullmatch(r"(\w+)\{(.*)\}", selector).groups()  # type: ignore[union-attr]
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return next(
        sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == name and wanted.items() <= sample.labels.items()
    )


@pytest.mark.timeout(600)  # a dozen processes, one after the other
def test_every_pod_starts_is_healthy_and_the_monitor_tells_keda_of_the_jobs(pods: Pods) -> None:
    for name in DEPLOYMENTS:
        assert not pods.healthy(name), "healthy before it started"
        pods.start(name)
    for name in DEPLOYMENTS:
        until(lambda name=name: pods.healthy(name), name, within=100)

    env = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "-"], input="print(6 * 7)", text=True,
        env=env | {"PENSTOCK_REDIS_URL": pods.url}, capture_output=True, timeout=200, check=False,
    )  # fmt: skip
    assert ran.stdout == "42\n", ran.stderr

    for name in ("buffer", "monitor"):
        for host in (name, f"{name}.penstock.svc", f"{name}.penstock.svc.cluster.local"):
            assert pods.get(name, "/healthz", Host=f"{host}:{PORTS[name]}").status_code == 200
        assert pods.get(name, "/healthz", Host=f"{name}.other:{PORTS[name]}").status_code == 421

    client = ground.connect(pods.url)
    for _ in range(3):  # nobody works on this queue, so that they wait
        open_queue(client, "elsewhere").enqueue(chores.nothing)
    client.close()
    scaled = one_of(SCALED, "ScaledObject", "worker")["spec"]
    (login,) = one_of(SCALED, "TriggerAuthentication", "monitor")["spec"]["secretTargetRef"]
    assert (login["parameter"], login["name"]) == ("token", "penstock")
    told = {}
    for trigger in scaled["triggers"]:
        said = trigger["metadata"]
        assert (said["format"], said["authMode"]) == ("prometheus", "bearer")
        url = httpx.URL(said["url"])
        bearer = f"Bearer {pods.secret(login['key'])}"
        answer = pods.get("monitor", url.path, Host=url.netloc.decode(), Authorization=bearer)
        assert answer.status_code == 200
        told[trigger["name"]] = as_keda_reads(answer.text, said["valueLocation"])
        elsewhere = said["valueLocation"].replace("code", "elsewhere")
        waits = said["valueLocation"].startswith("penstock_queue_depth")
        assert as_keda_reads(answer.text, elsewhere) == (3 if waits else 0)
    assert told == {"waiting": 0, "running": 0}
    assert scaled["advanced"]["scalingModifiers"]["formula"] == " + ".join(told)
