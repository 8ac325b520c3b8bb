"""Files of a sandbox, in the runtime's or sandboxd's dialect.

`generate_async.py` generates `async_filesystem.py` from this file.
"""

import io
import logging
import posixpath
import urllib.parse
from typing import Any, BinaryIO, List, Optional, Union

from agent_sandbox._waiting import _wait

from ..connector import SandboxConnector
from ..models import FileEntry
from ..trace_manager import note, trace_span

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


class Filesystem:
    """Reads, writes, lists and tests files."""

    def __init__(self, connector: SandboxConnector, tracer: Any, trace_service_name: str) -> None:
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

    @trace_span("write")
    def write(
        self,
        path: str,
        content: Union[bytes, str, BinaryIO],
        timeout: int = 60,
        allow_unsafe_paths: bool = False,
    ) -> None:  # async
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
                self.connector.send_request("PUT", endpoint, data=content, headers=headers, timeout=timeout)  # await
            else:
                files = {"file": (path, content)}
                self.connector.send_request("POST", "upload", files=files, timeout=timeout)  # await
        else:
            self._write_pieces(path, content, sandboxd)  # await
        logger.info("File '%s' uploaded successfully.", path)

    def _write_pieces(self, path: str, content: BinaryIO, sandboxd: bool) -> None:  # async
        from ..connector import _body

        headers = {"Content-Type": "application/octet-stream"}
        head, tail = b"", b""
        if not sandboxd:
            head, _, tail = _body({"files": {"file": (path, b"")}}, headers)
        method, endpoint = ("PUT", _sandboxd_endpoint(path)) if sandboxd else ("POST", "upload")
        upload = self.connector.open_upload(method, endpoint, headers)  # await
        try:
            piece = head or _read_piece(content)
            while piece:
                if not _wait(upload.send(piece)):
                    break
                piece = _read_piece(content)
            if tail:
                _wait(upload.send(tail))
        except BaseException:
            _wait(upload.abort())
            raise
        _wait(upload.finish())

    @trace_span("read")
    def read(self, path: str, timeout: int = 60, allow_unsafe_paths: bool = False) -> bytes:  # async
        """Reads a whole file."""
        note(self, file_path=path)
        endpoint = self._download_endpoint(path, allow_unsafe_paths)
        response = self.connector.send_request("GET", endpoint, timeout=timeout)  # await
        note(self, file_size=len(response.content))
        return response.content

    def _download_endpoint(self, path: str, allow_unsafe_paths: bool) -> str:
        if not allow_unsafe_paths:
            path = self._safe_upload_path(path)
        if self.connector.is_sandboxd():
            return _sandboxd_endpoint(path)
        return f"download/{urllib.parse.quote(path, safe='')}"

    @trace_span("read_to")
    def read_to(
        self,
        path: str,
        destination: Any,
        timeout: int = 60,
        allow_unsafe_paths: bool = False,
        max_bytes: Optional[int] = None,
    ) -> int:  # async
        """Copies a file in chunks into a writable object, and returns the number of bytes.

        With `max_bytes` a larger file is a RuntimeError: before anything is read, when its size is announced.
        """
        if not callable(getattr(destination, "write", None)):
            raise TypeError("Download destination must provide a write(bytes) method.")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
            raise ValueError("max_bytes must be an integer greater than or equal to zero, or None.")
        note(self, file_path=path)
        endpoint = self._download_endpoint(path, allow_unsafe_paths)
        response = self.connector.send_request("GET", endpoint, timeout=timeout, stream=True)  # await
        announced = response.headers.get("Content-Length", "")
        try:
            if max_bytes is not None and announced.isdigit() and int(announced) > max_bytes:
                raise RuntimeError(f"File size exceeds limit of {max_bytes} bytes.")
            total = 0
            while piece := _wait(response.stream.next()):
                left = len(piece) if max_bytes is None else max_bytes - total
                kept, over = piece[:left], len(piece) > left
                total += self._store(destination, kept)  # await
                if over:
                    raise RuntimeError(f"File size exceeds limit of {max_bytes} bytes.")
        finally:
            _wait(response.stream.close())
        note(self, file_size=total)
        return total

    def _store(self, destination: Any, piece: bytes) -> int:  # async
        written = 0
        while written < len(piece):
            count = self._put(destination, piece[written:])  # await
            if count is None or count <= 0:
                raise OSError("Download destination did not accept file content.")
            if count > len(piece) - written:
                raise OSError("Download destination reported an invalid write count.")
            written += count
        return written

    def _put(self, destination: Any, piece: bytes) -> Any:  # async
        count = destination.write(piece)
        if hasattr(count, "__await__"):
            raise TypeError("An asynchronous destination needs the asynchronous client.")
        return count

    @trace_span("list")
    def list(self, path: str, timeout: int = 60) -> List[FileEntry]:  # async
        """The entries of a directory."""
        note(self, file_path=path)
        if self.connector.is_sandboxd():
            response = self.connector.send_request("GET", _sandboxd_endpoint(path), timeout=timeout)  # await
            listing = self._decoded(response)
            if not isinstance(listing, dict) or "entries" not in listing:
                raise RuntimeError(f"Server returned invalid directory listing: {listing}")
            raw, convert = listing["entries"] or [], FileEntry.from_sandboxd
        else:
            endpoint = f"list/{urllib.parse.quote(path, safe='')}"
            response = self.connector.send_request("GET", endpoint, timeout=timeout)  # await
            raw, convert = self._decoded(response) or [], FileEntry.from_legacy
        try:
            known = [convert(entry) for entry in raw if entry.get("type") in ("file", "directory")]
        except Exception as error:
            raise RuntimeError(f"Server returned invalid file entry format: {raw}") from error
        note(self, file_count=len(known))
        return known

    @trace_span("exists")
    def exists(self, path: str, timeout: int = 60) -> bool:  # async
        """Whether a path exists."""
        note(self, file_path=path)
        if self.connector.is_sandboxd():
            endpoint = _sandboxd_endpoint(path)
            response = self.connector.send_request("HEAD", endpoint, timeout=timeout, allowed_statuses={404})  # await
            there = response.status_code != 404
        else:
            endpoint = f"exists/{urllib.parse.quote(path, safe='')}"
            response = self.connector.send_request("GET", endpoint, timeout=timeout)  # await
            there = bool(self._decoded(response).get("exists", False))
        note(self, file_exists=there)
        return there

    @trace_span("delete")
    def delete(self, path: str, recursive: bool = False, timeout: int = 60) -> None:  # async
        """Removes a file, or with `recursive` a directory. The runtime's dialect does not support it."""
        note(self, file_path=path)
        if not self.connector.is_sandboxd():
            raise NotImplementedError("delete() is only supported by the sandboxd runtime")
        if path == "":
            raise ValueError("delete: path must not be empty")
        endpoint = _sandboxd_endpoint(path) + ("?recursive=true" if recursive else "")
        self.connector.send_request("DELETE", endpoint, timeout=timeout)  # await
        logger.info("Path '%s' deleted successfully.", path)

    @staticmethod
    def _decoded(response: Any) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise RuntimeError(f"Failed to decode JSON response from sandbox: {response.text}") from error
