"""Tensors and strings as JSON text, byte for byte as RapidJSON's writer prints them.

orjson prints what needs no rounding, integers above all; `grisu` prints doubles.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import orjson

from reference_server.codecs import grisu
from reference_server.codecs.grisu import Doubles
from reference_server.core.byte_strings import element_bytes

#: Up to here one double after the other is faster than NumPy's fixed cost per call.
_FEW = 64
#: Doubles per round: many enough for NumPy, few enough for the processor's cache.
_ROUND = 32768


def encode(array: npt.NDArray[np.generic]) -> bytes:
    """The flat JSON array of the elements of `array` in C order, such as `b"[1.0,2.5]"`.

    BOOL gives `true` and `false`; FP32 is widened to double first; NaN and the infinities are bare
    words. Elements of an object or `S<n>` array become strings as `encode_string` writes them
    (bytes as they are, anything else as the UTF-8 of its `str`). FP16 raises ValueError: it has no
    JSON form.
    """
    kind = array.dtype.kind
    if kind in "OS":
        return _encode_strings([element_bytes(element) for element in array.ravel().tolist()])
    if kind == "f" and array.itemsize > 2:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return _encode_doubles(array.astype(np.float64, copy=False).ravel())
    if kind == "b":
        # Any byte but zero is true; orjson would take 2 for false.
        array = np.ascontiguousarray(array).view(np.uint8) != 0
    elif kind not in "iu":
        raise ValueError(f"{array.dtype} has no JSON form")
    return orjson.dumps(np.ascontiguousarray(array).ravel(), option=orjson.OPT_SERIALIZE_NUMPY)


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


def encode_string(text: str | bytes) -> bytes:
    """`text` in quotation marks with RapidJSON's escapes; all other bytes stay as they are.

    A `str` is encoded with `surrogateescape`, the inverse of how `rapid_json.loads` decodes.
    """
    if isinstance(text, bytes):
        raw = text
    else:
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a model's error text may hold any surrogate
            raw = text.encode("utf-8", "replace")
    return b'"' + _escape(raw) + b'"'


def _escape(raw: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], raw)


def _encode_strings(elements: list[bytes]) -> bytes:
    if not elements:
        return b"[]"
    # One search through all of them is much faster than one substitution for each.
    if _ESCAPED.search(b"".join(elements)):
        elements = [_escape(element) for element in elements]
    return b'["' + b'","'.join(elements) + b'"]'


def _encode_doubles(values: Doubles) -> bytes:
    if values.size <= _FEW:
        return f"[{','.join(map(grisu.text, values.tolist()))}]".encode()
    rounds = [values[start : start + _ROUND] for start in range(0, values.size, _ROUND)]
    return b"[" + b",".join(map(grisu.texts, rounds)) + b"]"
