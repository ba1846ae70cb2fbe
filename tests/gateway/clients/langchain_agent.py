"""LangChain's ChatOpenAI: a loop over a tool, whole and in streams."""

import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def sh(command: str) -> str:
    """Run a command."""
    return "done"


model = ChatOpenAI(
    model="m", base_url=os.environ["GATEWAY"] + "/v1", api_key=os.environ["KEY"]
).bind_tools([sh])
history: list = [HumanMessage("list the files")]
for number in range(6):
    if number % 2:
        answer = None
        for chunk in model.stream(history):
            answer = chunk if answer is None else answer + chunk
    else:
        answer = model.invoke(history)
    history.append(answer)
    results = [ToolMessage(sh.invoke(c["args"]), tool_call_id=c["id"]) for c in answer.tool_calls]
    history += results or [HumanMessage("go on")]
