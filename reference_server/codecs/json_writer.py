"""Writes strings and the elements of tensors as JSON, byte for byte like RapidJSON's writer.

orjson prints integers and booleans; `grisu` prints doubles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from reference_server.codecs import grisu, json_string_arrays
from reference_server.core.byte_strings import element_bytes

_Array = npt.NDArray[np.generic]

#: Doubles per piece: some milliseconds of work.
_DOUBLES = 1 << 15
#: Integers or strings per piece: some milliseconds of work.
_OTHERS = 1 << 17
#: The longest wire form that `write_packed_strings` writes: a millisecond of work.
_MOST_PACKED = 1 << 20


def write_array(array: _Array) -> bytes:
    """Return the elements of `array` in C order as a flat JSON array, such as `b"[1.0,2.5]"`.

    Args:
        array: BOOL is written as `true` and `false`. FP32 is widened to double. NaN and the
            infinities are bare words. Elements of an object or `S<n>` array become strings as
            `write_string` writes them: `bytes` as they are, others as the UTF-8 of their `str`.

    Raises:
        ValueError: The dtype has no JSON form, such as float16.
    """
    return b"[%b]" % b"".join(write_elements(array))


def write_elements(array: _Array) -> list[bytes]:
    """Return `write_array` without its brackets, in pieces of some milliseconds of work each."""
    write, most = _writer(array.dtype)
    flat = array.ravel()
    if flat.size <= most:
        return [write(flat)]
    written: list[bytes] = []
    for start in range(0, flat.size, most):
        written += (write(flat[start : start + most]), b",")
    written.pop()
    return written


def write_packed_strings(wire: memoryview, count: int) -> list[bytes] | None:
    """Return `write_elements` of a BYTES tensor given in its wire form.

    Returns None if the wire form is long, is malformed, has not `count` elements, or needs very
    many escapes; `write_elements` handles these.
    """
    if len(wire) > _MOST_PACKED:
        return None
    text = json_string_arrays.write_strings(wire, count)
    return None if text is None else [text]


@lru_cache(64)
def _writer(dtype: np.dtype[Any]) -> tuple[Callable[[_Array], bytes], int]:
    """Return the function that writes comma-separated elements, and the most elements per call."""
    if dtype.kind in "OS":
        return _write_strings, _OTHERS
    if dtype.kind == "f" and dtype.itemsize > 2:
        return _write_doubles, _DOUBLES
    if dtype.kind in "biu":
        return _write_integers, _OTHERS
    raise ValueError(f"{dtype} has no JSON form")


def _write_integers(elements: _Array) -> bytes:
    if elements.dtype.kind == "b":
        # Any byte but zero is true; orjson would write 2 as false.
        elements = elements.view(np.uint8) != 0
    return orjson.dumps(elements, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _write_doubles(elements: _Array) -> bytes:
    if elements.size == 0:
        return b""
    if elements.dtype != np.float32:
        elements = elements.astype(np.float64, copy=False)
    return grisu.write_doubles(elements.tobytes(), elements.itemsize)


def _write_strings(elements: _Array) -> bytes:
    texts = [element_bytes(element) for element in elements.tolist()]
    if not texts:
        return b""
    # One search in all of them is much faster than one substitution for each.
    if _ESCAPED.search(b"".join(texts)):
        texts = [_escape(text) for text in texts]
    return b'"' + b'","'.join(texts) + b'"'


_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES = {bytes([code]): b"\\u%04X" % code for code in range(0x20)} | {
    b"\b": b"\\b",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\f": b"\\f",
    b"\r": b"\\r",
    b'"': b'\\"',
    b"\\": b"\\\\",
}


def write_string(text: str | bytes) -> bytes:
    """Return `text` in quotation marks with RapidJSON's escapes; other bytes stay as they are.

    A `str` is encoded with `surrogateescape`, the inverse of how `rapid_json.loads` decodes.
    """
    if isinstance(text, bytes):
        raw = text
    else:
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a model's error text may contain any surrogate
            raw = text.encode("utf-8", "replace")
    return b'"' + _escape(raw) + b'"'


def _escape(raw: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], raw)
