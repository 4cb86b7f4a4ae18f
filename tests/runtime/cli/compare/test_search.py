"""The search for the first tensor that is beyond, on graphs that are only names."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.cli.compare.search import first_beyond, spread


class Graph:
    """taken: of each tensor, by number, those before it that its node takes."""

    def __init__(self, taken):
        self._taken = {f"t{place}": [f"t{each}" for each in own] for place, own in enumerate(taken)}

    def before(self, name):
        found = set()
        rest = [*self._taken[name]]
        while rest:
            each = rest.pop()
            if each not in found:
                found.add(each)
                rest += self._taken[each]
        return sorted(found, key=lambda each: int(each[1:]))

    def taken(self, name):
        return self._taken[name]


@st.composite
def graphs(draw):
    """A graph, and which of its tensors are beyond: the last is."""
    count = draw(st.integers(1, 40))
    taken = [
        draw(st.lists(st.integers(0, place - 1), unique=True, max_size=3)) if place else []
        for place in range(count)
    ]
    beyond = {f"t{place}" for place in draw(st.sets(st.integers(0, count - 1)))}
    return Graph(taken), f"t{count - 1}", beyond | {f"t{count - 1}"}


@given(graphs(), st.integers(1, 9))
def test_what_is_found_is_beyond_while_all_that_it_takes_is_not(case, cuts):
    graph, last, beyond = case
    found = first_beyond(graph, last, lambda names: {n: n in beyond for n in names}, cuts)
    assert found in beyond
    assert not beyond & {*graph.taken(found)}
    assert found == last or found in graph.before(last)


@pytest.mark.parametrize("first", [0, 1, 499, 998, 999])
def test_a_chain_is_cut_few_times(first):
    graph = Graph([[]] + [[place] for place in range(999)])
    asked = []

    def measure(names):
        asked.append(names)
        return {name: int(name[1:]) >= first for name in names}

    assert first_beyond(graph, "t999", measure, 8) == f"t{first}"
    assert len(asked) <= 5  # 9 to the fourth is more than 999, and what the node takes
    assert all(len(names) <= 8 for names in asked)


@given(st.integers(-1, 50), st.integers(1, 60), st.integers(1, 9))
def test_cuts_are_even(low, gap, most):
    points = spread(low, low + gap, most)
    assert len(points) == min(most, gap - 1)
    assert len({*points}) == len(points)
    ends = [low, *points, low + gap]
    widths = [b - a for a, b in pairwise(ends)]
    assert max(widths) - min(widths) <= 1
