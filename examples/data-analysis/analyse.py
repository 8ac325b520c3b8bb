"""analyse.py TABLE REPORT: computes a report from a table, in a sandbox."""

import json
import pathlib
import sys

from k8s_agent_sandbox import SandboxClient


def main(table, report):
    rows = pathlib.Path(table).read_text()
    program = (pathlib.Path(__file__).parent / "summary.py").read_text()
    sandbox = SandboxClient().create_sandbox("python-sandbox-template")
    try:
        sandbox.files.write("table.csv", rows)
        print(f"uploaded {table} ({len(rows.splitlines()) - 1} rows)")
        sandbox.files.write("summary.py", program)
        result = sandbox.commands.run("python3 summary.py table.csv report.json")
        if result.exit_code != 0:
            sys.exit(f"the program failed:\n{result.stderr}")
        content = sandbox.files.read("report.json")
    finally:
        sandbox.terminate()
    pathlib.Path(report).write_bytes(content)
    print(f"{report}: " + ", ".join(f"{region} {total}" for region, total in json.loads(content).items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
