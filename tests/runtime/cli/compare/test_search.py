"""The search for the first tensor beyond the limit, on graphs of names."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.cli.compare.cut_graphs import first_exceeding, spread


class Graph:
    """Tensors t0, t1, ...; `inputs` has the numbers of the inputs of each."""

    def __init__(self, inputs):
        self._inputs = {f"t{at}": [f"t{each}" for each in own] for at, own in enumerate(inputs)}

    def before(self, name):
        found = set()
        rest = [*self._inputs[name]]
        while rest:
            each = rest.pop()
            if each not in found:
                found.add(each)
                rest += self._inputs[each]
        return sorted(found, key=lambda each: int(each[1:]))

    def inputs_of(self, name):
        return self._inputs[name]


@st.composite
def graphs(draw):
    """A graph, its last tensor, and the tensors beyond the limit, which include the last."""
    count = draw(st.integers(1, 40))
    inputs = [
        draw(st.lists(st.integers(0, place - 1), unique=True, max_size=3)) if place else []
        for place in range(count)
    ]
    beyond = {f"t{place}" for place in draw(st.sets(st.integers(0, count - 1)))}
    return Graph(inputs), f"t{count - 1}", beyond | {f"t{count - 1}"}


@given(graphs(), st.integers(1, 9))
def test_the_found_tensor_is_beyond_and_its_inputs_are_not(case, cuts):
    graph, last, beyond = case
    found = first_exceeding(graph, last, lambda names: {n: n in beyond for n in names}, cuts)
    assert found in beyond
    assert not beyond & {*graph.inputs_of(found)}
    assert found == last or found in graph.before(last)


@pytest.mark.parametrize("first", [0, 1, 499, 998, 999])
def test_a_chain_needs_few_cuts(first):
    graph = Graph([[]] + [[place] for place in range(999)])
    calls = []

    def measure(names):
        calls.append(names)
        return {name: int(name[1:]) >= first for name in names}

    assert first_exceeding(graph, "t999", measure, 8) == f"t{first}"
    assert len(calls) <= 5  # 9**4 > 999, and one call for the inputs
    assert all(len(names) <= 8 for names in calls)


@given(st.integers(-1, 50), st.integers(1, 60), st.integers(1, 9))
def test_cuts_are_evenly_spaced(low, gap, most):
    points = spread(low, low + gap, most)
    assert len(points) == min(most, gap - 1)
    assert len({*points}) == len(points)
    ends = [low, *points, low + gap]
    widths = [b - a for a, b in pairwise(ends)]
    assert max(widths) - min(widths) <= 1
