"""The Kubernetes manifests as kustomize would write them, and a pod's container to run here."""

import copy
import re
from pathlib import Path
from typing import Any

import yaml

from tests.architecture.source import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
Manifest = dict[str, Any]


def rendered(*components: str) -> list[Manifest]:
    """The base with these components. What of kustomize the files use, and nothing else."""
    base = _kustomization("base")
    assert base.keys() == {"apiVersion", "kind", "namespace", "resources"}
    manifests = [one for file in base["resources"] for one in _documents("base", file)]
    for component in components:
        steps = _kustomization(component)
        known = {"apiVersion", "kind", "namespace", "resources", "patches", "images"}
        assert steps.keys() <= known
        assert steps.get("namespace", base["namespace"]) == base["namespace"]
        for file in steps.get("resources", []):
            manifests += _documents(component, file)
            assert "namespace" in steps, "a component's own resources need the base's namespace"
        for patch in steps.get("patches", []):
            kind, name = patch["target"]["kind"], patch["target"]["name"]
            for step in yaml.safe_load(patch["patch"]):
                _apply(step, one_of(manifests, kind, name))
        for image in steps.get("images", []):
            _rename(image, manifests)
    for one in manifests:
        if one["kind"] != "Namespace":
            one["metadata"]["namespace"] = base["namespace"]
    return manifests


def one_of(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (m for m in manifests if (m["kind"], m["metadata"]["name"]) == (kind, name))
    return found


def named(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def pod_of(deployment: Manifest) -> Manifest:
    pod: Manifest = deployment["spec"]["template"]["spec"]
    return pod


def container_of(deployment: Manifest) -> Manifest:
    (container,) = pod_of(deployment)["containers"]
    return container  # type: ignore[no-any-return]


def environment_of(deployment: Manifest) -> dict[str, str]:
    """What the container would find in its environment, `$(NAME)` replaced as kubelet does."""
    found: dict[str, str] = {}
    for one in container_of(deployment).get("env", []):
        value = one.get("value")
        if value is None and "configMapKeyRef" in one["valueFrom"]:
            value = f"of the ConfigMap {one['valueFrom']['configMapKeyRef']['name']}"
        elif value is None:
            assert one["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
            value = deployment["metadata"]["namespace"]
        found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


def secrets_of(deployment: Manifest) -> dict[str, str]:
    """Path in the container → key of the Secret."""
    pod, container = pod_of(deployment), container_of(deployment)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    return {
        f"{mounts[volume['name']]}/{item['path']}": item["key"]
        for volume in pod["volumes"] if "secret" in volume
        for item in volume["secret"]["items"]
    }  # fmt: skip


def _kustomization(folder: str) -> Manifest:
    found: Manifest = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())
    return found


def _documents(folder: str, file: str) -> list[Manifest]:
    text = (Path(FOLDER) / folder / file).read_text()
    return [copy.deepcopy(one) for one in yaml.safe_load_all(text)]  # anchors share objects


def _rename(image: dict[str, str], manifests: list[Manifest]) -> None:
    for deployment in named(manifests, "Deployment").values():
        container = container_of(deployment)
        if container["image"].partition(":")[0] == image["name"]:
            container["image"] = f"{image['newName']}@{image['digest']}"


def _apply(step: dict[str, Any], manifest: Manifest) -> None:
    """One operation of JSON Patch (RFC 6902)."""
    words = [word.replace("~1", "/").replace("~0", "~") for word in step["path"].split("/")[1:]]
    place: Any = manifest
    for word in words[:-1]:
        place = place[int(word) if isinstance(place, list) else word]
    last = words[-1]
    match step["op"]:
        case "remove":
            del place[last]
        case "replace":
            assert last in place
            place[last] = step["value"]
        case "test":
            assert place[last] == step["value"], step["path"]
        case other:
            raise AssertionError(other)
