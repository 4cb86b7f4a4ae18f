"""Triton releases that the server can imitate: their limits, defaults and features.

`--triton-version` chooses a profile once, at the start. Code reads its fields and never compares
versions. docs/versions.md lists each difference with the release that brought it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TritonProfile:
    """The behaviour of one Triton release.

    A `newer_...` field is true if the release has all changes that the field's docstring lists.
    Numbers in parentheses are the releases that brought a change.
    """

    name: str
    """The value of `--triton-version`."""
    version: str
    """The version in the server's metadata."""
    client_shared_memory: bool
    """The default of --allow-client-shm (2.68)."""
    http_max_input_size: int | None
    """The default of --http-max-input-size in bytes (2.59, 2.62, 2.65, 2.68); None: no limit."""
    max_classified_elements: int | None
    """The elements of a batch item that can be classified (2.66); None: no limit."""
    newer_request_checks: bool
    """Requests are checked for: correlation ids of another type than their control's (2.54), the
    body of an unload request (2.59.1), missing elements and empty lists in JSON (2.68), repeated
    outputs, headers of reserved names and `ready` of the index (2.69), and lengths in headers
    beyond 32 bits (2.70, 2.73). JSON is read without recursion, so that other errors are reported
    for some malformed documents (2.69)."""
    newer_size_checks: bool
    """Sizes of tensors are checked for dimensions below -1 and for overflow of 64 bits: in JSON
    requests (2.58), in all requests and in configurations (2.67)."""
    newer_name_checks: bool
    """Names of models are checked for shell characters (2.60) and in load requests (2.67, 2.68)."""
    newer_shared_memory: bool
    """A region in use can be unregistered (2.53), parts may be empty and sums are checked for
    overflow of 64 bits (2.58, 2.60), and a region needs a key (2.60)."""
    newer_readiness: bool
    """Models can report by `is_ready` that they are not ready (2.67), which counts for the server,
    too (2.68)."""
    newer_model_api: bool
    """model.py can set parameters of responses (2.55), cancel an iterator of them, and read the
    codes of errors that other models return (2.57)."""
    splits_log: bool
    """INFO and verbose lines of the log go to stdout, WARNING and ERROR lines to stderr (2.59)."""
    newer_metrics: bool
    """Metrics of load durations (2.52) and first responses (2.65)."""
    newer_config_fields: bool
    """config.pbtxt has model_metrics (2.52) and max_inflight_requests of ensembles (2.63)."""


V2_51 = TritonProfile(
    name="2.51",
    version="2.51.0",
    client_shared_memory=True,
    http_max_input_size=None,
    max_classified_elements=None,
    newer_request_checks=False,
    newer_size_checks=False,
    newer_name_checks=False,
    newer_shared_memory=False,
    newer_readiness=False,
    newer_model_api=False,
    splits_log=False,
    newer_metrics=False,
    newer_config_fields=False,
)
"""Verified: the contract tests compare this profile with tritonserver 2.51.0."""

NEWEST = TritonProfile(
    name="newest",
    version="2.75.0",
    client_shared_memory=False,
    http_max_input_size=64 << 20,
    max_classified_elements=1_000_000,
    newer_request_checks=True,
    newer_size_checks=True,
    newer_name_checks=True,
    newer_shared_memory=True,
    newer_readiness=True,
    newer_model_api=True,
    splits_log=True,
    newer_metrics=True,
    newer_config_fields=True,
)
"""Not verified: none of the newer releases could be run. The sources were read up to 2.70 (core),
2.71 (Python backend) and 2.73 (frontends), then release notes and pull requests up to 2.75."""

PROFILES: Mapping[str, TritonProfile] = {profile.name: profile for profile in (V2_51, NEWEST)}
