"""Bodies of inferences over HTTP, written: JSON, and the bytes of tensors after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from triton_replay.protocol.http_bodies import Headers


def tensor_body(document: dict[str, Any], binary: Sequence[bytes]) -> tuple[Headers, bytes]:
    """The header that says where the JSON ends, and the body."""
    text = json.dumps(document).encode()
    headers = (("Inference-Header-Content-Length", str(len(text))),)
    return headers, text + b"".join(binary)
