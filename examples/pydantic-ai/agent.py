"""A Pydantic AI agent whose tool is a sandbox's shell."""

import dataclasses

from k8s_agent_sandbox import SandboxClient
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel


@dataclasses.dataclass
class Computer:
    sandbox: object


def scripted(messages, _info):
    """Stands in for a model: asks for one command, then answers with its output."""
    results = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if not results:
        return ModelResponse(parts=[ToolCallPart("shell", {"command": "uname -s && pwd"})])
    system, folder = results[-1].split()
    return ModelResponse(parts=[TextPart(f"The sandbox runs {system} and its working folder is {folder}.")])


agent = Agent(FunctionModel(scripted), deps_type=Computer)


@agent.tool
def shell(context: RunContext[Computer], command: str) -> str:
    """Runs a shell command in an isolated computer and returns its output."""
    result = context.deps.sandbox.commands.run(command, timeout=60)
    return result.stdout if result.exit_code == 0 else f"exit status {result.exit_code}: {result.stderr}"


if __name__ == "__main__":
    sandbox = SandboxClient().create_sandbox("python-sandbox-template")
    try:
        print(agent.run_sync("Where are you?", deps=Computer(sandbox)).output)
    finally:
        sandbox.terminate()
