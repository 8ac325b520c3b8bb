"""Scores candidate programs, each in a sandbox of its own."""

import concurrent.futures

from k8s_agent_sandbox import SandboxClient

AT_A_TIME = 4
SORTED = "print(sorted([3, 1, 2]))"
CANDIDATES = [
    SORTED,
    SORTED,
    "print([3, 1, 2])",
    SORTED,
    "raise ValueError('no idea')",
    SORTED,
    SORTED,
    "while True: pass",
]


def score(number):
    sandbox = client.create_sandbox("python-sandbox-template")
    try:
        sandbox.files.write("candidate.py", CANDIDATES[number])
        result = sandbox.commands.run("timeout 3 python3 candidate.py")
    finally:
        sandbox.terminate()
    if result.exit_code == 124:
        return 0.0, "too slow"
    if result.exit_code != 0:
        return 0.0, result.stderr.strip().splitlines()[-1]
    right = result.stdout.strip() == "[1, 2, 3]"
    return (1.0, "") if right else (0.0, "wrong answer")


client = SandboxClient()
with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as workers:
    scores = list(workers.map(score, range(len(CANDIDATES))))
for number, (points, why) in enumerate(scores):
    print(f"candidate {number}: {points}" + (f" ({why})" if why else ""))
print(f"mean score {sum(points for points, _ in scores) / len(scores):.2f} over {len(scores)} sandboxes")
