"""The flags of tritonserver for what the reference server does not have, and its older names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from reference_server import argument_values as values
from reference_server import trace_config

#: What only tunes or switches off what is not here: accepted with a warning.
WITHOUT_EFFECT: Mapping[str, Callable[[str], object]] = {
    "allow-gpu-metrics": values.boolean,
    "buffer-manager-thread-count": values.number,
    "cache-directory": str,
    "cuda-memory-pool-byte-size": str,
    "cuda-virtual-address-size": str,
    "enable-peer-access": values.boolean,
    "grpc-infer-allocation-pool-size": values.number,
    "host-policy": str,
    "http-thread-count": values.number,
    "min-supported-compute-capability": str,
    "model-load-gpu-limit": str,
    "pinned-memory-pool-byte-size": values.number,
    "repoagent-directory": str,
    "sagemaker-port": values.number,
    "sagemaker-safe-port-range": str,
    "sagemaker-thread-count": values.number,
    "vertex-ai-default-model": str,
    "vertex-ai-port": values.number,
    "vertex-ai-thread-count": values.number,
}
#: What would change answers, or open a port: it may be switched off, which changes nothing.
NOT_SERVED = ("allow-sagemaker", "allow-vertex-ai", "model-namespacing")
#: Older names of settings of `--trace-config`.
_TRACE = {
    "trace-file": ("triton,file", "<filepath>"),
    "trace-level": ("level", "<OFF|TIMESTAMPS|TENSORS>"),
    "trace-rate": ("rate", "<rate value>"),
    "trace-count": ("count", "<count value>"),
    "trace-log-frequency": ("triton,log-frequency", "<log frequency value>"),
}

DESCRIBED = (
    "Accepted, though there is nothing here that they could change: "
    + ", ".join(f"--{name}" for name in WITHOUT_EFFECT)
    + ". Only false is accepted for: "
    + ", ".join(f"--{name}" for name in NOT_SERVED)
    + ". Deprecated as in Triton: --strict-model-config, --response-cache-byte-size, "
    + ", ".join(f"--{name}" for name in _TRACE)
    + "."
)


def add(parser: argparse.ArgumentParser) -> None:
    """Let `parser` read them."""
    for name, parse in WITHOUT_EFFECT.items():
        parser.add_argument(f"--{name}", metavar="VALUE", help=argparse.SUPPRESS, type=parse)
    for name in NOT_SERVED:
        parser.add_argument(
            f"--{name}", metavar="BOOL", help=argparse.SUPPRESS, type=values.switched_off
        )
    parser.add_argument(
        "--strict-model-config", metavar="BOOL", help=argparse.SUPPRESS, type=_strict
    )
    for name, (key, form) in _TRACE.items():
        parser.add_argument(
            f"--{name}",
            metavar="VALUE",
            help=argparse.SUPPRESS,
            action="append",
            default=[],
            type=_older(name, key, form),
        )


def ignored(given: argparse.Namespace) -> list[str]:
    """Those of the options given that change nothing."""
    return [
        f"--{name}" for name in WITHOUT_EFFECT if getattr(given, name.replace("-", "_")) is not None
    ]


def auto_completes(given: argparse.Namespace) -> bool:
    """Whether models complete their configurations: if neither name of the option forbids it."""
    forbidden: bool = given.disable_auto_complete_config
    if forbidden and given.strict_model_config is False:
        _warn(
            "Overriding deprecated '--strict-model-config' from False to True in favor of "
            "'--disable-auto-complete-config'!"
        )
    return not (forbidden or given.strict_model_config)


def trace_settings(given: argparse.Namespace) -> list[tuple[str, str]]:
    """The settings of tracing: those of `--trace-config` count for more than the older names.

    But for a level: the older names and the new add up, unless an older name says OFF.
    """
    told: list[tuple[str, str]] = given.trace_config
    keys = {key for key, _ in told}
    older: list[tuple[str, str]] = []
    for name, (key, _) in _TRACE.items():
        settings = getattr(given, name.replace("-", "_"))
        older += settings
        if settings and key in keys:
            what = "rate value" if key == "rate" else key.rpartition(",")[2]
            _warn(
                f"Overriding deprecated '--{name}' in favor of provided {what} in --trace-config!"
            )
    merged = [*older, *told]
    if any(key == "level" and level.upper() == "OFF" for key, level in older):
        return [(key, value) for key, value in merged if key != "level"]
    return merged


def _strict(text: str) -> bool:
    _warn(
        "'--strict-model-config' has been deprecated! Please use "
        "'--disable-auto-complete-config' instead."
    )
    return values.boolean(text)


def _older(name: str, key: str, form: str) -> Callable[[str], tuple[str, str]]:
    def parse_setting(text: str) -> tuple[str, str]:
        _warn(
            f"'--{name}' has been deprecated and will be removed in future releases. Please use "
            f"'--trace-config {key}={form} instead."
        )
        return trace_config.setting(f"{key}={text}")

    return parse_setting


def _warn(text: str) -> None:
    """On stderr, since it comes before it is known where the log is."""
    print(f"Warning: {text}", file=sys.stderr)
