import numpy as np
import pytest
from runtime.support.configs import encoder_config, model_config, tensor, without

from ge_runtime.batching.feeds import (
    AccumulatedElementCount,
    AccumulatedElementCountWithZero,
    ElementCount,
    ItemShape,
    ItemShapeFlattened,
    Joined,
    Lengths,
    Mask,
    MaxElementCountAsShape,
    Offsets,
    Positions,
)
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


def graph(name, dtype, *dims):
    return GraphTensor(name, DType(dtype), dims)


def with_batch_input(kind, **more):
    batch_input = {
        "kind": kind,
        "target_name": ["a", "b"],
        "data_type": "TYPE_INT32",
        "source_input": ["input_ids"],
    }
    return encoder_config(batch_input=[batch_input], **more)


def test_every_graph_input_has_its_feed():
    contract = between(encoder_config({"pad.input_ids": "9"}), [MASK, IDS])
    assert contract.feeds == (
        Joined(TensorSpec("input_ids", DType.INT64, ("tokens",)), np.int64(9)),
        Mask(TensorSpec("attention_mask", DType.INT64, ("tokens",))),
    )
    assert contract.outputs == (TensorSpec("embedding", DType.FP32, (4,)),)
    assert all(type(f.pad) is np.int64 for f in contract.feeds if isinstance(f, Joined))


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.INT8, DType.FP16, DType.FP32])
def test_mask_has_the_graphs_own_type(dtype):
    mask = GraphTensor("attention_mask", dtype, (None, None))
    assert between(encoder_config(), [IDS, mask]).feeds[1].spec.dtype is dtype


@pytest.mark.parametrize(("dims", "spec"), [((None,), ()), ((None, 1), (1,)), (None, ())])
def test_lengths_have_the_graphs_own_type_and_rank(dims, spec):
    config = without(encoder_config({"lengths.count": "tokens"}), "mask.attention_mask")
    contract = between(config, [IDS, GraphTensor("count", DType.INT8, dims)])
    assert contract.feeds[1] == Lengths(TensorSpec("count", DType.INT8, spec), "tokens")


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


# -- what else a graph may be fed --------------------------------------------------------------

SOURCE = TensorSpec("input_ids", DType.INT64, ("tokens",))


def test_positions_and_offsets_have_the_graphs_own_type():
    config = encoder_config({"positions.at": "tokens", "offsets.cu": "tokens"})
    inputs = [IDS, MASK, graph("at", "INT8", None, None), graph("cu", "INT32", None)]
    assert between(config, inputs).feeds[2:] == (
        Positions(TensorSpec("at", DType.INT8, ("tokens",))),
        Offsets(TensorSpec("cu", DType.INT32, ()), "tokens"),
    )


@pytest.mark.parametrize(
    ("kind", "dims", "feed"),
    [
        ("BATCH_ELEMENT_COUNT", [None], ElementCount),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [None], AccumulatedElementCount),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [None], AccumulatedElementCountWithZero),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [None], MaxElementCountAsShape),
        ("BATCH_ITEM_SHAPE", [None, 1], ItemShape),
        ("BATCH_ITEM_SHAPE_FLATTEN", [None], ItemShapeFlattened),
    ],
)
def test_each_target_of_a_batch_input_has_its_feed(kind, dims, feed):
    contract = between(
        with_batch_input(kind), [IDS, MASK, graph("a", "INT32", *dims), graph("b", "INT32", *dims)]
    )
    assert contract.feeds[2:] == (
        feed(TensorSpec("a", DType.INT32, ()), SOURCE),
        feed(TensorSpec("b", DType.INT32, ()), SOURCE),
    )


def test_batch_inputs_of_single_rows_have_fixed_sizes():
    config = with_batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", batch=1)
    assert between(config, [IDS, MASK, graph("a", "INT32", 2), graph("b", "INT32", None)])
    assert faults_of(config, [IDS, MASK, graph("a", "INT32", 1), graph("b", "INT32", 2)]) == [
        "batch_input[0]: found INT32[1] in the graph, expected INT32[2]"
    ]
    counts = with_batch_input("BATCH_ELEMENT_COUNT", batch=1)
    assert between(counts, [IDS, MASK, graph("a", "INT32", 1), graph("b", "INT32", 1)])


def test_packed_inputs_and_outputs_have_no_batch_dimension():
    config = encoder_config(
        {
            "packing": "tokens",
            "positions.at": "tokens",
            "offsets.cu": "tokens",
            "axes.hidden": "tokens",
        }
    )
    config["output"].append(tensor("hidden", "FP32", [-1, 2]))
    inputs = [
        graph("input_ids", "INT64", None),
        graph("attention_mask", "BOOL", None),
        graph("at", "INT64", None),
        graph("cu", "INT64", None),
    ]
    contract = between(config, inputs, [EMBEDDING, graph("hidden", "FP32", None, 2)])
    assert [spec.axes for spec in contract.outputs] == [(), ("tokens",)]
    assert faults_of(
        config, [IDS, *inputs[1:]], [EMBEDDING, graph("hidden", "FP32", 1, None, 2)]
    ) == [
        "input 'input_ids': found INT64[*,*] in the graph, expected INT64[tokens]",
        "output 'hidden': found FP32[1,*,2] in the graph, expected FP32[tokens,2]",
    ]


def test_a_batch_dimension_without_max_batch_size_is_reported():
    unbatched = encoder_config(max_batch_size=0)
    cure = "; or max_batch_size above 0, if the first * is the batch"
    ids, mask, embedding = faults_of(unbatched, [IDS, MASK])
    assert ids == f"input 'input_ids': found INT64[*,*] in the graph, expected INT64[tokens]{cure}"
    assert mask.endswith(f"expected INT64[tokens]{cure}")
    assert embedding.endswith(f"expected FP32[4]{cure}")
    (fixed, *_) = faults_of(unbatched, [graph("input_ids", "INT64", 8, None), MASK])
    assert fixed.endswith("expected INT64[tokens]")


def test_what_a_packed_graph_has_many_of_is_not_one():
    config = encoder_config({"packing": "tokens", "limit.tokens": "1"})
    inputs = [graph("input_ids", "INT64", 1), graph("attention_mask", "INT64", None)]
    assert faults_of(config, inputs) == [
        "input 'input_ids': found INT64[1] in the graph, expected INT64[tokens]"
    ]


def test_a_row_of_padding_has_length_one():
    config = encoder_config({"gears.batch": "8"})
    contract = between(config, [IDS, MASK, graph("lengths", "INT32", None, 1)])
    assert Joined(TensorSpec("lengths", DType.INT32, (1,)), np.int32(1)) in contract.feeds


def test_pads_of_bf16_are_bits():
    config = model_config(
        [tensor("x", "BF16", [-1])],
        [tensor("y", "BF16", [1])],
        {"axes.x": "n", "limit.n": "4", "pad.x": "-1"},
    )
    (feed,) = between(config, [graph("x", "BF16", None, None)], [graph("y", "BF16", None, 1)]).feeds
    assert (feed.pad, type(feed.pad)) == (0xBF80, np.uint16)


# -- inputs and outputs that bypass the graph --------------------------------------------------


def passing(parameters=None):
    return model_config(
        [tensor("x", "FP32", [4]), tensor("extra", "FP32", [-1])],
        [tensor("y", "FP32", [1]), tensor("back", "FP32", [-1])],
        {"pass.back": "extra", **(parameters or {})},
    )


X, Y = GraphTensor("x", DType.FP32, (None, 4)), GraphTensor("y", DType.FP32, (None, 1))


def test_passthrough_is_neither_fed_nor_requested():
    contract = between(passing(), [X], [Y])
    assert [feed.spec.name for feed in contract.feeds] == ["x"]
    assert [spec.name for spec in contract.outputs] == ["y"]


def test_what_is_passed_is_fed_to_a_graph_that_has_it():
    config = passing({"axes.extra": "n", "limit.n": "4"})
    contract = between(config, [X, graph("extra", "FP32", None, None)], [Y])
    assert [feed.spec.name for feed in contract.feeds] == ["x", "extra"]


def test_prepared_tensors_are_fed_instead_of_inputs():
    config = model_config(
        [tensor("text", "STRING", [1])],
        [tensor("embedding", "FP32", [4])],
        {"prepared.input_ids": "INT64[tokens]", "limit.tokens": "8", "prepared.lengths": "INT32[]"}
        | {"axis_length.tokens": "lengths", "mask.attention_mask": "tokens"},
    )
    contract = between(config, [IDS, MASK])
    assert [feed.spec.name for feed in contract.feeds] == ["input_ids", "attention_mask"]


# -- graphs of fixed sizes ---------------------------------------------------------------------

ONE_GEAR = {"gears.batch": "8", "gears.tokens": "32"}
FIXED = [GraphTensor(name, DType.INT64, (8, 32)) for name in ("input_ids", "attention_mask")]


def test_graph_fixed_to_the_only_gear_agrees():
    assert between(encoder_config(ONE_GEAR), FIXED, [graph("embedding", "FP32", 8, 4)])
    joint = {"gears.batch,tokens": "8x32", "offsets.cu": "tokens"}
    cu = graph("cu", "INT64", 9)
    assert between(encoder_config(joint), [*FIXED, cu], [graph("embedding", "FP32", 8, 4)])


@pytest.mark.parametrize(
    "parameters",
    [
        {"gears.batch": "4, 8", "gears.tokens": "32"},
        {"gears.batch": "8", "gears.tokens": "16, 32"},
        {**ONE_GEAR, "oversize": "fallback"},
        {"gears.batch": "auto 1", "gears.tokens": "32"},
    ],
)
def test_graph_fixed_to_one_of_several_sizes_is_refused(parameters):
    faults = faults_of(encoder_config(parameters), FIXED)
    assert (
        "input 'input_ids': found INT64[8,32] in the graph, expected INT64[batch,tokens]" in faults
    )


def changed(graph_tensor, **changes):
    kept = {"name": graph_tensor.name, "dtype": graph_tensor.dtype, "dims": graph_tensor.dims}
    return GraphTensor(**(kept | changes))


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (changed(IDS, dtype=DType.INT32), "INT32[*,*]"),
        (changed(IDS, dtype=DType.BYTES), "BYTES[*,*]"),
        (changed(IDS, dims=(None, 128)), "INT64[*,128]"),
        (changed(IDS, dims=(1, None)), "INT64[1,*]"),
    ],
)
def test_an_input_that_differs_from_the_graphs_is_refused(ids, found):
    assert faults_of(encoder_config(), [ids, MASK]) == [
        f"input 'input_ids': found {found} in the graph, expected INT64[batch,tokens]"
    ]


COUNT, CU = {"lengths.count": "tokens"}, {"offsets.cu": "tokens"}
AT = {"limit.tokens": "129", "positions.at": "tokens"}
WIDE_MASK, BF16_MASK = changed(MASK, dims=(None, 1, None)), changed(MASK, dtype=DType.BF16)


@pytest.mark.parametrize(
    ("parameters", "inputs", "fault"),
    [
        ({}, [WIDE_MASK], "'mask.attention_mask': found INT64[*,1,*], INT64[batch,tokens]"),
        ({}, [BF16_MASK], "'mask.attention_mask': found BF16[*,*], FP32[batch,tokens]"),
        (
            {"limit.tokens": "300", **COUNT},
            [MASK, graph("count", "UINT8", None)],
            "'lengths.count': found UINT8[*], INT64[batch]",
        ),
        (
            COUNT,
            [MASK, graph("count", "FP32", None, 1)],
            "'lengths.count': found FP32[*,1], INT64[batch,1]",
        ),
        (
            AT,
            [MASK, graph("at", "INT8", None, None)],
            "'positions.at': found INT8[*,*], INT64[batch,tokens]",
        ),
        (
            {"limit.tokens": "16", **CU},
            [MASK, graph("cu", "INT8", None)],
            "'offsets.cu': found INT8[*], INT64[batch + 1]",
        ),
        (
            CU,
            [MASK, graph("cu", "INT32", None, 1)],
            "'offsets.cu': found INT32[*,1], INT32[batch + 1]",
        ),
    ],
)
def test_a_generated_input_of_another_shape_or_type_is_refused(parameters, inputs, fault):
    expected = fault.replace(", ", " in the graph, expected ", 1)
    assert faults_of(encoder_config(parameters), [IDS, *inputs]) == [f"parameter {expected}"]


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        ("BATCH_ITEM_SHAPE", ("INT32", None, 2), ("FP32", None, 1), "INT32[batch,1]"),
        ("BATCH_ITEM_SHAPE_FLATTEN", ("INT32", 8), ("INT32", None, None), "INT32[batch * 1]"),
    ],
)
def test_a_batch_input_of_another_shape_or_type_is_refused(kind, first, second, expected):
    tensors = [graph("a", *first), graph("b", *second)]
    assert faults_of(with_batch_input(kind), [IDS, MASK, *tensors]) == [
        f"batch_input[0]: found {tensor} in the graph, expected {expected}" for tensor in tensors
    ]


def test_tensors_that_the_graph_lacks_or_has_without_a_source_are_listed():
    assert faults_of(encoder_config(), [changed(IDS, name="ids"), MASK]) == [
        "input 'input_ids': found no graph input 'input_ids', expected one of: attention_mask, ids",
        "graph input 'ids' INT64[*,*]: found no source, expected an input in config.pbtxt, one of "
        "the parameters 'mask.ids', 'lengths.ids', 'positions.ids', 'offsets.ids', 'constant.ids', "
        "'state.ids', 'prepared.ids', or a batch_input",
    ]
    outputs = [changed(EMBEDDING, name="embeddings"), changed(EMBEDDING, name="other")]
    assert faults_of(encoder_config({"mask.mask": "tokens", **COUNT}), [IDS, MASK], outputs) == [
        *(
            f"parameter '{field}': found no graph input '{field.split('.')[1]}', expected one of: "
            "attention_mask, input_ids"
            for field in ("mask.mask", "lengths.count")
        ),
        "output 'embedding': found no graph output 'embedding', expected one of: embeddings, "
        "other; did you mean 'embeddings'?",
    ]
    wide = changed(EMBEDDING, dims=(None, 384))
    assert faults_of(encoder_config(), [IDS, MASK], [wide]) == [
        "output 'embedding': found FP32[*,384] in the graph, expected FP32[batch,4]"
    ]


def test_a_passed_input_that_the_graph_has_as_well_must_agree():
    axes = passing({"axes.extra": "n", "limit.n": "4"})
    assert faults_of(axes, [X, graph("extra", "FP16", None, None)], [Y]) == [
        "input 'extra': found FP16[*,*] in the graph, expected FP32[batch,n]"
    ]
    (fault,) = faults_of(passing(), [X, graph("extra", "FP32", None, None)], [Y])
    assert fault.startswith("parameter 'axes.extra': found nothing, expected a name for each -1")
    note = model_config(
        [tensor("x", "FP32", [4]), tensor("note", "STRING", [1])],
        [tensor("y", "FP32", [1]), tensor("back", "STRING", [1])],
        {"pass.back": "note"},
    )
    (fault,) = faults_of(note, [X, graph("note", "BYTES", None, 1)], [Y])
    assert fault.startswith("input 'note': found a graph input of its name, expected a graph input")


# -- where rows end ----------------------------------------------------------------------------


UNTOLD = without(encoder_config(), "mask.attention_mask")


def test_lengths_without_a_graph_input_are_refused():
    assert faults_of(UNTOLD, [IDS]) == [
        "parameter 'axis_length.tokens': found no graph input for it, expected an input "
        "with the ends of rows: 'mask.<graph input>', 'lengths.<graph input>' or "
        "'offsets.<graph input>' of 'tokens'; or padding.tokens: neutral, if the graph "
        "does not need them"
    ]


def test_lengths_are_enough_where_the_graph_has_them_or_need_not_know():
    between(UNTOLD, [IDS, graph("lengths", DType.INT32, None, 1)])
    neutral = {**UNTOLD["parameters"], "padding.tokens": {"string_value": "neutral"}}
    between({**UNTOLD, "parameters": neutral}, [IDS])
