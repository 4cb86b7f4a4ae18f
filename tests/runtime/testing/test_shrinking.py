from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.testing.shrinking import smallest

MEMBERS = st.integers(0, 9)
GROUPS = st.permutations(range(10)).flatmap(
    lambda order: st.lists(st.integers(1, 9), max_size=4).map(
        lambda cuts: [
            order[start:end]
            for start, end in zip([0, *sorted(set(cuts))], [*sorted(set(cuts)), 10], strict=True)
        ]
    )
)


@given(GROUPS, st.frozensets(MEMBERS, min_size=1, max_size=3))
def test_what_is_left_are_the_members_that_fail_wherever_they_are(groups, culprits):
    left = smallest(groups, lambda less: culprits <= set(chain.from_iterable(less)))
    assert sorted(chain.from_iterable(left)) == sorted(culprits)
    assert all(any(set(group) <= set(own) for own in groups) for group in left)


@given(GROUPS, MEMBERS, MEMBERS)
def test_members_that_only_fail_together_stay_together(groups, one, other):
    def fails(less):
        return any({one, other} <= set(group) for group in less)

    left = smallest(groups, fails)
    if fails(groups):
        assert [set(group) for group in left] == [{one, other}]
    else:
        assert left is None
