"""Names of fields in config.pbtxt that are slips of Triton's own, such as `max_batchsize`.

A server refuses every name that its release does not know. Here only what is close to a known one
is a fault: newer releases have fields that this module does not know.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        *("name", "platform", "backend", "runtime", "version_policy", "max_batch_size", "input"),
        *("output", "batch_input", "batch_output", "optimization", "dynamic_batching"),
        *("sequence_batching", "ensemble_scheduling", "instance_group", "metric_tags"),
        *("default_model_filename", "cc_model_filenames", "parameters", "model_warmup"),
        *("model_operations", "model_transaction_policy", "model_repository_agents"),
        *("response_cache", "model_metrics"),
    ),
    "input": (
        *("name", "data_type", "format", "dims", "reshape", "is_shape_tensor", "optional"),
        *("allow_ragged_batch", "is_non_linear_format_io"),
    ),
    "output": (
        *("name", "data_type", "dims", "reshape", "label_filename", "is_shape_tensor"),
        "is_non_linear_format_io",
    ),
    "instance_group": (
        *("name", "kind", "count", "rate_limiter", "gpus", "secondary_devices", "profile"),
        *("passive", "host_policy"),
    ),
}
"""The messages that models on ge_runtime write, by the field that holds them, and what is in them;
"" is the whole. As in model_config.proto of tritonserver 2.51."""

_CLOSE: Final = 0.8
"""How much of two names has to agree."""


def misspelt(config: Mapping[str, object]) -> list[str]:
    """A fault for each name that is nearly one of Triton's. config: of `text_format.parse`."""
    faults = list(_within("", config))
    for field in filter(None, FIELDS):
        messages = config.get(field)
        for place, message in enumerate(messages if isinstance(messages, list) else []):
            if isinstance(message, Mapping):
                faults += _within(field, message, f"{field}[{place}]: ")
    return faults


def _within(field: str, message: Mapping[str, object], place: str = "") -> Iterator[str]:
    known = FIELDS[field]
    for name in message:
        near = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
        if near and name not in known:
            yield f"{place}found no field '{name}', expected '{near[0]}'"
