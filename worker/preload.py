"""Imported once by a worker's parent process, so that no job pays for it:

    rq worker -c worker.preload --serializer rq.serializers.JSONSerializer code

RQ reads settings from such a module, and there are none here.
"""

import jail.fusion.client
import jail.sessions.shared  # noqa: F401
