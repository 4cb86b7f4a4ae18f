import numpy as np
import pytest
from runtime.support.configs import encoder_config, model_config, pixels_config, tensor, without

from ge_runtime.batching.feeds import Joined, Lengths, Mask
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.engines.contract import Contract
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import DType, TensorSpec

IDS = GraphTensor("input_ids", DType.INT64, (None, None))
MASK = GraphTensor("attention_mask", DType.INT64, (None, None))
EMBEDDING = GraphTensor("embedding", DType.FP32, (None, 4))


def between(config, inputs, outputs=(EMBEDDING,)):
    parsed = RuntimeConfig.parse(config, cores=1)
    return Contract.between(parsed, Signature(tuple(inputs), tuple(outputs)))


def faults_of(config, inputs, outputs=(EMBEDDING,)):
    with pytest.raises(ConfigFault) as raised:
        between(config, inputs, outputs)
    return list(raised.value.faults)


def test_every_graph_input_has_its_feed():
    contract = between(encoder_config({"pad.input_ids": "9"}), [MASK, IDS])
    assert contract.feeds == (
        Joined(TensorSpec("input_ids", DType.INT64, ("tokens",)), np.int64(9)),
        Mask(TensorSpec("attention_mask", DType.INT64, ("tokens",))),
    )
    assert contract.outputs == (TensorSpec("embedding", DType.FP32, (4,)),)
    assert all(type(f.pad) is np.int64 for f in contract.feeds if isinstance(f, Joined))


def test_lengths_input_is_passed_on_to_a_graph_that_has_it():
    lengths = GraphTensor("lengths", DType.INT32, (None, 1))
    contract = between(encoder_config(), [IDS, MASK, lengths])
    assert TensorSpec("lengths", DType.INT32, (1,)) in [feed.spec for feed in contract.feeds]


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.INT8, DType.FP16, DType.FP32])
def test_mask_has_the_graphs_own_type(dtype):
    mask = GraphTensor("attention_mask", dtype, (None, None))
    assert between(encoder_config(), [IDS, mask]).feeds[1].spec.dtype is dtype


@pytest.mark.parametrize(("dims", "spec"), [((None,), ()), ((None, 1), (1,)), (None, ())])
def test_lengths_have_the_graphs_own_type_and_rank(dims, spec):
    config = without(encoder_config({"lengths.count": "tokens"}), "mask.attention_mask")
    contract = between(config, [IDS, GraphTensor("count", DType.INT8, dims)])
    assert contract.feeds[1] == Lengths(TensorSpec("count", DType.INT8, spec), "tokens")


def test_results_that_nobody_declared_are_not_asked_for():
    extra = GraphTensor("hidden", DType.FP32, (None, None, 4))
    assert len(between(encoder_config(), [IDS, MASK], [extra, EMBEDDING]).outputs) == 1


def test_graph_fixed_to_the_only_possible_sizes_agrees():
    fixed = [GraphTensor(name, DType.INT64, (1, 1)) for name in ("input_ids", "attention_mask")]
    embedding = GraphTensor("embedding", DType.FP32, (1, 4))
    assert between(encoder_config({"limit.tokens": "1"}, batch=1), fixed, [embedding])


def test_graph_without_batch_dimension_agrees_with_requests_that_run_alone():
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("where", "INT64", [1, -1])],
        {"axes.x": "n", "limit.n": "4", "mask.m": "n", "lengths.count": "n"},
        batch=0,
    )
    contract = between(
        config,
        [
            GraphTensor("x", DType.FP32, (None,)),
            GraphTensor("m", DType.BOOL, (None,)),
            GraphTensor("count", DType.INT64, None),
        ],
        [GraphTensor("where", DType.INT64, (1, None))],
    )
    assert [feed.spec.dims for feed in contract.feeds] == [("n",), ("n",), ()]


def test_graph_without_declared_inputs_or_outputs_is_refused():
    assert faults_of(model_config([], []), [], [EMBEDDING]) == [
        "input: found nothing, expected at least one tensor of the graph",
        "output: found nothing, expected at least one tensor of the graph",
    ]


def changed(graph_tensor, **changes):
    kept = {"name": graph_tensor.name, "dtype": graph_tensor.dtype, "dims": graph_tensor.dims}
    return GraphTensor(**(kept | changes))


@pytest.mark.parametrize(
    ("config", "inputs", "outputs", "expected"),
    [
        (
            encoder_config(),
            [changed(IDS, name="ids"), MASK],
            [EMBEDDING],
            [
                "input 'input_ids': found no graph input 'input_ids', expected one of: "
                "attention_mask, ids",
                "graph input 'ids' INT64[*,*]: found nothing that feeds it, expected an input in "
                "config.pbtxt, or a parameter 'mask.ids' or 'lengths.ids'",
            ],
        ),
        (
            encoder_config(),
            [changed(IDS, dtype=DType.INT32), MASK],
            [EMBEDDING],
            ["input 'input_ids': found INT32[*,*] in the graph, expected INT64[*,tokens]"],
        ),
        (
            encoder_config(),
            [changed(IDS, dims=(None, 128)), MASK],
            [EMBEDDING],
            ["input 'input_ids': found INT64[*,128] in the graph, expected INT64[*,tokens]"],
        ),
        (
            encoder_config(),
            [changed(IDS, dims=(1, None)), MASK],
            [EMBEDDING],
            ["input 'input_ids': found INT64[1,*] in the graph, expected INT64[*,tokens]"],
        ),
        (
            encoder_config(),
            [IDS, changed(MASK, dims=(None, 1, None))],
            [EMBEDDING],
            [
                "parameter 'mask.attention_mask': found INT64[*,1,*] in the graph, expected "
                "INT64[*,tokens]"
            ],
        ),
        (
            encoder_config(),
            [IDS, changed(MASK, dtype=DType.BF16)],
            [EMBEDDING],
            [
                "parameter 'mask.attention_mask': found BF16[*,*] in the graph, expected "
                "FP32[*,tokens]"
            ],
        ),
        (
            encoder_config({"limit.tokens": "300", "lengths.count": "tokens"}),
            [IDS, MASK, GraphTensor("count", DType.UINT8, (None,))],
            [EMBEDDING],
            ["parameter 'lengths.count': found UINT8[*] in the graph, expected INT64[*]"],
        ),
        (
            encoder_config({"lengths.count": "tokens"}),
            [IDS, MASK, GraphTensor("count", DType.FP32, (None, 1))],
            [EMBEDDING],
            ["parameter 'lengths.count': found FP32[*,1] in the graph, expected INT64[*,1]"],
        ),
        (
            encoder_config({"mask.mask": "tokens", "lengths.count": "tokens"}),
            [IDS, MASK],
            [EMBEDDING],
            [
                "parameter 'mask.mask': found no graph input 'mask', expected one of: "
                "attention_mask, input_ids",
                "parameter 'lengths.count': found no graph input 'count', expected one of: "
                "attention_mask, input_ids",
            ],
        ),
        (
            encoder_config(),
            [IDS, MASK],
            [changed(EMBEDDING, name="embeddings"), changed(EMBEDDING, name="other")],
            [
                "output 'embedding': found no graph output 'embedding', expected one of: "
                "embeddings, other; did you mean 'embeddings'?"
            ],
        ),
        (
            encoder_config(),
            [IDS, MASK],
            [changed(EMBEDDING, dims=(None, 384))],
            ["output 'embedding': found FP32[*,384] in the graph, expected FP32[*,4]"],
        ),
        (
            pixels_config(),
            [],
            [],
            [
                "input 'image': found no graph input 'image', expected none: this model has no "
                "graph input",
                "parameter 'mask.mask': found no graph input 'mask', expected none: this model has "
                "no graph input",
                "output 'sums': found no graph output 'sums', expected none: this model has no "
                "graph output",
                "output 'inverted': found no graph output 'inverted', expected none: this model "
                "has no graph output",
            ],
        ),
    ],
)
def test_every_disagreement_is_listed(config, inputs, outputs, expected):
    assert faults_of(config, inputs, outputs) == expected
