import pytest

from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.engines.chain import Step, Wiring, infer_shapes
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import DType


def graph_tensor(name, *dims, dtype=DType.FP32):
    """A tensor as a graph declares it: dims that are words are names of sizes that vary."""
    sizes = tuple(dim if isinstance(dim, int) else None for dim in dims)
    symbols = tuple(dim if isinstance(dim, str) else None for dim in dims)
    return GraphTensor(name, dtype, sizes, symbols)


def signature(inputs, outputs):
    return Signature(tuple(inputs), tuple(outputs))


IDS = graph_tensor("ids", "batch", "tokens", dtype=DType.INT64)
EMBEDDING = graph_tensor("embedding", "batch", 4)
HIDDEN = graph_tensor("hidden", "batch", "tokens", 4)
LOGITS = graph_tensor("logits", "rows", 6)

ENCODER = signature([IDS], [EMBEDDING, HIDDEN])
HEAD = signature([graph_tensor("embedding", "rows", 4)], [LOGITS])
TAGGER = signature([graph_tensor("hidden", "n", "words", 4)], [graph_tensor("tags", "n", "words")])


def faults_of(stages, asked=("logits",)):
    with pytest.raises(ArtifactFault) as raised:
        Wiring.of(stages, asked)
    title, *faults = str(raised.value).split("\n  - ")
    assert title == f"the stages {', '.join(stages)} do not fit together:"
    return faults


def test_the_chain_has_the_inputs_that_no_stage_produces_and_all_outputs():
    wiring = Wiring.of({"encoder": ENCODER, "head": HEAD}, ["logits"])
    assert wiring.signature == signature([IDS], [EMBEDDING, HIDDEN, LOGITS])


def test_input_that_two_stages_take_is_one_input_with_what_either_knows_of_it():
    first = signature([GraphTensor("x", DType.FP32, (None, 3, None))], [graph_tensor("a", 1)])
    second = signature([GraphTensor("x", DType.FP32, (2, None, None))], [graph_tensor("b", 1)])
    third = signature([GraphTensor("x", DType.FP32, None)], [graph_tensor("c", 1)])
    wiring = Wiring.of({"first": first, "second": second, "third": third}, "abc")
    assert wiring.signature.inputs == (GraphTensor("x", DType.FP32, (2, 3, None)),)
    wiring = Wiring.of({"third": third, "first": first}, "ac")
    assert wiring.signature.inputs == (GraphTensor("x", DType.FP32, (None, 3, None)),)


def test_span_reaches_from_the_giver_to_the_last_taker():
    again = signature([EMBEDDING, LOGITS], [graph_tensor("sure", "batch")])
    stages = {"encoder": ENCODER, "tagger": TAGGER, "head": HEAD, "again": again}
    wiring = Wiring.of(stages, ["sure", "tags"])
    assert {name: (span.first, span.last) for name, span in wiring.spans.items()} == {
        "hidden": (0, 1),
        "embedding": (0, 3),
        "logits": (2, 3),
    }


@pytest.mark.parametrize(
    ("outputs", "steps"),
    [
        (["logits"], [Step("encoder", ("embedding",)), Step("head", ("logits",))]),
        (["tags"], [Step("encoder", ("hidden",)), Step("tagger", ("tags",))]),
        (["embedding"], [Step("encoder", ("embedding",))]),
        (
            ["tags", "logits", "hidden"],
            [
                Step("encoder", ("embedding", "hidden")),
                Step("head", ("logits",)),
                Step("tagger", ("tags",)),
            ],
        ),
        ([], []),
    ],
)
def test_only_what_is_needed_is_executed(outputs, steps):
    stages = {"encoder": ENCODER, "head": HEAD, "tagger": TAGGER}
    assert Wiring.of(stages, ["logits", "tags"]).steps(outputs) == steps


def test_shapes_follow_from_stage_to_stage():
    stages = {"encoder": ENCODER, "head": HEAD, "tagger": TAGGER}
    wiring = Wiring.of(stages, ["logits", "tags"])
    assert wiring.shapes({"ids": (3, 7)}) == {
        "ids": (3, 7),
        "embedding": (3, 4),
        "hidden": (3, 7, 4),
        "logits": (3, 6),
        "tags": (3, 7),
    }


def test_names_of_sizes_mean_something_else_in_another_stage():
    turned = signature([graph_tensor("hidden", "tokens", "batch", 4)], [graph_tensor("t", "batch")])
    wiring = Wiring.of({"encoder": ENCODER, "turned": turned}, ["t"])
    assert wiring.shapes({"ids": (3, 7)})["t"] == (7,)


@pytest.mark.parametrize(
    ("output", "shape"),
    [
        (graph_tensor("y", 2, 3), (2, 3)),
        (graph_tensor("y", "tokens", "batch"), (7, 3)),
        (graph_tensor("y", "batch", "found"), None),
        (graph_tensor("y"), ()),
        (GraphTensor("y", DType.FP32, (None,)), None),
        (GraphTensor("y", DType.FP32, (5, 2)), (5, 2)),
        (GraphTensor("y", DType.FP32, None), None),
    ],
)
def test_shape_is_foreseen_where_each_size_is_fixed_or_an_inputs(output, shape):
    found = infer_shapes(signature([IDS], [output]), {"ids": (3, 7)})
    assert found == ({} if shape is None else {"y": shape})


def test_disagreement_names_both_stages_and_what_each_says():
    wide = signature([graph_tensor("embedding", "batch", 5)], [LOGITS])
    assert faults_of({"encoder": ENCODER, "head": wide}) == [
        "stage 'head', input 'embedding': found FP32[*,5], expected FP32[*,4], the output of "
        "stage 'encoder'"
    ]


@pytest.mark.parametrize(
    ("taken", "agrees"),
    [
        (graph_tensor("embedding", "batch", 4), True),
        (graph_tensor("embedding", 8, "width"), True),
        (GraphTensor("embedding", DType.FP32, None), True),
        (graph_tensor("embedding", "batch", 4, dtype=DType.FP16), False),
        (graph_tensor("embedding", "batch", 3), False),
        (graph_tensor("embedding", 4), False),
        (graph_tensor("embedding", "batch", 4, 1), False),
    ],
)
def test_tensors_agree_if_some_shape_suits_both(taken, agrees):
    stages = {"encoder": ENCODER, "head": signature([taken], [LOGITS])}
    if agrees:
        assert Wiring.of(stages, ["logits"])
    else:
        assert len(faults_of(stages)) == 1


def test_name_that_two_stages_give_is_refused():
    assert faults_of({"encoder": ENCODER, "other": ENCODER, "head": HEAD}) == [
        "stage 'other', output 'embedding': found the name of an output of stage 'encoder', "
        "expected a name of its own",
        "stage 'other', output 'hidden': found the name of an output of stage 'encoder', "
        "expected a name of its own",
    ]


def test_stages_in_the_wrong_order_are_refused():
    assert faults_of({"head": HEAD, "encoder": ENCODER}) == [
        "stage 'encoder', output 'embedding': found the name of an input of stage 'head', which "
        "is earlier, expected stages in the order of their data, or a name of its own"
    ]


def test_stage_without_use_is_refused_and_one_apart_from_the_others_is_not():
    stages = {"encoder": ENCODER, "tagger": TAGGER, "head": HEAD}
    assert faults_of(stages) == [
        "stage 'tagger': found outputs tags, expected one that config.pbtxt declares or that a "
        "later stage takes"
    ]
    apart = signature([graph_tensor("x", 1)], [graph_tensor("y", 1)])
    assert Wiring.of({"encoder": ENCODER, "apart": apart, "head": HEAD}, ["logits", "y"])
