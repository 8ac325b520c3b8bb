"""A code agent in forty lines: a model writes programs, a sandbox runs them."""

from k8s_agent_sandbox import SandboxClient

from model import ScriptedModel


def run(sandbox, program):
    """Runs a program of the model's. Whatever it does, it does to the sandbox."""
    sandbox.files.write("program.py", program)
    result = sandbox.commands.run("python3 program.py", timeout=30)
    if result.exit_code == 0:
        return True, result.stdout.strip()
    return False, result.stderr.strip().splitlines()[-1]


def main():
    model = ScriptedModel()
    sandbox = SandboxClient().create_sandbox("python-sandbox-template")
    steps = 0
    try:
        observation = "begin"
        while (program := model.next_program(observation)) is not None:
            steps += 1
            worked, observation = run(sandbox, program)
            print(f"step {steps}: the model's program {'printed' if worked else 'failed'}: {observation}")
    finally:
        sandbox.terminate()
    print(f"done: {steps} programs, 1 sandbox, nothing left behind")


if __name__ == "__main__":
    main()
