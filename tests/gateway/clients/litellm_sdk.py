"""litellm, which most agents use: in both dialects, whole and in streams."""

import os

import litellm

gateway, key = os.environ["GATEWAY"], os.environ["KEY"]
litellm.suppress_debug_info = True
tools = [{"type": "function", "function": {
    "name": "sh", "description": "Run.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]  # fmt: skip
history: list = [{"role": "user", "content": "list the files"}]
for number in range(6):
    asked = {"model": "openai/m", "api_base": f"{gateway}/v1", "api_key": key,
             "messages": history, "tools": tools}  # fmt: skip
    if number % 2:
        chunks = list(litellm.completion(**asked, stream=True))
        answer = litellm.stream_chunk_builder(chunks, messages=history)
    else:
        answer = litellm.completion(**asked)
    message = answer.choices[0].message
    history.append(message.model_dump())
    calls = message.tool_calls or []
    history += [{"role": "tool", "tool_call_id": c.id, "content": "done"} for c in calls] or [
        {"role": "user", "content": "go on"}
    ]
claude = litellm.completion(
    model="anthropic/m", api_base=gateway, api_key=key, max_tokens=100,
    messages=[{"role": "user", "content": "another question"}],
)  # fmt: skip
assert claude.choices[0].message is not None
try:
    litellm.completion(
        model="openai/m", api_base=f"{gateway}/v1", api_key=key,
        messages=[{"role": "user", "content": "x" * 100_000}],
    )  # fmt: skip
except litellm.ContextWindowExceededError:
    """What agents compact at."""
else:
    raise AssertionError("a prompt beyond the model's length was served")
