import pytest
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.parsing import assert_fault, assert_refused, parse

from ge_runtime.specs import UNKNOWN, DType, TensorSpec


def passing(parameters=None, **changes):
    """Return a graph from x to y, with a note that is passed through."""
    return model_config(
        [tensor("x", "FP32", [4]), tensor("note", "STRING", [-1])],
        [tensor("y", "FP32", [1]), tensor("back", "STRING", [-1])],
        {"pass.back": "note", **(parameters or {})},
        **changes,
    )


def preparing(parameters=None, **changes):
    """Return an encoder of texts, whose token ids the model's own code computes."""
    return model_config(
        [tensor("text", "STRING", [1])],
        [tensor("embedding", "FP32", [4])],
        {
            "prepared.input_ids": "INT64[tokens]",
            "prepared.lengths": "INT32[1]",
            "limit.tokens": "32",
            "axis_length.tokens": "lengths",
            "mask.attention_mask": "tokens",
            **(parameters or {}),
        },
        **changes,
    )


def rows_of_one_request(parameters=None, outputs=None):
    """Return such an encoder for any number of texts per request, without a batch dimension."""
    config = preparing({"rows": "64", **(parameters or {})}, batch=0)
    config["input"][0]["dims"] = [-1]
    config["output"] = outputs or [tensor("embedding", "FP32", [-1, 4])]
    return config


def test_an_output_may_be_an_input_of_any_type_and_size():
    config = parse(passing())
    assert config.passthrough == {"back": "note"}
    assert [spec.name for spec in config.outputs] == ["y"]
    assert config.inputs[1] == TensorSpec("note", DType.BYTES, (UNKNOWN,))


def test_batches_consist_of_prepared_tensors():
    config = parse(preparing({"pad.input_ids": "3", "gears.tokens": "32"}))
    assert config.prepared == config.sources
    assert config.prepared == (
        TensorSpec("input_ids", DType.INT64, ("tokens",)),
        TensorSpec("lengths", DType.INT32, (1,)),
    )
    assert config.inputs == (TensorSpec("text", DType.BYTES, (1,)),)
    assert (config.axis_lengths, config.pads) == ({"tokens": "lengths"}, {"input_ids": 3})


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("FP32[]", TensorSpec("p", DType.FP32, ())),
        ("BF16 [ 3, height ]", TensorSpec("p", DType.BF16, (3, "height"))),
        ("BOOL[tokens,tokens]", TensorSpec("p", DType.BOOL, ("tokens", "tokens"))),
    ],
)
def test_a_prepared_tensor_is_written_as_type_and_dims(text, spec):
    parameters = {"prepared.p": text, "limit.height": "8"}
    if "height" not in text:
        del parameters["limit.height"]
    assert parse(preparing(parameters)).prepared[-1] == spec


def test_the_models_code_makes_rows_of_requests_without_a_batch_dimension():
    config = parse(rows_of_one_request({"gears.batch": "8, 64"}))
    assert (config.max_batch_size, config.rows, config.batched) == (0, 64, True)
    assert config.rows_key == "rows"
    assert config.outputs == (TensorSpec("embedding", DType.FP32, (4,)),)
    assert config.inputs == (TensorSpec("text", DType.BYTES, (UNKNOWN,)),)


def test_derived_outputs_have_those_rows_and_passed_ones_do_not():
    outputs = [
        tensor("embedding", "FP32", [-1, 4]),
        tensor("label", "STRING", [-1, 1]),
        tensor("back", "STRING", [-1]),
    ]
    config = parse(rows_of_one_request({"pass.back": "text"}, outputs), derived=["label"])
    assert config.derived == (TensorSpec("label", DType.BYTES, (1,)),)
    assert config.passthrough == {"back": "text"}


@pytest.mark.parametrize(
    "row",
    [
        (passing, "pass.back", "nota", "no input 'nota', expected one of: note, x; did you mean"),
        (passing, "pass.bak", "note", "no output 'bak', expected one of: back, y; did you mean"),
        (passing, "pass.y", "x", "input 'x' FP32[4], expected FP32[1] as the output is declared"),
        (passing, "pass.y", "note", "input 'note' BYTES[-1], expected FP32[1]"),
        (passing, "axes.back", "words", "names, expected nothing: 'back' is not a tensor of the"),
        (preparing, "prepared.text", "INT64[1]", "'text' among the inputs, expected a name that"),
        (preparing, "prepared.types", "INT65[tokens]", "'INT65[tokens]', expected a type of"),
        (preparing, "prepared.types", "BYTES[1]", "'BYTES[1]'"),
        (preparing, "prepared.types", "INT8[0]", "'INT8[0]'"),
        (preparing, "prepared.types", "INT8[-1]", "'INT8[-1]'"),
        (preparing, "prepared.types", "INT8", "'INT8'"),
        (preparing, "prepared.types", "INT8[a,]", "'INT8[a,]'"),
        (preparing, "prepared.types", "INT8[n * 2]", "'INT8[n * 2]'"),
        (
            preparing,
            "prepared.types",
            "INT8[batch]",
            "axis 'batch', expected",
            {"limit.batch": "8"},
        ),
        (preparing, "axes.text", "n", "names, expected nothing: 'text' is not a tensor of the"),
        (preparing, "mask.input_ids", "tokens", "'input_ids' among the inputs"),
        (preparing, "mask.text", "tokens", "'text' among the inputs"),
        (preparing, "pad.text", "a", "no input 'text', expected one"),
        (preparing, "default.text", "a", "'a', expected nothing: the model's own code handles"),
        (preparing, "rows", "8", "max_batch_size 8, expected 0: otherwise it is the number of"),
        (rows_of_one_request, "rows", "0", "'0', expected a whole number"),
    ],
)
def test_invalid_parameters_of_tensors_are_refused(row):
    assert_refused(*row)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (preparing({"prepared.types": "INT8[words]"}), "parameter 'limit.words': found nothing,"),
        (
            {
                **passing(),
                "input": [tensor("x", "FP32", [4]), tensor("note", "STRING", [-1], optional=True)],
            },
            "parameter 'pass.back': found optional input 'note', expected an input that every "
            "request brings",
        ),
        (encoder_config({"rows": "8"}, batch=0), "parameter 'rows': found no 'prepared.<tensor>',"),
        (
            rows_of_one_request(outputs=[tensor("embedding", "FP32", [4])]),
            "output 'embedding': dims: found [4], expected -1 first, for the rows",
        ),
    ],
)
def test_invalid_tensors_are_refused(config, expected):
    assert_fault(config, expected)


def test_an_output_is_derived_or_passed_not_both():
    assert_fault(
        passing(),
        "parameter 'pass.back': found 'back' among the derived outputs, expected one of the two",
        derived=["back"],
    )
