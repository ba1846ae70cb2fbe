"""Output is cut on the worker's side, so that a program cannot flood Redis."""

OUTPUT_LIMIT = 1 << 20  # bytes of UTF-8, for stdout and for stderr


def truncate(text: str, limit: int = OUTPUT_LIMIT) -> tuple[str, bool]:
    """Keep the beginning, at most `limit` bytes of UTF-8, and mark the cut.

    The marker comes on top of the limit. A lone surrogate, which UTF-8 cannot
    carry, becomes `?`.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode(), False
    kept = raw[:limit].decode("utf-8", "ignore")  # a character cut in two is dropped
    return f"{kept}\n[truncated: {len(raw):,} bytes, the first {limit:,} kept]", True
