"""Daytona, as far as its SDK sees it of create, get, list, delete, commands and files."""

import json
import subprocess
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.worker.lifecycle.clouds.machines import Handler, Machine, Taken, parts, run

KEY = "dtn_test"


class Daytona(Handler):
    def route(self, method: str, path: str, body: bytes) -> None:
        url = urlsplit(path)
        words = url.path.strip("/").split("/")
        if self.headers.get("authorization") != f"Bearer {KEY}":
            return self.fails(401, "Invalid credentials")
        match method, words:
            case "POST", ["api", "sandbox"]:
                return self.create(json.loads(body))
            case "GET", ["api", "sandbox"]:
                labels = json.loads(parse_qs(url.query).get("labels", ["{}"])[0])
                living = self.machines.living()
                found = [each for each in living if labels.items() <= each.labels.items()]
                items = [self.about(each) for each in found]
                return self.answer(200, {"items": items, "nextCursor": None})
            case _, [_, "sandbox" | "toolbox", name, *rest] if box := self.machines.find(name):
                return self.of(box, method, rest, body)
        return self.fails(404, f"{path} not found")

    def create(self, asked: dict[str, Any]) -> None:
        if self.refused():
            return None
        if "absent" in str(asked.get("snapshot")):
            return self.fails(404, f"Snapshot {asked['snapshot']} not found")
        assert asked["autoStopInterval"] == 0
        minutes = asked["ttlMinutes"]
        seconds = 1.0 if minutes == 1 else 60.0 * minutes  # nobody waits for a minute
        try:
            made = self.machines.make(asked["name"], asked["labels"], asked.get("env"), seconds)
        except Taken:
            return self.fails(409, f"Sandbox with name {asked['name']} already exists")
        time.sleep(self.machines.delay)
        return self.answer(200, self.about(made))

    def of(self, box: Machine, method: str, rest: list[str], body: bytes) -> None:
        match method, rest:
            case "GET", []:
                return self.answer(200, self.about(box))
            case "DELETE", []:
                self.machines.end(box)
                return self.answer(200, {**self.about(box), "state": "destroyed"})
            case "POST", ["process", "execute"]:
                asked = json.loads(body)
                try:
                    code, out, err = run(box, ["sh", "-c", asked["command"]], asked["timeout"])
                except subprocess.TimeoutExpired:
                    return self.fails(408, "command execution timeout")
                return self.answer(200, {"exitCode": code, "result": (out + err).decode()})
            case "POST", ["files", "bulk-upload"]:
                form = parts(body, self.headers["content-type"])
                path = form["files[0].path"].decode()
                (box.folder / path).write_bytes(form["files[0].file"])
                return self.answer(200, {})
            case "POST", ["files", "bulk-download"]:
                (path,) = json.loads(body)["paths"]
                head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{path}"\r\n'
                head += "Content-Type: application/octet-stream\r\n\r\n"
                content = head.encode() + (box.folder / path).read_bytes() + b"\r\n--b--\r\n"
                kind = {"content-type": "multipart/form-data; boundary=b"}
                return self.answer(200, content, kind)
        return self.fails(404, f"{'/'.join(rest)} not found")

    def about(self, box: Machine) -> dict[str, Any]:
        address = self.headers["host"]
        return {
            "id": box.id, "organizationId": "org", "name": box.name, "user": "daytona",
            "env": box.env, "labels": box.labels, "public": False, "networkBlockAll": False,
            "kvm": False, "target": "eu", "cpu": 1, "gpu": 0, "memory": 1, "disk": 3,
            "state": "started", "toolboxProxyUrl": f"http://{address}/api/toolbox",
        }  # fmt: skip

    def fails(self, status: int, message: str) -> None:
        self.answer(status, {"statusCode": status, "message": message})
