"""A conversation with a scripted model that uses the sandbox once."""

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from sandbox_tool import PythonSandbox

PROGRAM = "a, b = 0, 1\nfor _ in range(11): a, b = b, a + b\nprint(a)"
SCRIPT = [
    AIMessage(content="", tool_calls=[{"name": "run_python", "args": {"program": PROGRAM}, "id": "1"}]),
    AIMessage(content="The eleventh Fibonacci number is 89."),
]

with PythonSandbox() as sandbox:
    tool = sandbox.tool()
    model = GenericFakeChatModel(messages=iter(SCRIPT))
    messages = [HumanMessage("What is the eleventh Fibonacci number?")]
    answer = model.invoke(messages)
    while answer.tool_calls:
        messages.append(answer)
        for call in answer.tool_calls:
            print(f"model asks for {call['name']}")
            result = tool.invoke(call["args"])
            print(f"tool answered: {result.strip()}")
            messages.append(ToolMessage(result, tool_call_id=call["id"]))
        answer = model.invoke(messages)
    print(f"model says: {answer.content}")
