"""Anthropic's SDK: a loop over tools, whole and in streams; its counting of tokens."""

import os

import anthropic

client = anthropic.Anthropic(base_url=os.environ["GATEWAY"], api_key=os.environ["KEY"])
tools = [{"name": "sh", "description": "Run.", "input_schema": {"type": "object"}}]
history: list = [{"role": "user", "content": "list the files"}]
assert client.messages.count_tokens(model="m", messages=history, tools=tools).input_tokens > 5
for number in range(6):
    asked = {"model": "m", "max_tokens": 500, "messages": history, "tools": tools}
    if number % 2:
        with client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**asked)
    history.append({"role": "assistant", "content": answer.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
        for block in answer.content
        if block.type == "tool_use"
    ]
    assert (answer.stop_reason == "tool_use") == bool(results)
    history.append({"role": "user", "content": results or "go on"})
try:
    client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "http://x"}}]}])  # fmt: skip
except anthropic.BadRequestError as refused:
    assert "only text is served" in str(refused)  # noqa: PT017
else:
    raise AssertionError("an image was served")
