from runtime.support.configs import encoder_config, model_config, pixels_config, tensor

from ge_runtime.config import RuntimeConfig
from ge_runtime.planning.target import Target
from ge_runtime.specs import DType, TensorSpec

GEARS = ((16,), (32,))


def target_of(config, axes=("tokens",), gears=GEARS):
    parsed = RuntimeConfig.parse(config, cores=1)
    return Target.of(parsed, {"batch": parsed.rows, **parsed.limits}, axes, gears)


def test_the_graph_takes_what_requests_bring_and_what_is_generated():
    target = target_of(encoder_config({"positions.position_ids": "tokens", "lengths.n": "tokens"}))
    assert target.inputs == (
        TensorSpec("input_ids", DType.INT64, ("tokens",)),
        TensorSpec("attention_mask", DType.INT64, ("tokens",)),
        TensorSpec("n", DType.INT64, ()),
        TensorSpec("position_ids", DType.INT64, ("tokens",)),
    )
    assert target.batched
    assert target.unlisted == ()


def test_what_the_models_own_code_prepares_is_taken_instead_of_requests():
    config = model_config(
        [tensor("text", "STRING", [1])],
        [tensor("embedding", "FP32", [4])],
        {
            "prepared.ids": "INT64[tokens]",
            "prepared.lengths": "INT32[1]",
            "axis_length.tokens": "lengths",
            "limit.tokens": "32",
            "mask.mask": "tokens",
        },
    )
    assert [spec.name for spec in target_of(config).inputs] == ["ids", "mask"]


def test_inputs_that_are_passed_are_not_the_graphs():
    config = model_config(
        [tensor("ids", "INT64", [-1]), tensor("name", "STRING", [1])],
        [tensor("out", "FP32", [2]), tensor("echo", "STRING", [1])],
        {"axes.ids": "tokens", "limit.tokens": "32", "pass.echo": "name"},
    )
    assert [spec.name for spec in target_of(config).inputs] == ["ids"]


def test_other_gears_of_the_config_are_combined_with_the_planned_ones():
    target = target_of(encoder_config({"gears.batch": "1, 8", "gears.tokens": "32"}))
    assert target.gear_count == 4
    assert list(target.gears()) == [
        {"tokens": 16, "batch": 1},
        {"tokens": 16, "batch": 8},
        {"tokens": 32, "batch": 1},
        {"tokens": 32, "batch": 8},
    ]


def test_what_has_no_shape_of_rows_is_unlisted():
    target = target_of(
        encoder_config(
            {"offsets.starts": "tokens", "gears.batch": "auto 2"},
            batch_input=[
                {
                    "kind": "BATCH_ELEMENT_COUNT",
                    "target_name": ["counts"],
                    "data_type": "TYPE_INT32",
                    "source_input": ["input_ids"],
                }
            ],
        )
    )
    assert target.unlisted == (
        "input 'starts'",
        "input 'counts'",
        "gears.batch, which is derived at load",
    )


def test_bytes_are_those_of_all_inputs_and_outputs_of_all_rows():
    target = target_of(encoder_config())
    # 8 rows of 16 ids and as many of the mask, INT64, and of 4 FP32
    assert target.io_bytes({"tokens": 16}) == 8 * (2 * 16 * 8 + 4 * 4)
    assert target.io_bytes({}) == 8 * (2 * 32 * 8 + 4 * 4)
    assert target.io_bytes({"batch": 1}) == 2 * 32 * 8 + 4 * 4


def test_rows_that_only_prepared_tensors_have_count_as_well():
    config = model_config(
        [tensor("text", "STRING", [-1])],
        [tensor("embedding", "FP32", [-1, 4])],
        {"rows": "8", "prepared.ids": "INT64[tokens]", "limit.tokens": "32"},
        batch=0,
    )
    target = target_of(config)
    assert target.batched
    assert target.io_bytes({"tokens": 16}) == 8 * (16 * 8 + 4 * 4)


def test_without_a_batch_dimension_there_is_one_row():
    ids = TensorSpec("ids", DType.INT64, ("tokens",))
    target = Target((ids,), (), False, {"batch": 4, "tokens": 32}, {("tokens",): GEARS})
    assert target.io_bytes({}) == 32 * 8


def test_outputs_of_unknown_size_are_left_out():
    config = pixels_config({"axes.image": "height,width"}, max_batch_size=0)
    del config["parameters"]["axes.inverted"]
    target = target_of(config, ("height", "width"), ((16, 16),))
    assert target.io_bytes({}) == 2 * 16 * 16 * 4 + 16 * 16 * 4 + 2 * 4
