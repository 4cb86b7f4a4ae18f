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


V2_51 = TritonProfile(
    name="2.51",
    version="2.51.0",
    client_shared_memory=True,
)
"""Proven by difference: the contract tests compare this profile with tritonserver 2.51.0."""

NEWEST = TritonProfile(
    name="newest",
    version="2.73.0",
    client_shared_memory=False,
)
"""Read from the sources of the releases up to 2.73, none of which could be run."""

PROFILES: Mapping[str, TritonProfile] = {profile.name: profile for profile in (V2_51, NEWEST)}
