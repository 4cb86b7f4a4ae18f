"""Tolerances: how far two tensors may be apart and still be the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from triton_replay.errors import ReplayError

Array = NDArray[Any]

_KEYS: Final = {
    "abs": "absolute",
    "rel": "relative",
    "ulp": "ulp",
    "cosine": "cosine",
    "topk": "top_k",
}


@dataclass(frozen=True)
class Tolerance:
    """What is allowed; what is None is not looked at.

    An element is equal if it is near by `absolute + relative * |a|`, or by `ulp`. A tensor is equal
    if all its elements are, where one of these is given, and its rows (along the last axis) have a
    cosine similarity of at least `cosine`, and the same `top_k` largest elements.
    """

    absolute: float | None = None
    relative: float | None = None
    ulp: int | None = None
    cosine: float | None = None
    top_k: int | None = None

    def violated(self, a: Array, b: Array) -> Array:
        """Where two tensors of one shape are too far apart: a bool for each element."""
        wrong = np.zeros(a.shape, bool)
        if a.dtype.kind not in "fiu":
            return np.asarray(a != b, bool)
        if self.absolute is not None or self.relative is not None or self.ulp is not None:
            wrong |= ~self._near(a, b)
        if a.size:
            rows = (-1, a.shape[-1] if a.ndim else 1)
            far = ~self._rows_agree(a.reshape(rows), b.reshape(rows))
            wrong |= np.broadcast_to(far[:, None], (len(far), rows[1])).reshape(a.shape)
        return wrong

    def _near(self, a: Array, b: Array) -> Array:
        near = np.asarray(a == b)
        if a.dtype.kind == "f":
            near |= np.isnan(a) & np.isnan(b)
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = (self.absolute or 0.0) + (self.relative or 0.0) * np.abs(a.astype(np.float64))
            # Infinity is near to itself only.
            near |= np.isfinite(a) & (distance(a, b) <= allowed)
        if self.ulp is not None and a.dtype.kind == "f":
            near |= ulps_between(a, b) <= self.ulp
        return near

    def _rows_agree(self, a: Array, b: Array) -> Array:
        agree = np.ones(len(a), bool)
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        if self.cosine is not None:
            norms = np.linalg.norm(wide_a, axis=1) * np.linalg.norm(wide_b, axis=1)
            dots = (wide_a * wide_b).sum(axis=1)
            agree &= (dots >= self.cosine * norms) & (norms > 0)
        if self.top_k is not None:
            k = min(self.top_k, a.shape[1])
            first, second = (_largest(x, k) for x in (wide_a, wide_b))
            agree &= (first == second).all(axis=1)
        same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
        return np.asarray(agree | same.all(axis=1))


DEFAULT: Final = Tolerance(absolute=1e-5, relative=1e-4)
EXACT: Final = Tolerance(absolute=0.0)


@dataclass(frozen=True)
class Tolerances:
    """The tolerance of each output: by MODEL/OUTPUT, by OUTPUT, or that of all others."""

    others: Tolerance = DEFAULT
    named: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, model: str, output: str, kind: str) -> Tolerance:
        """kind: of NumPy; only floats have a tolerance that is not named."""
        found = self.named.get(f"{model}/{output}", self.named.get(output))
        return found or (self.others if kind == "f" else EXACT)


def parse_tolerances(texts: Sequence[str]) -> Tolerances:
    """Read `[[MODEL/]OUTPUT:]abs=1e-5,rel=1e-4,ulp=4,cosine=0.999,topk=5`. Raises ReplayError."""
    others, named = DEFAULT, {}
    for text in texts:
        name, separator, rules = text.rpartition(":")
        found: dict[str, float | int] = {}
        for rule in rules.split(","):
            key, _, value = rule.partition("=")
            try:
                wanted = _KEYS[key.strip()]
                found[wanted] = int(value) if wanted in ("ulp", "top_k") else float(value)
            except (KeyError, ValueError) as error:
                text = (
                    f"--tolerance: found {text!r}, expected [OUTPUT:]KEY=NUMBER,..., "
                    f"the keys being {', '.join(_KEYS)}"
                )
                raise ReplayError(text) from error
        tolerance = Tolerance(**found)  # type: ignore[arg-type]
        if separator:
            named[name] = tolerance
        else:
            others = tolerance
    return Tolerances(others, named)


def describe(tolerance: Tolerance) -> str:
    """As it is written in an option."""
    given = ((key, getattr(tolerance, name)) for key, name in _KEYS.items())
    return ",".join(f"{key}={value:g}" for key, value in given if value is not None)


def ulps_between(a: Array, b: Array) -> NDArray[np.float64]:
    """How many numbers of their type lie between each two; infinity for NaN and infinities."""
    bits = 8 * a.dtype.itemsize
    middle = np.uint64(1 << (bits - 1))
    places = []
    for values in (a, b.astype(a.dtype)):
        whole = np.ascontiguousarray(values).view(f"<u{a.dtype.itemsize}").astype(np.uint64)
        magnitude = whole & (middle - np.uint64(1))
        # In the order of the numbers, and both zeros at one place.
        places.append(np.where(whole >= middle, middle - magnitude, middle + magnitude))
    return np.where(np.isfinite(a) & np.isfinite(b), distance(*places), np.inf)


def distance(a: Array, b: Array) -> NDArray[np.float64]:
    """How far two tensors of numbers are apart, of integers without the rounding of floats."""
    if a.dtype.kind == "f":
        return np.abs(a.astype(np.float64) - b.astype(np.float64))
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    one, other = (x.astype(wide).view(np.uint64) for x in (a, b))
    # Modulo 2**64, which is right for the larger minus the smaller.
    return np.where(a > b, one - other, other - one).astype(np.float64)


def _largest(rows: Array, k: int) -> Array:
    """The places of the k largest of each row, in their order."""
    return np.sort(np.argsort(-rows, axis=1, kind="stable")[:, :k], axis=1)
