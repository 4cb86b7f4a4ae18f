import pytest
from runtime.support.configs import encoder_config, model_config, pixels_config, tensor

from ge_runtime.config import RuntimeConfig
from ge_runtime.planning.ascend_gears import CompileTarget, ascend_options, with_options
from ge_runtime.specs import DType, TensorSpec

IDS = TensorSpec("ids", DType.INT64, ("tokens",))
MASK = TensorSpec("mask", DType.INT64, ("tokens",))
IMAGE = TensorSpec("image", DType.FP32, (3, "height", "width"))
LIMITS = {"batch": 8, "tokens": 128, "height": 512, "width": 640}
TOKENS = {("tokens",): ((64,), (128,))}
SIDES = {("height", "width"): ((256, 320), (512, 640))}


def options_of(inputs, tables, *, batched=True, **more):
    return ascend_options(CompileTarget(inputs, (), batched, LIMITS, tables, **more))


ROWS = {("batch",): ((1,), (4,), (8,))}
TURNED = {("width", "height"): ((320, 256), (640, 512))}


@pytest.mark.parametrize(
    ("inputs", "tables", "atc", "dims"),
    [
        # Values are in the order of the dims.
        (
            (IMAGE, MASK),
            TURNED,
            (
                '--input_shape="image:8,3,-1,-1;mask:8,128"',
                "--input_format=NCHW",
                '--dynamic_image_size="256,320;512,640"',
            ),
            "256,320;512,640",
        ),
        (
            (IDS, MASK),
            ROWS,
            (
                '--input_shape="ids:-1,128;mask:-1,128"',
                "--input_format=ND",
                '--dynamic_batch_size="1,4,8"',
            ),
            "1,1;4,4;8,8",
        ),
    ],
    ids=["images", "rows"],
)
def test_gears_of_one_image_and_of_rows_have_options_of_their_own(inputs, tables, atc, dims):
    options = options_of(inputs, tables)
    assert options.atc == atc
    assert options.ge["ge.dynamicDims"] == dims


@pytest.mark.parametrize(
    ("inputs", "tables"),
    [
        ((IMAGE, TensorSpec("mask", DType.INT64, ("height", "width"))), SIDES),
        ((TensorSpec("image", DType.FP32, ("height", "width", 3)),), SIDES),
        ((TensorSpec("frames", DType.FP32, ("height", 3, "width")),), SIDES),
        ((TensorSpec("image", DType.FP32, ("height", "width")),), SIDES),
        ((IMAGE,), {("height",): ((256,), (512,))}),
        ((IMAGE,), {("batch",): ((1,), (8,)), **SIDES}),
    ],
)
def test_any_other_gears_are_dynamic_dims(inputs, tables):
    options = options_of(inputs, tables)
    assert options.atc[1] == "--input_format=ND"
    assert options.atc[2].startswith("--dynamic_dims=")


def test_shapes_without_a_batch_dimension():
    options = options_of((IDS, TensorSpec("length", DType.INT64, ())), TOKENS, batched=False)
    assert options.atc[0] == '--input_shape="ids:-1;length:"'


def test_a_single_gear_is_a_static_shape():
    options = options_of((IDS,), {("tokens",): ((128,),)})
    assert options.atc == ('--input_shape="ids:8,128"', "--input_format=ND")
    assert options.ge == {}
    assert "a single gear is a static shape" in options.note


@pytest.mark.parametrize(
    ("ranks", "format_"),
    [((4, 4), []), ((5,), ["NCDHW"]), ((2,), ["ND"]), ((4, 2), ["ND"]), ((5, 4), ["ND"])],
)
@pytest.mark.parametrize("sizes", [(8,), (1, 8)])
def test_the_format_depends_on_the_ranks_of_the_inputs(ranks, format_, sizes):
    specs = [TensorSpec(f"x{i}", DType.FP32, (2,) * (rank - 1)) for i, rank in enumerate(ranks)]
    options = options_of((*specs,), {("batch",): tuple((size,) for size in sizes)})
    flags = [flag for flag in options.atc if flag.startswith("--input_format")]
    assert flags == [f"--input_format={each}" for each in format_]


def test_more_dims_than_the_interface_allows_are_refused():
    many = tuple(TensorSpec(f"x{i}", DType.INT64, ("tokens",)) for i in range(65))
    assert options_of(many[:64], TOKENS).atc
    assert options_of(many, TOKENS).note == (
        "found 130 dims of all inputs together, expected at most 128"
    )


def test_too_many_gears_are_refused():
    rows, tokens = ("batch",), ("tokens",)
    many = {
        rows: tuple((n,) for n in range(1, 9)),
        tokens: tuple((n,) for n in range(1, 14)),
    }
    assert options_of((IDS,), {tokens: tuple((n,) for n in range(1, 101))}).atc
    options = options_of((IDS,), many)
    assert options.atc == ()
    assert options.note == "found 104 combinations of gears, expected at most 100"


def test_unsupported_inputs_and_gears_are_named():
    options = options_of((IDS,), TOKENS, unlisted=("input 'offsets'", "gears.batch"))
    assert options.atc == ()
    assert options.note == "not supported: input 'offsets'; gears.batch"


def test_other_options_are_added_for_both_compilers():
    options = with_options(options_of((IDS,), TOKENS), {"ge.aicoreNum": "24|48"}, {"log": "info"})
    assert options.atc[-2:] == ('--aicore_num="24|48"', '--log="info"')
    assert options.ge["ge.aicoreNum"] == "24|48"
    assert options.ge["ge.dynamicDims"] == "64;128"


GEARS = ((16,), (32,))


def target_of(config, axes=("tokens",), gears=GEARS):
    parsed = RuntimeConfig.parse(config, cores=1)
    return CompileTarget.of(parsed, {"batch": parsed.rows, **parsed.limits}, axes, gears)


def test_inputs_of_requests_and_generated_inputs():
    target = target_of(encoder_config({"positions.position_ids": "tokens", "lengths.n": "tokens"}))
    assert target.inputs == (
        TensorSpec("input_ids", DType.INT64, ("tokens",)),
        TensorSpec("attention_mask", DType.INT64, ("tokens",)),
        TensorSpec("n", DType.INT64, ()),
        TensorSpec("position_ids", DType.INT64, ("tokens",)),
    )
    assert target.batched
    assert target.unlisted == ()


def test_passed_inputs_are_not_inputs_of_the_graph():
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


def test_inputs_without_rows_are_unlisted():
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
        "gears.batch, which is chosen at load",
    )


def test_io_bytes_of_all_rows():
    target = target_of(encoder_config())
    # 8 rows of 16 ids and as many of the mask, INT64, and of 4 FP32
    assert target.io_bytes({"tokens": 16}) == 8 * (2 * 16 * 8 + 4 * 4)
    assert target.io_bytes({}) == 8 * (2 * 32 * 8 + 4 * 4)
    assert target.io_bytes({"batch": 1}) == 2 * 32 * 8 + 4 * 4


def test_outputs_of_unknown_size_are_ignored():
    config = pixels_config({"axes.image": "height,width"}, max_batch_size=0)
    del config["parameters"]["axes.inverted"]
    target = target_of(config, ("height", "width"), ((16, 16),))
    assert target.io_bytes({}) == 2 * 16 * 16 * 4 + 16 * 16 * 4 + 2 * 4
