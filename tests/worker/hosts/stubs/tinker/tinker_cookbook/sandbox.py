"""What tinker-cookbook 0.6.1 sends to a Sandbox Fusion, and makes of its answers."""

import asyncio
import base64
import json
import urllib.request


class SandboxFusionClient:
    def __init__(self, url):
        self._url = url

    async def run(self, code, files, timeout, language="python"):  # noqa: ASYNC109
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}
        asked = {"code": code, "language": language, "run_timeout": int(timeout), "files": encoded}
        try:
            answer = await asyncio.to_thread(self._post, asked)
        except Exception as failure:  # noqa: BLE001 - as the cookbook does
            return False, {"error": str(failure)}
        if answer.get("status") == "SandboxError":
            return False, {"error": answer.get("message", "SandboxError"), **answer}
        return answer.get("status") == "Success", answer

    def _post(self, asked):
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._url, json.dumps(asked).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    async def close(self):
        pass
