"""Questions at a gateway: each is a session there, which keeps the tokens that were sampled.

A session is known by its question's uid. A question that is dealt once more asks the same, under
the same keys, so it gets the answers that are there. At its end the gateway puts the item into
the buffer, with its exact rows.
"""

import logging
import random
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from buffer.errors import GeneratorError
from buffer.generator.api import Api, is_proxied
from buffer.generator.partial import HELD
from buffer.generator.trajectory import Question

if TYPE_CHECKING:
    from openai import OpenAI

log = logging.getLogger(__name__)

_GIVEN_ALREADY = ("logprobs", "top_logprobs")  # every token has one


class Sessions:
    """The sessions of a crew; `sampling` is how the model is sampled in all of them."""

    def __init__(self, url: str, task: str, sampling: dict[str, Any]) -> None:
        parts = urlsplit(url)
        token = unquote(parts.password or parts.username or "")
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._api = Api(
            f"{self._url}/tasks/{task}/sessions", {"Authorization": f"Bearer {token or '-'}"},
            name="the gateway", over=(404, 409, 410),
        )  # fmt: skip
        sampling = {name: value for name, value in sampling.items() if name not in _GIVEN_ALREADY}
        self._sampling = sampling | sampling.pop("extra_body", {})
        self._asked: Counter[bytes] = Counter()
        self._client: OpenAI | None = None

    def open(self, question: Question) -> tuple["OpenAI", str]:
        """A client that speaks to the model in the question's session, and the session."""
        asked: dict[str, Any] = {
            "uid": question["uid"], "instance_id": question["instance_id"],
            "round_number": question["round"], "sampling": self._sampling,
        }  # fmt: skip
        if held := question.get(HELD):
            asked["slot"] = {"id": held["slot"], "fence": str(held["fence"])}
        opened = self._api.call("POST", "", asked)
        if opened is None:
            raise RuntimeError("its session at the gateway is over")
        self._asked.clear()
        random.seed(question["uid"])  # what is drawn for a request is drawn again
        if self._client is None:
            self._client = self._keyed()
        return self._client.with_options(api_key=opened["key"]), opened["session"]

    def end(self, item: dict[str, Any]) -> bool:
        """Let the gateway put the item with its rows into the buffer. False if it refused it for
        good, which is logged."""
        extra = {name: item[name] for name in ("messages", "extra_info")}
        said = {"reward": item["reward"], "extra": extra}
        try:
            done = self._api.call("POST", f"/{item['session']}/finalize", said)
            reason = "" if done else "its session or its slot is over"
        except GeneratorError as refused:
            reason = str(refused)
        if reason:
            log.error(
                "the gateway put no item",
                extra={"instance": str(item["instance_id"]), "reason": reason},
            )
        return not reason

    def _keyed(self) -> "OpenAI":
        """A client whose requests carry keys.

        A request that is sent for the n-th time has its n-th answer, in every process.
        """
        from openai import DefaultHttpxClient, OpenAI

        def key(request: Any) -> None:
            body = blake2b(request.content, digest_size=16).digest()
            if request.headers.get("x-stainless-retry-count", "0") == "0":
                self._asked[body] += 1
            request.headers["Idempotency-Key"] = f"{body.hex()}-{self._asked[body]}"

        http = DefaultHttpxClient(event_hooks={"request": [key]}, trust_env=is_proxied(self._url))
        return OpenAI(api_key="-", base_url=f"{self._url}/v1", http_client=http)
