"""The text in which Triton reports a Python exception of a model."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, TracebackType

_SERVER = "reference_server."
_IMPORT_MACHINERY = "<frozen importlib"


def describe(error: BaseException) -> str:
    """`<Type>: <message>`, and then where: one line per frame, innermost first.

    Only the frames above the one that caught `error` are told, and of these not the server's own
    and not the import machinery's: the former are native code in Triton. Like Triton this follows
    the callers of the frame that raised, so the lines of an exception that came from another
    thread are that thread's. Call it where `error` was caught.
    """
    failure: BaseException | None = None
    try:
        message = str(error) or "<EMPTY MESSAGE>"
    except BaseException as raised_by_str:
        failure = raised_by_str
        message = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
    text = f"{type(error).__name__}: {message}"
    if lines := "".join(map(_line, _frames(error.__traceback__))):
        text += f"\n\nAt:\n{lines}"
    if failure is not None:
        text += f"\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {describe(failure)}"
    return text


def _line(frame: FrameType) -> str:
    return f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n"


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    if traceback is None:
        return
    catcher = traceback.tb_frame
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame: FrameType | None = traceback.tb_frame
    while frame is not None and frame is not catcher:
        if not _is_ours(frame):
            yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    module: object = frame.f_globals.get("__name__")
    return frame.f_code.co_filename.startswith(_IMPORT_MACHINERY) or (
        isinstance(module, str) and module.startswith(_SERVER)
    )
