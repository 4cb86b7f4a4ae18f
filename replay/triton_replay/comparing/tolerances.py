"""Allowed differences between two responses, and between two tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from triton_replay.capture.renaming import Names
from triton_replay.errors import ReplayError

Array = NDArray[Any]

_KEYS: Final = {
    "abs": "absolute",
    "rel": "relative",
    "scale": "scaled",
    "ulp": "ulp",
    "cosine": "cosine",
    "topk": "top_k",
    "json": "json",
}


@dataclass(frozen=True)
class Tolerance:
    """Allowed differences between two tensors; None disables a criterion.

    With `absolute`, `relative`, `scaled` or `ulp` set, each element must satisfy
    `|a - b| <= absolute + relative * |a| + scaled * max |a|` or lie within `ulp` units in the last
    place. A float tensor of zeros never equals a tensor with other values.

    Args:
        absolute: Absolute difference of elements.
        relative: Difference of elements relative to `|a|`.
        scaled: Difference of elements relative to the tensor's largest finite `|a|`.
        ulp: Difference of elements in units in the last place.
        cosine: Least cosine similarity of rows along the last axis.
        top_k: Number of largest elements of each row whose positions must be equal.
        json: Whether elements of BYTES are compared as JSON, with `absolute` and `relative` for
            their numbers.
    """

    absolute: float | None = None
    relative: float | None = None
    scaled: float | None = None
    ulp: int | None = None
    cosine: float | None = None
    top_k: int | None = None
    json: bool | None = None

    @property
    def is_numeric(self) -> bool:
        """True if there is a criterion for numeric tensors."""
        return any(value is not None for name, value in vars(self).items() if name != "json")

    def near(self, a: object, b: object) -> bool:
        """Return whether two JSON values are equal, or numbers within the tolerance."""
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            return a == b
        if isinstance(a, bool) or isinstance(b, bool):
            return a is b
        return a == b or bool(self._near(np.array(float(a)), np.array(float(b)), ""))

    def violated(self, a: Array, b: Array, datatype: str = "") -> Array:
        """Return a bool for each element that exceeds the tolerance.

        Args:
            a: The reference, of any shape.
            b: A tensor of the same shape and datatype.
            datatype: Triton's datatype if the arrays have another dtype: BF16 is stored as FP32.
        """
        wrong = np.zeros(a.shape, bool)
        if a.dtype.kind not in "fiu":
            return np.asarray(a != b, bool)
        if a.dtype.kind == "f" and a.any() != b.any():
            # All values of one tensor are zero. No tolerance hides a lost output.
            return np.asarray(a != b, bool)
        criteria = (self.absolute, self.relative, self.scaled, self.ulp)
        if any(criterion is not None for criterion in criteria):
            wrong |= ~self._near(a, b, datatype)
        if a.size:
            rows = (-1, a.shape[-1] if a.ndim else 1)
            far = ~self._rows_agree(a.reshape(rows), b.reshape(rows))
            wrong |= np.broadcast_to(far[:, None], (len(far), rows[1])).reshape(a.shape)
        return wrong

    def _near(self, a: Array, b: Array, datatype: str) -> Array:
        near = np.asarray(a == b)
        if a.dtype.kind == "f":
            near |= np.isnan(a) & np.isnan(b)
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.abs(a.astype(np.float64))
            scale = size[np.isfinite(size)].max(initial=0.0)
            allowed = (
                (self.absolute or 0.0)
                + (self.relative or 0.0) * size
                + (self.scaled or 0.0) * scale
            )
            # Infinity equals itself only.
            near |= np.isfinite(a) & (distance(a, b) <= allowed)
        if self.ulp is not None and a.dtype.kind == "f":
            # BF16 has the upper half of the bits of FP32.
            step = 2**16 if datatype == "BF16" else 1
            near |= ulps_between(a, b) <= self.ulp * step
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


DEFAULT: Final = Tolerance(relative=1e-4, scaled=1e-6)
"""Tolerance of FP32 and FP64. `scaled` is eight times the resolution of FP32: this accepts another
order of summation, and still compares probabilities below 1e-5."""
HALF: Final = Tolerance(ulp=2)
"""Tolerance of FP16 and BF16, whose adjacent numbers differ by more than `DEFAULT`."""
EXACT: Final = Tolerance(absolute=0.0)


@dataclass(frozen=True)
class Tolerances:
    """Rules for all responses: tolerances of outputs, fields that are ignored, and names.

    Args:
        others: Tolerance of float outputs that `named` lacks; None for the datatype's tolerance.
        named: Tolerances by "MODEL/OUTPUT" or "OUTPUT".
        ignored: Fields that are not compared, such as "parameters.ms" or "outputs.y"; "*" stands
            for any text.
        names: Names that differ between the servers.
    """

    others: Tolerance | None = None
    named: Mapping[str, Tolerance] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    names: Names = field(default_factory=Names)

    def ignores(self, path: str) -> bool:
        """Return whether the field at a path is not compared, or is a part of such a field."""
        return bool(self.ignored) and _pattern(self.ignored).fullmatch(path) is not None

    def of(self, model: str, output: str, datatype: str) -> Tolerance:
        """Return the tolerance of an output.

        Args:
            model: Name of the model.
            output: Name of the output.
            datatype: Triton's name. Without a named tolerance only floats may differ.
        """
        default = _FLOATS.get(datatype, EXACT)
        found = self.named.get(f"{model}/{output}", self.named.get(output))
        if found is None and (datatype in _FLOATS or datatype == "BYTES"):
            found = self.others
        if found is None or not (found.json if datatype == "BYTES" else found.is_numeric):
            return default
        return found


_FLOATS: Final = {"FP64": DEFAULT, "FP32": DEFAULT, "FP16": HALF, "BF16": HALF}


@lru_cache
def _pattern(ignored: tuple[str, ...]) -> re.Pattern[str]:
    paths = "|".join(re.escape(path).replace(r"\*", ".*") for path in ignored)
    return re.compile(rf"(?:{paths})(?:[.\[].*)?", re.DOTALL)


def parse_tolerances(
    texts: Sequence[str], ignored: Sequence[str] = (), names: Names | None = None
) -> Tolerances:
    """Parse values of `--tolerance` and `--ignore`.

    Args:
        texts: Values such as `[[MODEL/]OUTPUT:]abs=1e-5,rel=1e-4,ulp=4,cosine=0.9,topk=5`.
        ignored: Field names, separated by commas.
        names: Names that differ between the servers.

    Raises:
        ReplayError: A value is invalid.
    """
    others, named = None, {}
    for text in texts:
        name, separator, rules = text.rpartition(":")
        try:
            tolerance = Tolerance(**dict(map(_criterion, rules.split(","))))  # type: ignore[arg-type]
        except (KeyError, ValueError) as error:
            text = (
                f"--tolerance: found {text!r}, expected [OUTPUT:]KEY=NUMBER,..., with the keys "
                f"{', '.join(_KEYS)}; numbers of 0 or more, cosine at most 1, topk at least 1; "
                "json without a number"
            )
            raise ReplayError(text) from error
        if separator:
            named[name] = tolerance
        else:
            others = tolerance
    paths = tuple(path.strip() for text in ignored for path in text.split(","))
    if "" in paths:
        raise ReplayError(f"--ignore: found {', '.join(map(repr, ignored))}, expected FIELD,...")
    return Tolerances(others, named, paths, names or Names())


def _criterion(rule: str) -> tuple[str, float]:
    """Parse `KEY=NUMBER`. Raise KeyError or ValueError."""
    key, _, text = rule.partition("=")
    name = _KEYS[key.strip()]
    if name == "json":
        if text:
            raise ValueError
        return name, True
    value = int(text) if name in ("ulp", "top_k") else float(text)
    # A comparison with NaN is false.
    if not (name == "top_k") <= value <= (1.0 if name == "cosine" else inf):
        raise ValueError
    return name, value


def describe(tolerance: Tolerance) -> str:
    """Return a tolerance in the form of `--tolerance`."""
    criteria = ((key, getattr(tolerance, name)) for key, name in _KEYS.items())
    return ",".join(f"{key}={value:g}" for key, value in criteria if value is not None)


def ulps_between(a: Array, b: Array) -> NDArray[np.float64]:
    """Return the distance of elements in units in the last place; inf unless both are finite."""
    bits = 8 * a.dtype.itemsize
    middle = np.uint64(1 << (bits - 1))
    places = []
    for values in (a, b.astype(a.dtype)):
        whole = np.ascontiguousarray(values).view(f"<u{a.dtype.itemsize}").astype(np.uint64)
        magnitude = whole & (middle - np.uint64(1))
        # Places ascend like the numbers; both zeros have the same place.
        places.append(np.where(whole >= middle, middle - magnitude, middle + magnitude))
    return np.where(np.isfinite(a) & np.isfinite(b), distance(*places), np.inf)


def distance(a: Array, b: Array) -> NDArray[np.float64]:
    """Return the absolute difference of elements, computed exactly for integers."""
    if a.dtype.kind == "f":
        return np.abs(a.astype(np.float64) - b.astype(np.float64))
    # Modulo 2**64, the larger minus the smaller integer is exact.
    one, other = (x.astype(np.uint64) for x in (a, b))
    return np.where(a > b, one - other, other - one).astype(np.float64)


def _largest(rows: Array, k: int) -> Array:
    """Return the positions of the k largest elements of each row, ascending."""
    return np.sort(np.argsort(-rows, axis=1, kind="stable")[:, :k], axis=1)
