"""The command line's settings of the response cache, in Triton's spelling."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.numerals import leading_integer

LOCAL = "local"
#: Where Triton looks for caches other than its local one; here there are none.
DIRECTORY = "/opt/tritonserver/caches"

# Triton's cache keeps its books in these bytes, too, and cannot be made of fewer.
_SMALLEST = 192
_LARGEST = 2**63 - 1


def setting(text: str) -> tuple[str, str, str]:
    """A cache, one of its settings and the value, out of `<cache name>,<setting>=<value>`."""
    cache, comma, rest = text.partition(",")
    if not cache or not comma:
        raise argparse.ArgumentTypeError(
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. "
            f"Got {text}"
        )
    name, _, value = rest.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(
            f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}"
        )
    return cache, name, value


def byte_size(settings: Sequence[tuple[str, str, str]], directory: str = DIRECTORY) -> int | None:
    """How large the cache is; None if there is none. The last of several values counts.

    Raises ServerError where Triton cannot make the cache.
    """
    caches = {cache for cache, _, _ in settings}
    if not caches:
        return None
    if len(caches) > 1:
        raise invalid_arg(
            "found multiple cache configurations, but only a single cache is currently supported"
        )
    (cache,) = caches
    if cache != LOCAL:
        raise invalid_arg(
            f"unable to find 'libtritoncache_{cache}.so' for cache. Searched: {directory}; the "
            f"reference server has no cache but '{LOCAL}'"
        )
    given = {name: value for _, name, value in settings}
    if "size" not in given:
        raise invalid_arg(
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field."
        )
    return _size(given["size"])


def _size(text: str) -> int:
    size = leading_integer(text)
    if size is None or abs(size) >= 2**64:
        raise _refused("stoull")
    if not 0 <= size <= _LARGEST:  # below zero it wraps around
        raise _refused("failed to allocate buffer")
    if size < _SMALLEST:
        raise _refused("Could not initialize buffer in basic_managed_external_buffer constructor")
    return size


def _refused(reason: str) -> ServerError:
    return internal(f"Failed to initialize LocalCache: {reason}")
