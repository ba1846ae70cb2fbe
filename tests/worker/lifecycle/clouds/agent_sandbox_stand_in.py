"""A Kubernetes API server and agent-sandbox's router, as far as its client sees them."""

import json
import shlex
import subprocess
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.worker.lifecycle.clouds.machines import Handler, Machine, Taken, parts, run

CLAIMS = ["apis", "extensions.agents.x-k8s.io", "v1beta1", "namespaces", "rl", "sandboxclaims"]
SANDBOXES = ["apis", "agents.x-k8s.io", "v1beta1", "namespaces", "rl", "sandboxes"]

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "{url}"}}}}]
users: [{{name: test, user: {{token: secret}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
"""


class Cluster(Handler):
    def route(self, method: str, path: str, body: bytes) -> None:
        url = urlsplit(path)
        words, query = url.path.strip("/").split("/"), parse_qs(url.query)
        if words[0] == "router":
            return self.at_the_router(words[1:], body)
        if self.headers.get("authorization") != "Bearer secret":
            return self.fails(401, "Unauthorized")
        match method, words[: len(CLAIMS)], words[len(CLAIMS) :]:
            case "POST", kind, [] if kind == CLAIMS:
                return self.create(json.loads(body))
            case "GET", kind, [] if kind == CLAIMS and "watch" in query:
                return self.watched(query["fieldSelector"][0].removeprefix("metadata.name="))
            case "GET", kind, [] if kind == CLAIMS:
                selector = query.get("labelSelector", [""])[0]
                wanted = dict(each.split("=") for each in selector.split(",") if each)
                living = self.machines.living()
                found = [each for each in living if wanted.items() <= each.labels.items()]
                return self.answer(200, {"items": [about(each) for each in found]})
            case "GET", kind, [name] if kind in (CLAIMS, SANDBOXES):
                if box := self.machines.find(name):
                    return self.answer(200, about(box))
            case "DELETE", kind, [name] if kind == CLAIMS:
                if box := self.machines.find(name):
                    self.machines.end(box)
                    return self.answer(200, {"status": "Success"})
        return self.fails(404, f"{path} not found")

    def create(self, asked: dict[str, Any]) -> None:
        if self.refused():
            return None
        spec, metadata = asked["spec"], asked["metadata"]
        ends = datetime.strptime(spec["lifecycle"]["shutdownTime"], "%Y-%m-%dT%H:%M:%SZ")
        assert spec["lifecycle"]["shutdownPolicy"] == "Delete"
        seconds = ends.replace(tzinfo=UTC).timestamp() - time.time() + 1
        env = {each["name"]: each["value"] for each in spec.get("env") or []}
        labels = {**metadata["labels"], "pool": spec["warmPoolRef"]["name"]}
        try:
            made = self.machines.make(metadata["name"], labels, env, seconds)
        except Taken:
            return self.fails(409, f"sandboxclaims {metadata['name']} already exists")
        time.sleep(self.machines.delay)
        return self.answer(201, about(made))

    def watched(self, name: str) -> None:
        box = self.machines.find(name)
        kind, found = ("ADDED", about(box)) if box else ("DELETED", {})
        event = {"type": kind, "object": found}
        self.answer(200, json.dumps(event).encode() + b"\n")

    def at_the_router(self, words: list[str], body: bytes) -> None:
        box = self.machines.find(self.headers["x-sandbox-id"])
        if box is None:
            return self.answer(502, {"detail": "Could not connect to the backend sandbox"})
        if words == ["execute"]:
            asked = json.loads(body)
            try:
                code, out, err = run(
                    box, shlex.split(asked["command"]), asked.get("timeout_seconds", 300)
                )
            except (OSError, subprocess.TimeoutExpired) as problem:
                said = {"stdout": "", "stderr": str(problem), "exit_code": 1}
                return self.answer(200, said)
            said = {"stdout": out.decode(), "stderr": err.decode(), "exit_code": code}
            return self.answer(200, said)
        if words == ["upload"]:
            head = body.split(b'filename="')[1].split(b'"')[0].decode()
            content = parts(body, self.headers["content-type"])["file"]
            (box.folder / head.lstrip("/")).write_bytes(content)
            return self.answer(200, {"message": "uploaded"})
        assert words[0] == "download"
        file = box.folder / unquote("/".join(words[1:])).lstrip("/")
        return self.answer(200, file.read_bytes(), {"content-type": "application/octet-stream"})

    def fails(self, status: int, message: str) -> None:
        self.answer(status, {"kind": "Status", "code": status, "message": message})


def about(box: Machine) -> dict[str, Any]:
    """Of a claim, or of its sandbox."""
    if box.labels["pool"] == "absent":
        ready = {"type": "Ready", "status": "False", "reason": "WarmPoolNotFound"}
    else:
        ready = {"type": "Ready", "status": "True", "reason": "SandboxReady"}
    return {
        "metadata": {"name": box.name, "uid": box.id, "labels": box.labels, "resourceVersion": "1"},
        "spec": {"warmPoolRef": {"name": box.labels["pool"]}},
        "status": {"sandbox": {"name": box.name}, "conditions": [ready]},
    }
