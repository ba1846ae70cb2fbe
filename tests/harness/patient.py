"""httpx's functions, which wait for an answer as long as a busy machine may need for it.

By itself httpx gives up after 5 s. Nothing here is reused between calls, as with httpx itself.
"""

from functools import partial

import httpx

SECONDS = 150.0

get = partial(httpx.get, timeout=SECONDS)
post = partial(httpx.post, timeout=SECONDS)
put = partial(httpx.put, timeout=SECONDS)
request = partial(httpx.request, timeout=SECONDS)
