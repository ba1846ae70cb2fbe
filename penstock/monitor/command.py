"""`penstock monitor`: serve the page."""

import click

from ground.extras import needed_by
from penstock.interrupts import Loading
from penstock.named_or_own_redis import fleets_redis, require_one_primary
from penstock.options import examples, given_settings, settings_options, without_token_option
from penstock.settings import MonitorSettings


@click.command(
    "monitor",
    epilog=examples("""
Examples:

  penstock monitor                                   on http://127.0.0.1:8890
  PENSTOCK_MONITOR_TOKEN=… penstock monitor          with actions, for those who know the token
  penstock --redis-url redis://10.0.0.5 monitor --host 0.0.0.0

/livez says whether the monitor runs, and /healthz whether Redis answers. /metrics has all
figures of the fleet for Prometheus.
"""),
)
@click.option("--host", help="Address to listen on [PENSTOCK_MONITOR_HOST].")
@click.option("--port", type=int, help="Port; 0 picks a free one [PENSTOCK_MONITOR_PORT].")
@without_token_option
@settings_options
def command(host: str | None, port: int | None, without_token: bool) -> None:
    """Serve a web page with queues, workers, gates, groups and jobs, live."""
    with Loading(), needed_by("penstock monitor"):
        from ground.http import listen, require_token, serve_until_stopped
        from penstock.monitor.app import make_app

    ground = given_settings()
    require_one_primary(ground)
    given = {"monitor_host": host, "monitor_port": port}
    settings = MonitorSettings.load(**{k: v for k, v in given.items() if v is not None})
    require_token(
        settings.monitor_host, settings.monitor_token, "PENSTOCK_MONITOR_TOKEN",
        without=without_token,
    )  # fmt: skip
    listener = listen(settings.monitor_host, settings.monitor_port, "PENSTOCK_MONITOR_PORT")
    with fleets_redis(ground) as url:
        click.echo(f"http://{settings.monitor_host}:{listener.getsockname()[1]}")
        serve_until_stopped(listener, make_app(url, ground.run, settings), grace=1)
