"""The tables of gRPC calls and NVIDIA's responses.

To add a case, add a row. Each module has one `CASES` list; the names must be unique over all.
"""

from __future__ import annotations

from contract.grpc_cases import infer_data, infer_fields, models, regions, settings, streams

CASES = [
    *models.CASES,
    *infer_fields.CASES,
    *infer_data.CASES,
    *regions.CASES,
    *streams.CASES,
    *settings.CASES,
]
