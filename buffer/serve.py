"""Run the buffer server until it is told to end."""

from buffer.http.app import make_app
from buffer.settings import BufferSettings
from ground import RedisTarget, listen, serve_until_told, warn_if_exposed


def serve(target: RedisTarget | str, run: str, settings: BufferSettings) -> None:
    """Listen on the settings' address; SIGTERM and Ctrl-C end it in order."""
    host = settings.buffer_host
    warn_if_exposed(host, settings.buffer_token, "PENSTOCK_BUFFER_TOKEN")
    listener = listen(host, settings.buffer_port, "PENSTOCK_BUFFER_PORT")
    bound = settings.model_copy(update={"buffer_port": listener.getsockname()[1]})
    serve_until_told(listener, make_app(target, run, bound))
