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
    #: Whether a region in use is unregistered at once, and goes with its last request. 2.53.
    defers_unregistering: bool
    #: Whether a region without a key is told as such. 2.60.
    refuses_empty_keys: bool
    #: Whether a part of a region may be empty, and sums beyond 64 bits have a text. 2.58, 2.60.
    regions_have_empty_parts: bool
    #: Whether a length in a header must be a number of 32 bits. 2.70, 2.73.
    strict_header_lengths: bool
    #: Whether an output may be requested only once. 2.69.
    refuses_repeated_outputs: bool
    #: Whether sizes of JSON tensors that no int64 holds have texts of their own. 2.58.
    tells_json_overflows: bool
    #: Whether too few elements in JSON have a text of their own. 2.68.
    tells_missing_elements: bool
    #: Whether an empty list is an empty tensor without a shape in generate. 2.68.
    empty_lists_have_no_shape: bool
    #: Whether dimensions below -1, and sizes that no int64 holds, have texts of their own. 2.67.
    tells_invalid_sizes: bool
    #: Whether correlation ids must be of their control's type. 2.54.
    checks_correlation_types: bool
    #: Whether headers of reserved names are refused where they would be forwarded. 2.69.
    refuses_reserved_headers: bool
    #: Elements of a batch item that can be classified; None is any number. 2.66.
    most_classified: int | None
    #: Whether the index's `ready` must be true or false, or else is INVALID_ARG. 2.69.
    checks_index_ready: bool
    #: Whether the body of an unload request must be JSON. 2.59.1.
    checks_unload_body: bool
    #: Whether a load request is told what is wrong with the name. 2.67, 2.68.
    tells_wrong_names: bool
    #: Whether models may tell by `is_ready` that they are not. 2.67.
    asks_models: bool
    #: Whether the server is as ready as its models say. 2.68.
    server_asks_models: bool
    #: Whether it is an error to ask whether an unknown model is ready. After 2.70.
    unknown_is_an_error: bool
    #: Whether `model.py` may give responses parameters, and cancel an iterator of them. 2.55, 2.57.
    has_newer_model_api: bool
    #: Whether models are told the codes of the errors that others answer with. 2.57.
    tells_error_codes: bool
    #: Whether the metrics tell how long loading took, and first responses. 2.52, 2.65.
    tells_loads_and_first_responses: bool
    #: Whether config.pbtxt may give metrics their buckets, by model_metrics. 2.52.
    reads_model_metrics: bool
    #: Whether ensembles have max_inflight_requests, which their configuration then names. 2.63.
    has_max_inflight: bool
    #: Whether the sizes of a configuration's tensors must fit 64 bits. 2.67.
    checks_configured_sizes: bool
    #: Whether JSON is read without recursion, which calls some broken documents empty. 2.69.
    reads_json_iteratively: bool
    #: Whether a model's process refuses names with characters of shells. 2.60.
    refuses_shell_names: bool


V2_51 = TritonProfile(
    name="2.51",
    version="2.51.0",
    client_shared_memory=True,
    http_max_input_size=None,
    defers_unregistering=False,
    refuses_empty_keys=False,
    regions_have_empty_parts=False,
    strict_header_lengths=False,
    refuses_repeated_outputs=False,
    tells_json_overflows=False,
    tells_missing_elements=False,
    empty_lists_have_no_shape=False,
    tells_invalid_sizes=False,
    checks_correlation_types=False,
    refuses_reserved_headers=False,
    most_classified=None,
    checks_index_ready=False,
    checks_unload_body=False,
    tells_wrong_names=False,
    asks_models=False,
    server_asks_models=False,
    unknown_is_an_error=False,
    has_newer_model_api=False,
    tells_error_codes=False,
    tells_loads_and_first_responses=False,
    reads_model_metrics=False,
    has_max_inflight=False,
    checks_configured_sizes=False,
    reads_json_iteratively=False,
    refuses_shell_names=False,
)
"""Proven by difference: the contract tests compare this profile with tritonserver 2.51.0."""

NEWEST = TritonProfile(
    name="newest",
    version="2.73.0",
    client_shared_memory=False,
    http_max_input_size=64 << 20,
    defers_unregistering=True,
    refuses_empty_keys=True,
    regions_have_empty_parts=True,
    strict_header_lengths=True,
    refuses_repeated_outputs=True,
    tells_json_overflows=True,
    tells_missing_elements=True,
    empty_lists_have_no_shape=True,
    tells_invalid_sizes=True,
    checks_correlation_types=True,
    refuses_reserved_headers=True,
    most_classified=1_000_000,
    checks_index_ready=True,
    checks_unload_body=True,
    tells_wrong_names=True,
    asks_models=True,
    server_asks_models=True,
    unknown_is_an_error=True,
    has_newer_model_api=True,
    tells_error_codes=True,
    tells_loads_and_first_responses=True,
    reads_model_metrics=True,
    has_max_inflight=True,
    checks_configured_sizes=True,
    reads_json_iteratively=True,
    refuses_shell_names=True,
)
"""Read from the sources of the releases up to 2.73, none of which could be run."""

PROFILES: Mapping[str, TritonProfile] = {profile.name: profile for profile in (V2_51, NEWEST)}
