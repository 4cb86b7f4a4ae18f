import pytest
from runtime.support.graphs import NONZERO

from ge_runtime.engines.analysis.torch_graph import TorchGraph, weights_bytes
from ge_runtime.memory.lifetimes import Intermediates, Lifetime

torch = pytest.importorskip("torch", reason="the torch engine needs torch")

pytestmark = pytest.mark.brute_force

ANY = torch.export.Dim.DYNAMIC


class Lambda(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exported(function, shape=(3, 4, 6)):
    """The program of a function of x, whose first size varies."""
    return torch.export.export(Lambda(function), (torch.ones(shape),), dynamic_shapes=({0: ANY},))


def held(function, x=(5, 4, 6)):
    """Return (bytes, first step, last step) of a program's intermediate results, in order."""
    found = TorchGraph(exported(function)).intermediates({"x": x})
    assert not found.unsized
    return [(each.nbytes, each.first, each.last) for each in found.lifetimes]


X = 5 * 4 * 6 * 4
"""The bytes of x."""


def test_results_live_until_they_are_delivered():
    assert held(lambda x: {"y": (x + 1).exp(), "z": x.abs()}) == [(X, 0, 1), (X, 1, 3), (X, 2, 3)]


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.transpose(1, 2),
        lambda a: a.contiguous(),
        lambda a: a[:, 1:],
        lambda a: a.unsqueeze(0).expand(7, -1, -1, -1),
        lambda a: a.split(2, dim=1)[1],
        lambda a: a.add_(1),
    ],
    ids=["transpose", "contiguous", "slice", "expand", "split", "in-place"],
)
def test_view_takes_no_bytes_of_its_own(view):
    """The source of a view lives until the view is read; the result is small."""
    (own, *_), (result, *_) = held(lambda x: {"y": view(x.exp()).sum()})
    assert own == X
    assert result == 4


@pytest.mark.parametrize(
    ("copy", "nbytes"),
    [(lambda a: a.transpose(1, 2).reshape(-1, 12), X), (lambda a: a.to(torch.float16), X // 2)],
    ids=["reshape", "to"],
)
def test_view_that_needs_a_copy_takes_its_bytes(copy, nbytes):
    assert [taken for taken, *_ in held(lambda x: {"y": copy(x.exp()).sum()})][:2] == [X, nbytes]


def test_several_results_of_one_node_are_one_buffer():
    sizes = [nbytes for nbytes, *_ in held(lambda x: {"y": x.max(dim=2)[0]})]
    assert sizes == [5 * 4 * 4 + 5 * 4 * 8]  # values FP32, indices INT64


def test_a_size_that_depends_on_data_is_counted():
    module, arguments = NONZERO.torch()
    program = torch.export.export(module, arguments, dynamic_shapes=({0: ANY},))
    assert TorchGraph(program).intermediates({"x": (9,)}) == Intermediates((), unsized=1)


def test_nodes_of_inner_graphs_are_counted_as_unsized():
    def inner(x):
        return x.exp().abs()

    found = TorchGraph(
        exported(lambda x: {"y": torch.cond(x.sum() > 0, inner, inner, (x,))})
    ).intermediates({"x": (5, 4, 6)})
    assert found.unsized == 4
    assert Lifetime("sum_1", 4, 0, 1) in found.lifetimes


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 3, bias=False)
        self.two = torch.nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("fives", torch.ones(5, dtype=torch.float16))

    def forward(self, x):
        return {"y": self.two(self.one(x)) + self.fives.sum() + torch.tensor([1.0, 2.0, 3.0])}


def test_weights_buffers_and_constants_are_counted_once():
    program = torch.export.export(Tied(), (torch.ones(2, 3),))
    assert weights_bytes(program) == 3 * 3 * 4 + 5 * 2 + 3 * 4
