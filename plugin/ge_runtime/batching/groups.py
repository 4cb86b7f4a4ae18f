"""Groups: the requests of a batch that may share an execution, and why they may.

Along an `equal` axis nothing is padded, so requests share an execution only if their sizes along
all such axes are equal. Numbers only; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from enum import Enum

from ge_runtime.config import PaddingRule
from ge_runtime.errors import RequestFault
from ge_runtime.specs import Tensors


class Reason(Enum):
    """Why the requests of one execution may share it; values are those of the metric's label."""

    EQUAL = "equal"
    """Their sizes are equal: none is padded for another."""
    MASKED = "masked"
    """The graph is told where the data of each ends."""
    NEUTRAL = "neutral"
    """The user says that padding changes no answer: of an axis along which they differ."""
    REPRODUCIBLE = "reproducible"
    """Each of them would be executed at this size alone, too."""


def equal_groups(
    members: Sequence[int],
    sizes: Mapping[str, Sequence[int]],
    equal: Collection[str],
    kinds: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """`members` by their sizes along the axes `equal`; groups and members in order of arrival.

    members: places in the batch; sizes: of every axis, for all requests of the batch. kinds: of
    all requests, if they have kinds, which share no group either.
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
    """Why two or more requests of these sizes, axis to size, may share an execution."""
    unequal = {rules[axis] for axis in sizes[0] if len({own[axis] for own in sizes}) > 1}
    if PaddingRule.NEUTRAL in unequal:
        return Reason.NEUTRAL
    return Reason.MASKED if unequal else Reason.EQUAL


def kind_of(names: Iterable[str], tensors: Tensors) -> bytes:
    """The content of inputs that the graph takes without rows: equal for requests of one kind."""
    kinds = []
    for name in names:
        tensor = tensors[name]
        # Compared as bytes: NaN is not equal to itself.
        if len(tensor) > 1 and tensor.tobytes() != tensor[0].tobytes() * len(tensor):
            raise RequestFault(
                f"input '{name}': found rows that differ, expected equal ones "
                f"(batch_axis.{name}: none): the graph takes one value for all"
            )
        kinds.append(tensor[0].tobytes())
    return b"".join(kinds)
