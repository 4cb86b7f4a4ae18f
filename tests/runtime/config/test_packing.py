import pytest
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.parsing import assert_fault, parse


def packed(parameters=None, inputs=(), outputs=(), **changes):
    return model_config(
        [tensor("ids", "INT64", [-1]), *inputs],
        [tensor("pooled", "FP32", [4]), *outputs],
        {
            "packing": "tokens",
            "axes.ids": "tokens",
            "limit.tokens": "32",
            "offsets.cu": "tokens",
            **(parameters or {}),
        },
        **changes,
    )


PICTURE = {"axes.picture": "height", "limit.height": "8"}


@pytest.mark.parametrize(
    "config",
    [
        packed(),
        packed({"mask.mask": "tokens", "positions.at": "tokens"}),
        packed({"axes.hidden": "tokens"}, outputs=[tensor("hidden", "FP32", [-1, 4])]),
        packed(
            {"axes.both": "tokens,height", "limit.height": "8", "gears.height": "8"},
            inputs=[tensor("both", "FP32", [-1, -1])],
        ),
        packed({**PICTURE, "mask.m": "height"}, inputs=[tensor("picture", "FP32", [-1])]),
        packed({"gears.batch": "8"}),
    ],
)
def test_rows_may_be_joined_along_an_axis_that_comes_first(config):
    assert parse(config).packing == "tokens"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (packed({"packing": "words"}), "parameter 'packing': found no axis 'words', expected one"),
        (packed({"packing": ""}), "parameter 'packing': found no axis ''"),
        (
            packed({"axes.x": "tokens"}, inputs=[tensor("x", "FP32", [4, -1])]),
            "parameter 'packing': found input 'x' FP32[4,tokens], expected 'tokens' as its first "
            "dim alone",
        ),
        (
            packed({"axes.x": "tokens,tokens"}, inputs=[tensor("x", "FP32", [-1, -1])]),
            "parameter 'packing': found input 'x' FP32[tokens,tokens]",
        ),
        (
            packed({"axes.y": "tokens * 2"}, outputs=[tensor("y", "FP32", [-1])]),
            "parameter 'packing': found output 'y' FP32[tokens * 2]",
        ),
        (
            packed({"axes.y": "tokens,tokens + 1"}, outputs=[tensor("y", "FP32", [-1, -1])]),
            "parameter 'packing': found output 'y' FP32[tokens,tokens + 1]",
        ),
        (
            packed({"gears.tokens": "32"}),
            "parameter 'packing': found gears of axis 'tokens', expected an axis that is free",
        ),
        (packed({"gears.batch,tokens": "8x32"}), "found gears of axis 'tokens'"),
        (
            packed({**PICTURE, "mask.m": "tokens,height"}, [tensor("picture", "FP32", [-1])]),
            "parameter 'packing': found 'mask.m' of tokens, height, expected masks of 'tokens' "
            "alone: rows have no dimension of their own",
        ),
        (
            encoder_config({"packing": "tokens"}, batch=0),
            "parameter 'packing': found max_batch_size 0, expected at least 1: without it there "
            "are no rows to join",
        ),
    ],
)
def test_packing_that_contradicts_the_tensors_is_refused(config, expected):
    assert_fault(config, expected)
