"""Where in shared memory the tensors of a JSON request are, and are to go."""

from __future__ import annotations

from dataclasses import dataclass, field

from reference_server.codecs import rapid_json
from reference_server.codecs.rapid_json_reader import JsonValue

#: A part of a region: its name, an offset and a size in bytes.
Span = tuple[str, int, int]


@dataclass(slots=True)
class Spans:
    """What a request takes from shared memory, and what it wants there.

    `places` are in the order of the request, with whether the output is to go there: one that was
    named before is not.
    """

    inputs: dict[str, Span] = field(default_factory=dict)
    places: list[tuple[str, Span, bool]] = field(default_factory=list)


def read_span(parameters: dict[str, JsonValue]) -> Span | None:
    """Where in shared memory a tensor is; None if it is elsewhere. Mistyped members are refused."""
    region: str | None = None
    offset = size = 0
    if "shared_memory_region" in parameters:
        region = rapid_json.parse_member(parameters, "shared_memory_region", rapid_json.as_string)
    if "shared_memory_offset" in parameters:
        offset = rapid_json.parse_member(parameters, "shared_memory_offset", rapid_json.as_uint64)
    if "shared_memory_byte_size" in parameters:
        size = rapid_json.parse_member(parameters, "shared_memory_byte_size", rapid_json.as_uint64)
    return None if region is None else (rapid_json.c_string(region), offset, size)
