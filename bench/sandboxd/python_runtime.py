"""A Python runtime of the documented shape, as the peer of the benchmark: FastAPI on uvicorn, commands split into words
and run without a shell in a worker thread, uploads read whole, downloads as file responses.

    uvicorn --app-dir bench/sandboxd python_runtime:app --port 8888
"""

import os
import shlex
import signal
import subprocess
from pathlib import Path

from fastapi import FastAPI, File, UploadFile
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel

BASE = Path(os.environ.get("SANDBOX_BASE_DIR", "/app"))
LIMIT = float(os.environ.get("SANDBOX_EXEC_TIMEOUT_SECONDS", "300"))

app = FastAPI()


class Command(BaseModel):
    command: str


def inside(path: str) -> Path:
    target = (BASE / path.lstrip("/")).resolve()
    if not target.is_relative_to(BASE.resolve()):
        raise PermissionError(path)
    return target


@app.get("/")
async def health():
    return {"status": "ok", "message": "Sandbox Runtime is active."}


@app.post("/execute")
def execute(request: Command):
    try:
        process = subprocess.Popen(
            shlex.split(request.command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=BASE,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
    except Exception as error:
        return {"stdout": "", "stderr": f"Failed to execute command: {error}", "exit_code": 1}
    return {"stdout": stdout, "stderr": stderr, "exit_code": process.returncode}


@app.post("/upload")
async def upload(file: UploadFile = File(...)):
    target = inside(file.filename)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(await file.read())
    return {"message": f"File '{file.filename}' uploaded successfully."}


@app.get("/download/{path:path}")
async def download(path: str):
    target = inside(path)
    if not target.is_file():
        return JSONResponse({"message": "File not found"}, status_code=404)
    return FileResponse(target, media_type="application/octet-stream", filename=path)


@app.get("/list/{path:path}")
async def listing(path: str):
    return [
        {
            "name": entry.name,
            "size": entry.stat().st_size,
            "type": "directory" if entry.is_dir() else "file",
            "mod_time": entry.stat().st_mtime,
        }
        for entry in os.scandir(inside(path))
    ]
