"""The tables of HTTP requests and NVIDIA's responses.

To add a case, add a row. Each module has one `CASES` list; the names must be unique over all.
"""

from __future__ import annotations

from contract.cases import infer_binary, infer_json, metadata, models, order, transport

CASES = [
    *transport.CASES,
    *metadata.CASES,
    *infer_json.CASES,
    *infer_binary.CASES,
    *models.CASES,
    *order.CASES,
]
