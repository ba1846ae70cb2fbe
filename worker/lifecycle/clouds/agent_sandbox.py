"""Session sandboxes in Kubernetes, by agent-sandbox and its own client.

A sandbox is a SandboxClaim: its name is the sandbox's, and the tags are its labels, both from its
creation on. A claim takes a sandbox of a warm pool, which says what it is made of.
"""

import asyncio
import hashlib
import math
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ground import SettingError
from worker.lifecycle.clouds import shell
from worker.lifecycle.clouds.cloud import LATER, Cloud, refused, wait_after
from worker.lifecycle.provider import Kind, SandboxRef, SandboxSpec, Verdict
from worker.lifecycle.settings import LifecycleSettings

try:
    import httpx
    import k8s_agent_sandbox.exceptions as failures
    from k8s_agent_sandbox.async_sandbox_client import AsyncSandboxClient
    from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
    from k8s_agent_sandbox.utils import construct_sandbox_claim_lifecycle_spec
    from kubernetes_asyncio.client import ApiException
    from kubernetes_asyncio.config import ConfigException
except ImportError as missing:
    raise ImportError(
        f"agent-sandbox's client cannot be imported ({missing}):"
        " pip install 'penstock-rl[agent-sandbox]'"
    ) from missing

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_OPTIONS = ("volume_claim_templates", "pod_metadata", "annotations", "labels")
_LONGEST = 10 * 365 * 86400


class ClaimRefused(Exception):
    """The request asks for what a claim does not have."""


class ClaimGone(Exception):
    """There is no such claim, or it is being deleted."""


def _by_status(problem: ApiException) -> Verdict | None:
    over_quota = problem.status == 403 and "exceeded quota" in str(problem.body)
    match problem.status:
        case 409:
            return Verdict(Kind.EXISTS)
        case 429:
            return Verdict(Kind.THROTTLED, wait_after(problem.headers), nothing_made=True)
        case 403 if over_quota:
            return Verdict(Kind.THROTTLED, LATER, nothing_made=True)
        case 401 | 403:
            return refused("Let this account create, get, list, watch and delete sandboxclaims")
        case 400 | 404 | 422:
            return refused("Check the namespace, and that agent-sandbox is installed")
    return None


class AgentSandboxProvider(Cloud):
    """A spec's `image` names a SandboxWarmPool.

    `options` may be `volume_claim_templates`, `pod_metadata`, `annotations` and `labels` of the
    claim. The cluster is that of the pod or of the kubeconfig.
    """

    name = "agent-sandbox"
    folder = "."  # its files are passed by paths from where commands start
    gone = (ClaimGone,)
    doubtful = (failures.SandboxError, httpx.HTTPError)
    verdicts = (
        (ApiException, _by_status),
        # The second is of one that was deleted while it started.
        ((ClaimGone, failures.SandboxMetadataError), Verdict(Kind.GONE)),
        (
            (failures.SandboxWarmPoolNotFoundError, failures.SandboxTemplateNotFoundError),
            Verdict(Kind.FATAL, advice="Check the image: it names a SandboxWarmPool"),
        ),
        (ClaimRefused, refused()),
        (ConfigException, refused("Run it in the cluster, or set KUBECONFIG")),
    )

    def __init__(self, settings: LifecycleSettings | None = None) -> None:
        super().__init__()
        self._settings = settings or LifecycleSettings.load()
        if not self._settings.agent_sandbox_url:
            raise SettingError(
                "PENSTOCK_AGENT_SANDBOX_URL", "is not set: it is the address of the sandbox router"
            )
        self._made: Any = None

    @property
    def scope(self) -> str:
        return f"{self.name}:{self._settings.agent_sandbox_url}/{self._namespace}"

    @property
    def _namespace(self) -> str:
        return self._settings.agent_sandbox_namespace

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        if not spec.image:
            raise ClaimRefused("image must name a SandboxWarmPool")
        if spec.cpu is not None or spec.memory_mb is not None:
            raise ClaimRefused("cpu and memory_mb are set by the pool's template")
        options = dict(spec.options)
        if unknown := sorted(set(options) - set(_OPTIONS)):
            raise ClaimRefused(f"options: {unknown[0]!r:.100} is none of {', '.join(_OPTIONS)}")
        labels = {**(options.pop("labels", None) or {}), **_labels(tags)}
        await self._helper.create_sandbox_claim(
            name, spec.image, self._namespace, labels=labels, env=dict(spec.env) or None,
            lifecycle=construct_sandbox_claim_lifecycle_spec(min(math.ceil(ttl), _LONGEST)),
            **options,
        )  # fmt: skip
        return SandboxRef(name, name)

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None:  # noqa: ASYNC109
        async with asyncio.timeout(timeout):
            await self._helper.wait_for_claim_ready(ref.id, self._namespace, math.ceil(timeout))
            await super().wait_ready(ref, timeout)

    async def reach(self, id: str) -> Any:
        await self._claim(id)  # for the client waits for one that is absent
        return await self._client.get_sandbox(id, self._namespace)

    async def disconnect(self, sandbox: Any) -> None:
        await sandbox.close_connection()

    async def lives(self, id: str) -> bool:
        conditions = ((await self._claim(id)).get("status") or {}).get("conditions") or []
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    async def look_up(self, name: str) -> SandboxRef:
        await self._claim(name)
        return SandboxRef(name, name)

    def inside(self, sandbox: Any) -> "_Inside":
        return _Inside(sandbox)

    async def terminate(self, id: str) -> None:
        self._opened.pop(id, None)
        await self._helper.delete_sandbox_claim(id, self._namespace)
        # Its finalizers run on after the answer. Whoever ends it has a limit for this.
        pause = 0.05
        while await self._helper.get_sandbox_claim(id, self._namespace) is not None:
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        selector = ",".join(f"{key}={text}" for key, text in _labels(tags).items())
        for name in await self._helper.list_sandbox_claims(self._namespace, selector or None):
            yield SandboxRef(name, name)

    async def close(self) -> None:
        self._opened.clear()
        made, self._made = self._made, None
        if made is not None:
            await made.close()

    @property
    def _client(self) -> Any:
        """Made when first used. Its own clean-up at the end of a process is off: sandboxes belong
        to the fleet."""
        if self._made is None:
            router = SandboxDirectConnectionConfig(api_url=self._settings.agent_sandbox_url)
            self._made = AsyncSandboxClient(connection_config=router, cleanup=False)
        return self._made

    @property
    def _helper(self) -> Any:
        return self._client.k8s_helper

    async def _claim(self, name: str) -> dict[str, Any]:
        found = await self._helper.get_sandbox_claim(name, self._namespace)
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise ClaimGone(f"there is no claim {name} in namespace {self._namespace}")
        return dict(found)


class _Inside:
    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    async def line(self, line: str, within: float) -> str:
        ran = await self._sandbox.commands.run(line, command_timeout=within)
        return str(ran.stdout)

    async def put(self, path: str, content: bytes) -> None:
        await self._sandbox.files.write(path, content, timeout=int(shell.FILE_WITHIN))

    async def get(self, path: str) -> bytes:
        return bytes(await self._sandbox.files.read(path, timeout=int(shell.FILE_WITHIN)))


def _labels(tags: Mapping[str, str]) -> dict[str, str]:
    """A label has fewer characters than a tag: what does not fit is known by its digest."""
    return {
        key: text
        if _LABEL.fullmatch(text)
        else f"sha-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        for key, text in tags.items()
    }
