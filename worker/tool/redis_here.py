"""The Redis that a trainer's process meets the workers on."""

from ground import (
    AnyRedis,
    GroundSettings,
    RedisTarget,
    SettingError,
    parse_redis_url,
    running_server,
    target_of,
)


def redis_here(given: AnyRedis | None = None) -> RedisTarget:
    """The one given, else PENSTOCK_REDIS_URL, else the private server that a `penstock` command
    runs in the data directory. Starts none: it would end with the trainer, and take the jobs along.
    """
    if given is not None:
        return target_of(given)
    settings = GroundSettings.load()
    if settings.redis_url is not None:
        return parse_redis_url(settings.redis_url.get_secret_value())
    found = running_server(settings.data_dir)
    if found is None:
        raise SettingError(
            "PENSTOCK_REDIS_URL",
            "is not set, and no server runs in PENSTOCK_DATA_DIR "
            f"({settings.data_dir.absolute()}): name the Redis that the workers use, "
            "redis://host:6379, here or as `redis_url` in the tool's config",
        )
    return found
