"""The least that fails of the groups in which requests were executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ge_runtime.testing.model_under_test import Groups


def smallest_failing(groups: Groups, fails: Callable[[Groups], bool]) -> Groups | None:
    """What is left of `groups` when no group and no member can go without the failure going too.

    None if the groups do not fail to begin with: then what failed before was something else.
    """
    if not fails(groups):
        return None
    shrinking = True
    while shrinking:
        shrinking = False
        for less in _one_less(groups):
            if fails(less):
                groups, shrinking = less, True
                break
    return groups


def _one_less(groups: Groups) -> Iterator[Groups]:
    """The groups without one of them, then without one member."""
    for place in range(len(groups) if len(groups) > 1 else 0):
        yield [*groups[:place], *groups[place + 1 :]]
    for place, group in enumerate(groups):
        for member in group if len(group) > 1 else ():
            kept = [other for other in group if other != member]
            yield [*groups[:place], kept, *groups[place + 1 :]]
