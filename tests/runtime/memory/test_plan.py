import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.memory.plan import GearPlan, Need, Plan, in_binary_units
from ge_runtime.specs import DType


def encoder_need(rows, tokens, intermediates=None):
    """Ids in, embeddings out; two intermediates that are live one after the other."""
    held = 400 * rows * tokens
    return Need(
        sizes={"batch": rows, "tokens": tokens},
        inputs={"input_ids": (DType.INT64, (rows, tokens))},
        outputs={"embedding": (DType.FP32, (rows, 3))},
        intermediates=intermediates
        or Intermediates((Lifetime("a", held, 0, 1), Lifetime("b", held, 2, 3))),
    )


def encoder_plan(*gears, weights_bytes=90_000, answer_slots=3):
    needs = [encoder_need(*gear) for gear in gears]
    return Plan.of(needs, weights_bytes=weights_bytes, answer_slots=answer_slots)


def test_every_tensor_and_copy_is_aligned():
    need = Need(
        sizes={"batch": 2},
        inputs={"x": (DType.UINT8, (2, 1)), "y": (DType.UINT8, (2, 33))},
        outputs={"z": (DType.BF16, (2, 50))},
        intermediates=Intermediates((Lifetime("t", 1, 0, 0),)),
        copies={"z": 2},
        pieces=3,
    )
    gear = GearPlan.of(need)
    assert gear.inputs_bytes == 64 + 128
    # The output in three separately aligned pieces, and the same bytes again in two parts.
    assert gear.answers_bytes == (256 + 2 * 64) + (256 + 2 * 64)
    assert gear.workspace_bytes == 64


def test_memory_is_sized_for_the_gear_that_needs_most():
    wide, long = encoder_need(64, 16), encoder_need(2, 1024)
    plan = Plan.of([wide, long], weights_bytes=1000, answer_slots=2)
    assert plan.inputs_bytes == 2 * 1024 * 8
    assert plan.answers_bytes == 64 * 3 * 4
    assert plan.workspace_bytes == 400 * 2 * 1024
    assert plan.io_bytes == plan.inputs_bytes + 2 * plan.answers_bytes
    assert plan.total_bytes == 1000 + plan.workspace_bytes + plan.io_bytes


def test_tensors_of_different_gears_do_not_add_up():
    """Room for the largest sum of inputs, not for the largest of each input."""
    gears = [(1000, 10), (10, 1000)]
    needs = [
        Need(
            sizes={"a": a, "b": b},
            inputs={"a": (DType.UINT8, (a * 64,)), "b": (DType.UINT8, (b * 64,))},
            outputs={},
            intermediates=Intermediates(()),
        )
        for a, b in gears
    ]
    assert Plan.of(needs, weights_bytes=0, answer_slots=1).inputs_bytes == 1010 * 64


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 512)), min_size=1, max_size=6))
def test_the_total_is_between_the_bound_and_the_unshared_total(gears):
    plan = encoder_plan(*gears)
    assert plan.lower_bound <= plan.total_bytes <= plan.unshared_bytes


@pytest.mark.parametrize(
    ("rows", "tokens", "gear"),
    [
        (8, 16, (8, 16)),
        (3, 9, (8, 16)),
        (2, 17, (2, 50)),  # smaller than the one of 8 rows
        (3, 17, (8, 64)),
        (9, 1, (8, 64)),  # which no gear holds
    ],
)
def test_an_execution_has_the_workspace_of_the_smallest_holding_gear(rows, tokens, gear):
    plan = encoder_plan((8, 64), (2, 50), (8, 16))
    expected = encoder_plan(gear).workspace_bytes
    assert plan.workspace_at({"batch": rows, "tokens": tokens}) == expected


@pytest.mark.parametrize(
    ("rows", "tokens", "elements"),
    [(8, 64, 512), (4, 32, 128), (1, 1, 1), (9, 64, 512)],
    ids=["a gear", "a quarter", "one", "more than any gear"],
)
def test_workspace_is_estimated_from_the_share_of_a_gear(rows, tokens, elements):
    plan = encoder_plan((8, 64))
    about = plan.workspace_about({"batch": rows, "tokens": tokens})
    assert about == pytest.approx(plan.workspace_bytes * elements / 512)


def test_the_table_shows_gears_and_sums():
    assert encoder_plan((1, 16), (64, 512)).table() == [
        "batch  tokens   inputs  answers   workspace  peak/bound",
        "   64     512  262,144      768  13,107,200        1.00",
        "    1      16      128       64       6,400        1.00",
        "",
        "weights         90,000   87.9 KiB    0.7%",
        "workspace   13,107,200   12.5 MiB   97.4%  one for all 2 gears",
        "inputs         262,144  256.0 KiB    1.9%  one for all 2 gears",
        "answers          2,304    2.2 KiB    0.0%  3 slot(s) of 768",
        "staging              0               0.0%  none: the device works in the host's memory",
        "total       13,461,648   12.8 MiB  100.0%  1.00 of the lower bound, 13,461,648",
        "not shared  13,468,368   12.8 MiB  100.0%  if each gear had memory of its own",
    ]


def test_table_leaves_out_small_gears_where_there_are_many():
    plan = encoder_plan(*[(rows, 16) for rows in range(1, 65)])
    lines = plan.table()
    shown = [line.split()[0] for line in lines[1:13]]
    assert shown == [str(rows) for rows in range(64, 52, -1)]
    assert lines[13:15] == ["and 52 gear(s) that need less", ""]


def test_unknown_workspace_is_reported_so():
    need = Need({"batch": 1}, {"x": (DType.FP32, (1,))}, {}, intermediates=None)
    plan = Plan.of([need], weights_bytes=100, answer_slots=1)
    lines = plan.table()
    assert not plan.workspace_known
    assert lines[1].split() == ["1", "64", "0", "unknown", "-"]
    (line,) = (line for line in lines if line.startswith("workspace"))
    assert line.endswith("unknown: `pip install 'ge-runtime[plan]'` allows planning it")
    assert lines[-1].startswith("total")
    assert lines[-1].endswith("100.0%  without workspace")


def test_unsized_results_make_the_workspace_a_lower_bound():
    held = Intermediates((Lifetime("a", 64, 0, 0),), unsized=2)
    plan = Plan.of([encoder_need(1, 1, held)], weights_bytes=0, answer_slots=1)
    (line,) = (line for line in plan.table() if line.startswith("workspace"))
    assert line.endswith("at least: 2 result(s) have a size only known after execution")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1023, ""), (1024, "1.0 KiB"), (90_258_544, "86.1 MiB"), (3000 * 1024**4, "3000.0 TiB")],
)
def test_bytes_are_shown_in_the_largest_unit_of_at_least_1(nbytes, text):
    assert in_binary_units(nbytes) == text
