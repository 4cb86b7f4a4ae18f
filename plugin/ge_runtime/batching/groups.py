"""Groups: the requests of a batch that may share an execution, and the reason why they may.

Along an `equal` axis nothing is padded, so requests share an execution only if their sizes along
all such axes are equal. Safe from any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from enum import Enum

from ge_runtime.config import PaddingRule
from ge_runtime.errors import RequestFault
from ge_runtime.specs import Tensors


class Reason(Enum):
    """The reason why requests share an execution; the values are labels of a metric."""

    EQUAL = "equal"
    """Sizes are equal, so that no request is padded for another."""
    MASKED = "masked"
    """A mask or lengths give the graph the ends of each request's data."""
    NEUTRAL = "neutral"
    """The user states that padding along an axis with different sizes changes no answer."""
    REPRODUCIBLE = "reproducible"
    """Each request would be executed at this size alone, too."""


def equal_groups(
    members: Sequence[int],
    sizes: Mapping[str, Sequence[int]],
    equal: Collection[str],
    kinds: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """Group `members` by their sizes along the axes `equal`, in order of arrival.

    Args:
        members: Indexes of requests in the batch.
        sizes: Maps every axis to the sizes of all requests of the batch along it.
        equal: The axes along which sizes must be equal.
        kinds: The result of `kind_of` for each request of the batch; the kinds within a group are
            equal, too. None if all inputs have rows.
    """
    columns: list[Sequence[Hashable]] = [sizes[axis] for axis in equal]
    if kinds is not None:
        columns.append(kinds)
    if not columns:
        return [list(members)]
    groups: dict[tuple[Hashable, ...], list[int]] = {}
    for member in members:
        groups.setdefault(tuple([column[member] for column in columns]), []).append(member)
    return list(groups.values())


def reason_of(sizes: Sequence[Mapping[str, int]], rules: Mapping[str, PaddingRule]) -> Reason:
    """Return why two or more requests of these sizes by axis may share an execution."""
    unequal = {rules[axis] for axis in sizes[0] if len({own[axis] for own in sizes}) > 1}
    if PaddingRule.NEUTRAL in unequal:
        return Reason.NEUTRAL
    return Reason.MASKED if unequal else Reason.EQUAL


def kind_of(names: Iterable[str], tensors: Tensors) -> bytes:
    """Return the content of a request's inputs `names`, which have no rows in the graph.

    Only requests with equal contents may share an execution, because the graph takes one value of
    such an input for all rows.

    Raises:
        RequestFault: The rows of an input differ.
    """
    kinds = []
    for name in names:
        tensor = tensors[name]
        # Compared as bytes: NaN is not equal to itself.
        if len(tensor) > 1 and tensor.tobytes() != tensor[0].tobytes() * len(tensor):
            raise RequestFault(
                f"input '{name}': found rows that differ, expected equal rows "
                f"(batch_axis.{name}: none): the graph takes one value for all"
            )
        kinds.append(tensor[0].tobytes())
    return b"".join(kinds)
