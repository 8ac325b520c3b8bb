"""Writes the wheel `agentic-sandbox-client`: no code, only a dependency on this SDK, which contains the package of that name.

    python alias_wheel.py FOLDER VERSION

Guides for upstream's client install a distribution of this name. The content depends on the version alone, so that builds are reproducible.
"""

import base64
import hashlib
import pathlib
import sys
import zipfile

NAME = "agentic-sandbox-client"
# The earliest time that a zip archive can state.
EPOCH = (1980, 1, 1, 0, 0, 0)


def files(version):
    folder = f"{NAME.replace('-', '_')}-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\nLicense: Apache-2.0\nRequires-Python: >=3.10\n"
        "Summary: Another name of agent-sandbox-sdk, which contains the package agentic_sandbox_client.\n"
        f"Requires-Dist: agent-sandbox-sdk[compat]=={version}\n"
        f"Provides-Extra: tracing\nRequires-Dist: agent-sandbox-sdk[tracing]=={version}; extra == 'tracing'\n"
    )
    yield f"{folder}/METADATA", metadata
    yield f"{folder}/WHEEL", "Wheel-Version: 1.0\nGenerator: agent-sandbox\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write(folder, version):
    path = pathlib.Path(folder) / f"{NAME.replace('-', '_')}-{version}-py3-none-any.whl"
    records, record = [], f"{NAME.replace('-', '_')}-{version}.dist-info/RECORD"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in files(version):
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(text.encode())}\n")
            wheel.writestr(zipfile.ZipInfo(name, EPOCH), text)
        wheel.writestr(zipfile.ZipInfo(record, EPOCH), "".join(records) + f"{record},,\n")
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: alias_wheel.py FOLDER VERSION")
    print(write(sys.argv[1], sys.argv[2]))
