from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, WebSocket, WebSocketDisconnect


def create_fastapi_app(
    env: Callable[[], Any], action_cls: Any, observation_cls: Any, **_: Any
) -> FastAPI:
    app = FastAPI()

    @app.websocket("/ws")
    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        environment = env()
        try:
            while True:
                asked = await socket.receive_json()
                try:
                    if asked["type"] == "reset":
                        found = await environment.reset_async(**asked["data"])
                    else:
                        found = await environment.step_async(action_cls(**asked["data"]))
                    await socket.send_json(found.model_dump())
                except Exception as problem:  # noqa: BLE001
                    await socket.send_json({"message": str(problem)})
        except WebSocketDisconnect:
            environment.close()

    return app
