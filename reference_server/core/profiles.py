"""Which tritonserver this server stands in for: the limits, defaults and switches of a release.

A profile is chosen once, by `--triton-version`, and read where objects are made. Nothing compares
versions. `docs/versions.md` lists what differs, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TritonProfile:
    """What one release does. The comment of each field names the release that brought it."""

    #: As `--triton-version` calls it.
    name: str
    #: As the server's metadata calls it.
    version: str
    #: Whether clients may register shared memory, unless --allow-client-shm says it. 2.68: no.
    client_shared_memory: bool
    #: Bytes, unless --http-max-input-size says it; None is any number. 2.59, 2.62, 2.65, 2.68.
    http_max_input_size: int | None
    #: Whether a length in a header must be a number of 32 bits. 2.70, 2.73.
    strict_header_lengths: bool
    #: Whether an output may be requested only once. 2.69.
    refuses_repeated_outputs: bool
    #: Whether a model that asks another is told the code of its error, not INTERNAL. 2.57.
    tells_error_codes: bool


V2_51 = TritonProfile(
    name="2.51",
    version="2.51.0",
    client_shared_memory=True,
    http_max_input_size=None,
    strict_header_lengths=False,
    refuses_repeated_outputs=False,
    tells_error_codes=False,
)
"""Proven by difference: the contract tests compare this profile with tritonserver 2.51.0."""

NEWEST = TritonProfile(
    name="newest",
    version="2.73.0",
    client_shared_memory=False,
    http_max_input_size=64 << 20,
    strict_header_lengths=True,
    refuses_repeated_outputs=True,
    tells_error_codes=True,
)
"""Read from the sources of the releases up to 2.73, none of which could be run."""

PROFILES: Mapping[str, TritonProfile] = {profile.name: profile for profile in (V2_51, NEWEST)}
