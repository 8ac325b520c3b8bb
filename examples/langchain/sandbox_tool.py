"""A LangChain tool that runs Python in a sandbox."""

from k8s_agent_sandbox import SandboxClient
from langchain_core.tools import tool


class PythonSandbox:
    """One sandbox for one conversation. Use it as a context manager."""

    def __init__(self, template="python-sandbox-template"):
        self.template = template

    def __enter__(self):
        self.sandbox = SandboxClient().create_sandbox(self.template)
        return self

    def __exit__(self, *_):
        self.sandbox.terminate()

    def tool(self):
        sandbox = self.sandbox

        @tool
        def run_python(program: str) -> str:
            """Runs a Python program in an isolated computer without network and returns what it printed."""
            sandbox.files.write("program.py", program)
            result = sandbox.commands.run("python3 program.py", timeout=60)
            return result.stdout if result.exit_code == 0 else f"failed: {result.stderr}"

        return run_python
