"""The list of what a worker may run for a job is read here. Anyone who can write to Redis can put
names into jobs, so a name by itself allows nothing.

    worker.jobs.*        always: the functions that Penstock itself queues
    module.function      exactly that one
    module.*             the public functions that this module itself defines, not what it imports
    https://host/path    a webhook's address, also https://host/hooks/* for all below
    *                    anything, as RQ does

The same list holds for a job's function, its callbacks and its webhooks. `Allowed` is asked by our
worker; `AllowedJob` asks it under RQ's own: rq worker --job-class worker.AllowedJob.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from rq.job import Job
from rq.serializers import DefaultSerializer, PickleSerializer
from rq.utils import import_attribute

from ground import SettingError
from worker.errors import NotAllowed
from worker.settings import ANYTHING, read_names, worker_settings

log = logging.getLogger("penstock.worker")

SETTING = "PENSTOCK_ALLOW"
_ALWAYS = "worker.jobs.*"
_OUR_CALLBACKS = "worker.notices"
_CLIMBS = re.compile(r"(?:^|[/\\])(?:\.|%2e){2}(?:[/\\?#]|%2f|%5c|$)", re.IGNORECASE)
_CALLBACKS = ("success", "failure", "stopped")


class Allowed:
    """The names that one worker runs."""

    def __init__(self, names: str) -> None:
        words = read_names(names)
        self.anything = ANYTHING in words
        self._modules = {word[:-2] for word in (_ALWAYS, *words) if word.endswith(".*")}
        self._exact = words - {word for word in words if word.endswith("*")}
        self._below = tuple(word[:-1] for word in words if word.endswith("/*"))
        self.function = cache(self._function)

    def _function(self, name: str) -> Callable[..., Any]:
        """The function of that name. Raises `NotAllowed`, and then has imported nothing new."""
        found = self._find(name, self._modules)
        if found is None:
            raise NotAllowed("function", name)
        return found

    def callback(self, name: str) -> Callable[..., Any]:
        found = self._find(name, {*self._modules, _OUR_CALLBACKS})
        if found is None:
            raise NotAllowed("callback", name)
        return found

    def webhook(self, url: str) -> None:
        below = url.startswith(self._below) and not _CLIMBS.search(url)
        if not (self.anything or url in self._exact or below):
            raise NotAllowed("webhook", url)

    def ends(self, callbacks: list[str], webhooks: list[str]) -> None:
        """Refuse a job's callbacks and webhooks before the job begins, not when it is over."""
        for name in callbacks:
            self.callback(name)
        for url in webhooks:
            self.webhook(url)

    def names(self, name: str) -> bool:
        """Whether it is allowed by its own name, and not only with its module."""
        return self.anything or name in self._exact

    def _find(self, name: str, modules: set[str]) -> Callable[..., Any] | None:
        if self.names(name):
            return import_attribute(name)
        module, _, attribute = name.rpartition(".")
        if module not in modules or attribute.startswith("_"):
            return None
        found = getattr(import_module(module), attribute, None)
        own = (
            callable(found)
            and not isinstance(found, type)
            and getattr(found, "__module__", "") == module
        )
        return found if own else None


@cache
def allowed(names: str | None) -> Allowed:
    """Read the list. `None`: nothing was said, and a worker that RQ starts runs anything."""
    return Allowed(ANYTHING if names is None else names)


def refused_ends(fields: Mapping[bytes, bytes], allow: Allowed) -> None:
    """Refuse a job, by its hash as it was claimed, if a callback or a webhook of it is not
    allowed."""
    if allow.anything:
        return
    names = (fields.get(f"{kind}_callback_name".encode()) for kind in _CALLBACKS)
    webhooks = json.loads(fields.get(b"webhooks") or b"[]")
    allow.ends([name.decode() for name in names if name], [str(each["url"]) for each in webhooks])


class AllowedJob(Job):
    """A job of RQ's that calls only what `PENSTOCK_ALLOW` names, under whichever worker."""

    @property
    def allowed(self) -> Allowed:
        return allowed(worker_settings().allow or "")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require_no_pickle(self.serializer)

    @property
    def func(self) -> Any:
        names = (getattr(self, f"_{kind}_callback_name") for kind in _CALLBACKS)
        webhooks = [webhook.url for webhook in getattr(self, "webhooks", [])]
        self.allowed.ends([name for name in names if name], webhooks)
        name = str(self.func_name)
        if self.instance is not None and not self.allowed.anything:
            raise NotAllowed("method", name)
        return super().func if self.instance is not None else self.allowed.function(name)

    # RQ calls back also for jobs that never began, when it tidies up after a dead worker.

    @property
    def success_callback(self) -> Any:
        return self._callback("success")

    @property
    def failure_callback(self) -> Any:
        return self._callback("failure")

    @property
    def stopped_callback(self) -> Any:
        return self._callback("stopped")

    def _callback(self, kind: str) -> Any:
        kept, name = getattr(self, f"_{kind}_callback"), getattr(self, f"_{kind}_callback_name")
        if kept is None or not name:
            return None
        try:
            return self.allowed.callback(name)
        except NotAllowed as refusal:
            log.warning("job %s: %s", self.id, refusal)
            return None

    def send_webhooks(self, *args: Any, **kwargs: Any) -> None:
        try:
            self.allowed.ends([], [webhook.url for webhook in self.webhooks])
        except NotAllowed as refusal:
            log.warning("job %s: %s", self.id, refusal)
        else:
            super().send_webhooks(*args, **kwargs)


def checked(job_class: type[Job], allow: Allowed) -> type[Job]:
    """A subclass of that job class with these names: RQ's own code, maintenance for one, uses it in
    a worker."""
    bases = (job_class,) if issubclass(job_class, AllowedJob) else (AllowedJob, job_class)
    return type(job_class.__name__, bases, {"allowed": allow, "__module__": job_class.__module__})


def require_no_pickle(serializer: Any) -> None:
    """Pickle runs what it reads, before any name could be looked at."""
    if serializer in (PickleSerializer, DefaultSerializer):
        raise SettingError(
            SETTING,
            "works only with JSON: pickle runs any code that is put on a queue; start the worker"
            " with --serializer rq.serializers.JSONSerializer",
        )
