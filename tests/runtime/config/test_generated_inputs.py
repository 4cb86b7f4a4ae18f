import pytest
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.parsing import assert_fault, parse

from ge_runtime.config import BatchInput, BatchInputKind
from ge_runtime.specs import DType


def entry(kind="BATCH_ELEMENT_COUNT", **changes):
    return {
        "kind": kind,
        "target_name": ["counts"],
        "data_type": "TYPE_INT32",
        "source_input": ["input_ids"],
        **changes,
    }


def with_entry(*entries, parameters=None):
    return encoder_config(parameters, batch_input=list(entries))


ALONE = model_config(
    [tensor("x", "FP32", [-1])],
    [tensor("y", "FP32", [1])],
    {"axes.x": "n", "limit.n": "4", "offsets.cu": "n"},
    batch=0,
    batch_input=[entry(source_input=["x"])],
)


def test_positions_and_offsets_have_one_axis():
    config = parse(encoder_config({"positions.position_ids": "tokens", "offsets.cu": "tokens"}))
    assert (config.positions, config.offsets) == ({"position_ids": "tokens"}, {"cu": "tokens"})


@pytest.mark.parametrize("kind", BatchInputKind)
def test_batch_input_is_read(kind):
    batch_input = entry(kind.value, target_name=["a", "b"], data_type="TYPE_FP32")
    assert parse(with_entry(batch_input)).batch_inputs == (
        BatchInput(kind, ("a", "b"), DType.FP32, "input_ids"),
    )


def test_the_kind_that_is_protobufs_default_may_be_left_out():
    batch_input = entry()
    del batch_input["kind"]
    (read,) = parse(with_entry(batch_input)).batch_inputs
    assert read.kind is BatchInputKind.ELEMENT_COUNT


@pytest.mark.parametrize(
    ("kind", "data_type"),
    [
        ("BATCH_ELEMENT_COUNT", "TYPE_UINT16"),
        ("BATCH_ITEM_SHAPE", "TYPE_INT16"),
        ("BATCH_ITEM_SHAPE_FLATTEN", "TYPE_INT16"),
        ("BATCH_ELEMENT_COUNT", "TYPE_FP16"),
    ],
)
def test_sufficient_types_are_accepted(kind, data_type):
    assert parse(with_entry(entry(kind, data_type=data_type), parameters={"limit.tokens": "8000"}))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ALONE, "parameter 'offsets.cu': found max_batch_size 0, expected at least 1: without it"),
        (ALONE, "batch_input: found max_batch_size 0, expected at least 1"),
        (with_entry(entry("BATCH_COUNT")), "batch_input[0]: kind: found no kind 'BATCH_COUNT',"),
        (with_entry(entry("BATCH_ITEM_SHAP")), "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE; did you mean"),
        (with_entry(entry(data_type="TYPE_BOOL")), "batch_input[0]: data_type: found TYPE_BOOL,"),
        (with_entry(entry(data_type="TYPE_INVALID")), "data_type: found 'TYPE_INVALID'"),
        (
            with_entry(entry(data_type="TYPE_INT8"), parameters={"limit.tokens": "16"}),
            "batch_input[0]: data_type: found TYPE_INT8, expected a type that holds 128, the "
            "largest value at the limits",
        ),
        (
            with_entry(
                entry("BATCH_ITEM_SHAPE", data_type="TYPE_INT8"), parameters={"limit.tokens": "128"}
            ),
            "expected a type that holds 128",
        ),
        (with_entry(entry(target_name=[])), "batch_input[0]: target_name: found [], expected a"),
        (with_entry(entry(target_name=["lengths", 1])), "target_name: found ['lengths', 1],"),
        (with_entry(entry(source_input="input_ids")), "source_input: found 'input_ids', expected"),
        (with_entry(entry(source_input=["input_ids", "lengths"])), "batch_input[0]: source_input:"),
        (with_entry(entry(source_input=["ids"])), "batch_input[0]: source_input: found no input"),
        (with_entry(entry(target_name=["attention_mask"])), "batch_input[0]: target_name: found"),
        (with_entry(entry(), entry()), "batch_input[1]: target_name: found 'counts' in"),
        (with_entry(entry(target_name=["lengths"])), "found 'lengths' among the inputs"),
        (
            model_config(
                [tensor("x", "FP32", [1]), tensor("note", "STRING", [-1])],
                [tensor("y", "FP32", [1]), tensor("back", "STRING", [-1])],
                {"pass.back": "note"},
                batch_input=[entry(source_input=["note"])],
            ),
            "batch_input[0]: source_input: found input 'note' BYTES[-1], expected an input whose "
            "sizes have names: 'axes.note'",
        ),
        (encoder_config(batch_input=5), "batch_input: found 5, expected a list of batch inputs"),
        (
            encoder_config(batch_output=[{"target_name": ["embedding"]}]),
            "batch_output: found entries, expected none: 'axes.<output>' gives the sizes",
        ),
    ],
)
def test_invalid_generated_inputs_are_refused(config, expected):
    assert_fault(config, expected)
