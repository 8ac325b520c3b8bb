"""A response of a sandbox, with the attributes that users of HTTP libraries expect."""

import json as _json
from typing import Any, Dict, List, Tuple


class Headers(Dict[str, str]):
    """Headers by case-insensitive name."""

    def __init__(self, pairs: List[Tuple[str, str]]) -> None:
        super().__init__((name.lower(), value) for name, value in pairs)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class Response:
    """Status, headers and body. `stream` is set instead of `content` for a body that is read in chunks."""

    def __init__(self, url: str, status_code: int, headers: List[Tuple[str, str]], content: bytes, stream: Any) -> None:
        self.url = url
        self.status_code = status_code
        self.headers = Headers(headers)
        self.content = content
        self.stream = stream

    @property
    def ok(self) -> bool:
        return self.status_code < 400

    @property
    def is_redirect(self) -> bool:
        return self.status_code in (301, 302, 303, 307, 308)

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        return _json.loads(self.content)

    def __repr__(self) -> str:
        return f"<Response [{self.status_code}]>"
