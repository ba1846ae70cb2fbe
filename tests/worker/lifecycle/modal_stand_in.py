"""Modal, as far as its unmodified client can see: a gRPC server on loopback.

Commands run on this machine, each sandbox in a folder of its own.
"""

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2 as api
from modal_proto import task_command_router_pb2 as router
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

TERMINATED = 137
SECRET = "as-test"
RATE_LIMIT = "Sandbox creation rate limit (5/s) exceeded"


def jwt() -> str:
    return f"{_part({'alg': 'none'})}.{_part({'exp': int(time.time()) + 3600})}.x"


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def complete(base: type, known: type) -> type:
    """The service with every call that `known` lacks answered as unimplemented."""

    def missing(name: str) -> Any:
        async def call(self: Any, stream: Any) -> None:
            raise GRPCError(Status.UNIMPLEMENTED, name)

        return call

    names = [name for name in base.__abstractmethods__ if name not in vars(known)]
    return type(known.__name__, (known, base), {name: missing(name) for name in names})


@dataclass
class Box:
    id: str
    name: str
    tags: list[Any]
    folder: Path
    timeout: float
    created: float = field(default_factory=time.time)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    ports: list[int] = field(default_factory=list)


class Cloud:
    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="modal-"))
        self.boxes: dict[str, Box] = {}
        self.processes: dict[str, Any] = {}
        self.url = ""
        self.refuse_creates: list[GRPCError] = []
        self.lost_answers: list[GRPCError] = []  # of sandboxes that were made all the same
        self.throttled_for = 0.0  # seconds after which Modal's client is told to ask again
        self.outputs_late = 0.0  # seconds by which what a command prints comes after its end
        self.creates = 0

    def living(self) -> list[Box]:
        return [box for box in self.boxes.values() if box.code is None]

    def box(self, id: str) -> Box:
        if id not in self.boxes:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox {id}")
        return self.boxes[id]

    def end(self, box: Box, code: int) -> None:
        if box.code is None:
            box.code = code
            box.over.set()
            shutil.rmtree(box.folder, ignore_errors=True)


class ControlPlane:
    cloud: Cloud

    async def ClientHello(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(api.ClientHelloResponse())

    async def AuthTokenGet(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(api.AuthTokenGetResponse(token=jwt()))

    async def EnvironmentGetOrCreate(self, stream: Any) -> None:
        await stream.recv_message()
        settings = api.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api.EnvironmentMetadata(name="main", settings=settings)
        await stream.send_message(
            api.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)
        )

    async def AppGetOrCreate(self, stream: Any) -> None:
        await stream.recv_message()
        if stream.metadata.get("x-modal-token-secret") != SECRET:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        await stream.send_message(api.AppGetOrCreateResponse(app_id="ap-1"))

    async def ImageGetOrCreate(self, stream: Any) -> None:
        asked = await stream.recv_message()
        if any("absent" in line for line in asked.image.dockerfile_commands):
            raise GRPCError(Status.NOT_FOUND, "image 'absent' was not found")
        status = api.GenericResult(status=api.GenericResult.GENERIC_STATUS_SUCCESS)
        await stream.send_message(api.ImageGetOrCreateResponse(image_id="im-1", result=status))

    async def SandboxCreateV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        self.cloud.creates += 1
        if self.cloud.throttled_for:
            policy = api.RPCRetryPolicy(retry_after_secs=self.cloud.throttled_for)
            raise GRPCError(Status.RESOURCE_EXHAUSTED, RATE_LIMIT, [policy])
        if self.cloud.refuse_creates:
            raise self.cloud.refuse_creates.pop(0)
        name = asked.definition.name
        if name and any(box.name == name for box in self.cloud.living()):
            raise GRPCError(Status.ALREADY_EXISTS, f"sandbox {name} exists")
        id = f"sb-{len(self.cloud.boxes) + 1}"
        folder = self.cloud.root / id
        folder.mkdir()
        timeout = float(asked.definition.timeout_secs)
        box = self.cloud.boxes[id] = Box(id, name, list(asked.tags), folder, timeout)
        box.ports = [port.port for port in asked.definition.open_ports.ports]
        asyncio.get_running_loop().call_later(timeout, self.cloud.end, box, 124)
        if self.cloud.lost_answers:
            raise self.cloud.lost_answers.pop(0)
        await stream.send_message(
            api.SandboxCreateV2Response(
                sandbox_id=id, task_id=f"ta-{id}V",
                command_router_access=api.CommandRouterAccess(url=self.cloud.url, jwt=jwt()),
            )
        )  # fmt: skip

    async def SandboxWaitV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        box = self.cloud.box(asked.sandbox_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(asked.timeout):
                await box.over.wait()
        result = None
        if box.code is not None:
            status = api.GenericResult.GENERIC_STATUS_TERMINATED
            result = api.GenericResult(status=status, exitcode=box.code)
        await stream.send_message(api.SandboxWaitResponse(result=result))

    async def SandboxTerminateV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        self.cloud.end(self.cloud.box(asked.sandbox_id), TERMINATED)
        await stream.send_message(api.SandboxTerminateResponse())

    async def SandboxListV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        wanted = {(tag.tag_name, tag.tag_value) for tag in asked.tags}
        found = [
            api.SandboxInfo(id=box.id, created_at=box.created, tags=box.tags, name=box.name)
            for box in sorted(self.cloud.living(), key=lambda box: -box.created)
            if wanted <= {(tag.tag_name, tag.tag_value) for tag in box.tags}
            and (not asked.before_timestamp or box.created < asked.before_timestamp)
        ]
        await stream.send_message(api.SandboxListResponse(sandboxes=found))

    async def SandboxTagsGetV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        tags = self.cloud.box(asked.sandbox_id).tags
        await stream.send_message(api.SandboxTagsGetResponse(tags=tags))

    async def SandboxGetFromNameV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        for box in self.cloud.living():
            if box.name == asked.sandbox_name:
                await stream.send_message(api.SandboxGetFromNameResponse(sandbox_id=box.id))
                return
        raise GRPCError(Status.NOT_FOUND, f"no sandbox {asked.sandbox_name}")

    async def SandboxGetFromName(self, stream: Any) -> None:
        await stream.recv_message()
        raise GRPCError(Status.NOT_FOUND, "no such sandbox of the first version")

    async def SandboxGetTaskIdV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        box = self.cloud.box(asked.sandbox_id)
        if box.code is not None:
            result = api.GenericResult(
                status=api.GenericResult.GENERIC_STATUS_TERMINATED, exitcode=box.code
            )
            await stream.send_message(
                api.SandboxGetTaskIdResponse(task_id=f"ta-{box.id}V", task_result=result)
            )
            return
        await stream.send_message(api.SandboxGetTaskIdResponse(task_id=f"ta-{box.id}V"))

    async def SandboxGetTunnelsV2(self, stream: Any) -> None:
        asked = await stream.recv_message()
        ports = self.cloud.box(asked.sandbox_id).ports
        await stream.send_message(
            api.SandboxGetTunnelsResponse(
                tunnels=[
                    api.TunnelData(host=f"{port}.test", port=443, container_port=port)
                    for port in ports
                ],
                result=api.GenericResult(status=api.GenericResult.GENERIC_STATUS_SUCCESS),
            )
        )

    async def SandboxGetCommandRouterAccess(self, stream: Any) -> None:
        asked = await stream.recv_message()
        id = asked.sandbox_id or asked.task_id.removeprefix("ta-").removesuffix("V")
        if self.cloud.box(id).code is not None:
            raise GRPCError(Status.NOT_FOUND, f"sandbox {id} has ended")
        await stream.send_message(
            api.SandboxGetCommandRouterAccessResponse(url=self.cloud.url, jwt=jwt())
        )


class Commands:
    cloud: Cloud

    async def TaskExecStart(self, stream: Any) -> None:
        asked = await stream.recv_message()
        box = self.cloud.box(asked.task_id.removeprefix("ta-").removesuffix("V"))
        if box.code is not None:
            raise GRPCError(Status.NOT_FOUND, f"sandbox {box.id} has ended")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *asked.command_args, cwd=asked.workdir or box.folder, stdin=pipe, stdout=pipe,
            stderr=pipe, env={"PATH": "/usr/bin:/bin", **_env(asked)},
        )  # fmt: skip
        self.cloud.processes[asked.exec_id] = running = Running(process)
        if asked.timeout_secs:
            asyncio.get_running_loop().call_later(asked.timeout_secs, running.time_out)
        await stream.send_message(router.TaskExecStartResponse())

    async def TaskExecStdinWriteStream(self, stream: Any) -> None:
        running = None
        async for asked in stream:
            match asked.WhichOneof(asked.DESCRIPTOR.oneofs[0].name):
                case "start":
                    running = self.cloud.processes[asked.start.exec_id]
                case "data":
                    running.process.stdin.write(asked.data)
                case "end":
                    running.process.stdin.close()
        await stream.send_message(router.TaskExecStdinWriteStreamResponse())

    async def TaskExecStdinWrite(self, stream: Any) -> None:
        asked = await stream.recv_message()
        running = self.cloud.processes[asked.exec_id]
        if asked.data:
            running.process.stdin.write(asked.data)
        if asked.eof:
            running.process.stdin.close()
        await stream.send_message(router.TaskExecStdinWriteResponse())

    async def TaskExecStdioRead(self, stream: Any) -> None:
        asked = await stream.recv_message()
        running = self.cloud.processes[asked.exec_id]
        is_err = asked.file_descriptor == router.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR
        source = running.process.stderr if is_err else running.process.stdout
        if self.cloud.outputs_late:
            await running.process.wait()
            await asyncio.sleep(self.cloud.outputs_late)
        while data := await source.read(65536):
            await stream.send_message(router.TaskExecStdioReadResponse(data=data))

    async def TaskExecWait(self, stream: Any) -> None:
        asked = await stream.recv_message()
        running = self.cloud.processes[asked.exec_id]
        code = await running.process.wait()
        if running.timed_out:
            raise GRPCError(Status.DEADLINE_EXCEEDED, "the command was out of time")
        await stream.send_message(
            router.TaskExecWaitResponse(signal=-code) if code < 0
            else router.TaskExecWaitResponse(code=code)
        )  # fmt: skip

    async def TaskExecPoll(self, stream: Any) -> None:
        asked = await stream.recv_message()
        code = self.cloud.processes[asked.exec_id].process.returncode
        await stream.send_message(
            router.TaskExecPollResponse()
            if code is None
            else router.TaskExecPollResponse(code=code)
        )


@dataclass
class Running:
    process: Any
    timed_out: bool = False

    def time_out(self) -> None:
        if self.process.returncode is None:
            self.timed_out = True
            self.process.kill()


def _env(asked: Any) -> dict[str, str]:
    """Clients before 1.6.2 send it by itself; later ones among their secrets."""
    sources = getattr(asked, "secret_sources", ())
    return dict(asked.env) | {
        key: value for source in sources for key, value in source.env.contents.items()
    }


class Recording(Server):
    """Knows its connections, to close them."""

    def _protocol_factory(self) -> Any:
        self.protocols = [*getattr(self, "protocols", []), super()._protocol_factory()]
        return self.protocols[-1]


class StandIn:
    """`with StandIn() as modal: modal.cloud, modal.url`"""

    def __enter__(self) -> Self:
        self.cloud = Cloud()
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), daemon=True
        )
        self._thread.start()
        assert started.wait(100)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        shutil.rmtree(self.cloud.root, ignore_errors=True)

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        services = []
        for base, known in ((ModalClientBase, ControlPlane), (TaskCommandRouterBase, Commands)):
            service = complete(base, known)()
            service.cloud = self.cloud
            services.append(service)
        server = Recording(services, status_details_codec=custom_detail_codec)
        await server.start("127.0.0.1", 0)
        port = server._server.sockets[0].getsockname()[1]
        self.url = self.cloud.url = f"http://127.0.0.1:{port}"
        started.set()
        await self._over.wait()
        server.close()
        for protocol in getattr(server, "protocols", []):  # Python 3.12 waits for the last of them
            if transport := getattr(protocol.connection, "_transport", None):
                transport.abort()
        await server.wait_closed()
        await asyncio.sleep(0.05)  # in which the loop closes what was aborted
