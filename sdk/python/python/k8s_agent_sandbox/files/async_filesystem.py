"""Generated from the synchronous module by `generate_async.py`; do not edit."""

import io
import logging
import posixpath
import urllib.parse
from typing import Any, BinaryIO, List, Optional, Union

from agent_sandbox._waiting import _aio

from ..async_connector import AsyncSandboxConnector
from ..models import FileEntry
from ..trace_manager import note, async_trace_span

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20


def _sandboxd_endpoint(path: str) -> str:
    """The whole path as one URL segment; dots are percent-encoded so that no proxy normalises them."""
    dots = {".": "%2E", "..": "%2E%2E"}
    encoded = [dots.get(segment) or urllib.parse.quote(segment, safe="") for segment in path.split("/")]
    return "v1/files/" + "%2F".join(encoded)


def _check_binary(content: Any) -> None:
    if isinstance(content, io.TextIOBase):
        raise TypeError("File content must be opened in binary mode.")
    if not callable(getattr(content, "read", None)):
        raise TypeError("File content must be bytes, str, or a binary file object.")


def _read_piece(content: BinaryIO) -> bytes:
    piece = content.read(_CHUNK)
    if isinstance(piece, str):
        raise TypeError("File content must be opened in binary mode.")
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise TypeError("Binary file objects must return bytes from read().")
    return bytes(piece)


class AsyncFilesystem:
    """Reads, writes, lists and tests files."""

    def __init__(self, connector: AsyncSandboxConnector, tracer: Any, trace_service_name: str) -> None:
        self.connector = connector
        self.tracer = tracer
        self.trace_service_name = trace_service_name

    @staticmethod
    def _safe_upload_path(path: str) -> str:
        """Checks that a path is relative and does not leave its base."""
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in path):
            raise ValueError(f"Upload path contains ASCII control characters: {path!r}")
        if not path.strip():
            raise ValueError("Upload path cannot be empty.")
        normal = posixpath.normpath(path).lstrip("/")
        if not normal or normal == ".":
            raise ValueError(f"Upload path '{path}' does not name a file.")
        if ".." in normal.split("/"):
            raise ValueError(f"Upload path '{path}' escapes the sandbox root.")
        return normal

    @async_trace_span("write")
    async def write(
        self,
        path: str,
        content: Union[bytes, str, BinaryIO],
        timeout: int = 60,
        allow_unsafe_paths: bool = False,
    ) -> None:
        """Writes a file. A binary file object is read from its current position and sent in chunks, once."""
        if isinstance(content, str):
            content = content.encode()
        elif isinstance(content, (bytearray, memoryview)):
            content = bytes(content)
        elif not isinstance(content, bytes):
            _check_binary(content)
        note(self, file_path=path, **({"file_size": len(content)} if isinstance(content, bytes) else {}))
        if not allow_unsafe_paths:
            path = self._safe_upload_path(path)
        sandboxd = self.connector.is_sandboxd()
        if isinstance(content, bytes):
            if sandboxd:
                headers = {"Content-Type": "application/octet-stream"}
                endpoint = _sandboxd_endpoint(path)
                await self.connector.send_request("PUT", endpoint, data=content, headers=headers, timeout=timeout)
            else:
                files = {"file": (path, content)}
                await self.connector.send_request("POST", "upload", files=files, timeout=timeout)
        else:
            await self._write_pieces(path, content, sandboxd)
        logger.info("File '%s' uploaded successfully.", path)

    async def _write_pieces(self, path: str, content: BinaryIO, sandboxd: bool) -> None:
        from ..async_connector import _body

        headers = {"Content-Type": "application/octet-stream"}
        head, tail = b"", b""
        if not sandboxd:
            head, _, tail = _body({"files": {"file": (path, b"")}}, headers)
        method, endpoint = ("PUT", _sandboxd_endpoint(path)) if sandboxd else ("POST", "upload")
        upload = await self.connector.open_upload(method, endpoint, headers)
        try:
            piece = head or _read_piece(content)
            while piece:
                if not await _aio(upload.send(piece)):
                    break
                piece = _read_piece(content)
            if tail:
                await _aio(upload.send(tail))
        except BaseException:
            await _aio(upload.abort())
            raise
        await _aio(upload.finish())

    @async_trace_span("read")
    async def read(self, path: str, timeout: int = 60, allow_unsafe_paths: bool = False) -> bytes:
        """Reads a whole file."""
        note(self, file_path=path)
        endpoint = self._download_endpoint(path, allow_unsafe_paths)
        response = await self.connector.send_request("GET", endpoint, timeout=timeout)
        note(self, file_size=len(response.content))
        return response.content

    def _download_endpoint(self, path: str, allow_unsafe_paths: bool) -> str:
        if not allow_unsafe_paths:
            path = self._safe_upload_path(path)
        if self.connector.is_sandboxd():
            return _sandboxd_endpoint(path)
        return f"download/{urllib.parse.quote(path, safe='')}"

    @async_trace_span("read_to")
    async def read_to(
        self,
        path: str,
        destination: Any,
        timeout: int = 60,
        allow_unsafe_paths: bool = False,
        max_bytes: Optional[int] = None,
    ) -> int:
        """Copies a file in chunks into a writable object, and returns the number of bytes.

        With `max_bytes` a larger file is a RuntimeError: before anything is read, when its size is announced.
        """
        if not callable(getattr(destination, "write", None)):
            raise TypeError("Download destination must provide a write(bytes) method.")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
            raise ValueError("max_bytes must be an integer greater than or equal to zero, or None.")
        note(self, file_path=path)
        endpoint = self._download_endpoint(path, allow_unsafe_paths)
        response = await self.connector.send_request("GET", endpoint, timeout=timeout, stream=True)
        announced = response.headers.get("Content-Length", "")
        try:
            if max_bytes is not None and announced.isdigit() and int(announced) > max_bytes:
                raise RuntimeError(f"File size exceeds limit of {max_bytes} bytes.")
            total = 0
            while piece := await _aio(response.stream.next()):
                left = len(piece) if max_bytes is None else max_bytes - total
                kept, over = piece[:left], len(piece) > left
                total += await self._store(destination, kept)
                if over:
                    raise RuntimeError(f"File size exceeds limit of {max_bytes} bytes.")
        finally:
            await _aio(response.stream.close())
        note(self, file_size=total)
        return total

    async def _store(self, destination: Any, piece: bytes) -> int:
        written = 0
        while written < len(piece):
            count = await self._put(destination, piece[written:])
            if count is None or count <= 0:
                raise OSError("Download destination did not accept file content.")
            if count > len(piece) - written:
                raise OSError("Download destination reported an invalid write count.")
            written += count
        return written

    async def _put(self, destination: Any, piece: bytes) -> Any:
        count = destination.write(piece)
        if hasattr(count, "__await__"):
            count = await count
        return count

    @async_trace_span("list")
    async def list(self, path: str, timeout: int = 60) -> List[FileEntry]:
        """The entries of a directory."""
        note(self, file_path=path)
        if self.connector.is_sandboxd():
            response = await self.connector.send_request("GET", _sandboxd_endpoint(path), timeout=timeout)
            listing = self._decoded(response)
            if not isinstance(listing, dict) or "entries" not in listing:
                raise RuntimeError(f"Server returned invalid directory listing: {listing}")
            raw, convert = listing["entries"] or [], FileEntry.from_sandboxd
        else:
            endpoint = f"list/{urllib.parse.quote(path, safe='')}"
            response = await self.connector.send_request("GET", endpoint, timeout=timeout)
            raw, convert = self._decoded(response) or [], FileEntry.from_legacy
        try:
            known = [convert(entry) for entry in raw if entry.get("type") in ("file", "directory")]
        except Exception as error:
            raise RuntimeError(f"Server returned invalid file entry format: {raw}") from error
        note(self, file_count=len(known))
        return known

    @async_trace_span("exists")
    async def exists(self, path: str, timeout: int = 60) -> bool:
        """Whether a path exists."""
        note(self, file_path=path)
        if self.connector.is_sandboxd():
            endpoint = _sandboxd_endpoint(path)
            response = await self.connector.send_request("HEAD", endpoint, timeout=timeout, allowed_statuses={404})
            there = response.status_code != 404
        else:
            endpoint = f"exists/{urllib.parse.quote(path, safe='')}"
            response = await self.connector.send_request("GET", endpoint, timeout=timeout)
            there = bool(self._decoded(response).get("exists", False))
        note(self, file_exists=there)
        return there

    @async_trace_span("delete")
    async def delete(self, path: str, recursive: bool = False, timeout: int = 60) -> None:
        """Removes a file, or with `recursive` a directory. The runtime's dialect does not support it."""
        note(self, file_path=path)
        if not self.connector.is_sandboxd():
            raise NotImplementedError("delete() is only supported by the sandboxd runtime")
        if path == "":
            raise ValueError("delete: path must not be empty")
        endpoint = _sandboxd_endpoint(path) + ("?recursive=true" if recursive else "")
        await self.connector.send_request("DELETE", endpoint, timeout=timeout)
        logger.info("Path '%s' deleted successfully.", path)

    @staticmethod
    def _decoded(response: Any) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise RuntimeError(f"Failed to decode JSON response from sandbox: {response.text}") from error
