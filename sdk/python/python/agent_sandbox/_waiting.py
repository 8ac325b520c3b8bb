"""Getting the result of a pending operation: by blocking, or by awaiting."""

from __future__ import annotations

# Loading `typing` would cost more than everything else here; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import _native


def _wait(pending: _native.Pending) -> Any:
    return pending.wait()


def _set_outcome(future: Any, ok: bool, value: Any) -> None:
    if not future.done():
        if ok:
            future.set_result(value)
        else:
            future.set_exception(value)


async def _aio(pending: _native.Pending) -> Any:
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def done(ok: bool, value: Any) -> None:
        try:
            loop.call_soon_threadsafe(_set_outcome, future, ok, value)
        except RuntimeError:
            pass  # The event loop is closed, so the result is not needed any more.

    pending.start(done)
    try:
        return await future
    except asyncio.CancelledError:
        pending.cancel()
        raise
