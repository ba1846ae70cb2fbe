"""Run the buffer server until it is told to end."""

import asyncio
import socket

import uvicorn

from buffer.http.app import make_app
from buffer.settings import BufferSettings
from ground import RedisTarget, SettingError


def serve(target: RedisTarget | str, run: str, settings: BufferSettings) -> None:
    """Listen on the settings' address; SIGTERM and Ctrl-C end it in order."""
    listener = _listen(settings.buffer_host, settings.buffer_port)
    bound = settings.model_copy(update={"buffer_port": listener.getsockname()[1]})
    config = uvicorn.Config(
        make_app(target, run, bound), log_config=None, access_log=False, backlog=4096,
        timeout_keep_alive=75, timeout_graceful_shutdown=10, server_header=False,
        proxy_headers=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    config.load()
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as taken:
        listener.close()
        raise SettingError(
            "PENSTOCK_BUFFER_PORT", f"{host}:{port} cannot be listened on: {taken.strerror}"
        ) from None
    listener.listen(4096)
    return listener
