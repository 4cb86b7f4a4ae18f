"""The check of an ensemble against its composing models."""

import pytest
from server.support.configs import ensemble, model_config, step

from reference_server.core.errors import Code, ServerError, not_found
from reference_server.repository.ensembles import check_composing_models

# ------------------------------------------------------------------------------------------- fit


def tensors(inputs, outputs, *, batch=0):
    """Return the text of a configuration; tensors map names to type and dims."""
    entries = [
        f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} {" ".join(more)} }}'
        for kind, given in (("input", inputs), ("output", outputs))
        for name, (datatype, dims, *more) in given.items()
    ]
    return "\n".join([f"max_batch_size: {batch}", *entries])


VECTOR = {"X": ("FP32", [-1])}, {"Y": ("FP32", [-1])}
FOUR = {"X": ("FP32", [4])}, {"Y": ("FP32", [4])}

MODELS = {
    "vec": model_config(tensors(*VECTOR), "vec"),
    "bat": model_config(tensors(*FOUR, batch=8), "bat"),
    "pair": model_config(
        tensors({"A": ("FP32", [-1]), "B": ("FP32", [-1])}, {"Y": ("FP32", [-1])}), "pair"
    ),
    "mat": model_config(tensors({"X": ("FP32", [-1, 3])}, {"Y": ("FP32", [-1])}), "mat"),
    "dec": model_config(tensors(*VECTOR) + "\nmodel_transaction_policy { decoupled: true }", "dec"),
    "opt": model_config(
        tensors({"X": ("FP32", [-1]), "B": ("FP32", [-1], "optional: true")}, VECTOR[1]), "opt"
    ),
}


def find(name, version):
    """Return a loaded model; each has version 1 only."""
    if name not in MODELS or version not in (-1, 1):
        raise not_found(f"no {name}")
    return MODELS[name]


def composed(*steps, inputs=None, outputs=None, batch=0):
    """Return an ensemble `e`, by default with I and O of type FP32 and dims [-1]."""
    text = tensors(inputs or {"I": ("FP32", [-1])}, outputs or {"O": ("FP32", [-1])}, batch=batch)
    return model_config(f"{ensemble(*steps, inputs='', outputs='')}\n{text}", "e")


VEC = step("vec", {"X": "I"}, {"Y": "O"})
BAT = step("bat", {"X": "I"}, {"Y": "O"})


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(composed(VEC), id="one step"),
        pytest.param(
            composed(step("vec", {"X": "I"}, {"Y": "O"}, version=1)), id="required version"
        ),
        pytest.param(
            composed(step("vec", {"X": "I"}, {"Y": "m"}), step("vec", {"X": "m"}, {"Y": "O"})),
            id="two steps",
        ),
        pytest.param(composed(step("opt", {"X": "I"}, {"Y": "O"})), id="optional input"),
        pytest.param(composed(step("vec", {"X": "I"}, {"Y": "O"})), id="variable sizes"),
        pytest.param(
            composed(VEC, inputs={"I": ("FP32", [3])}, outputs={"O": ("FP32", [5])}),
            id="a variable size fits any",
        ),
        pytest.param(
            composed(BAT, inputs={"I": ("FP32", [4])}, outputs={"O": ("FP32", [4])}, batch=8),
            id="batches",
        ),
        pytest.param(
            composed(BAT, inputs={"I": ("FP32", [-1, 4])}, outputs={"O": ("FP32", [2, 4])}),
            id="the batch dimension is explicit in the ensemble",
        ),
        pytest.param(composed(VEC, batch=4), id="only the ensemble batches"),
        pytest.param(
            composed(BAT, inputs={"I": ("FP32", [4])}, outputs={"O": ("FP32", [4])}),
            id="only the model batches",
        ),
        pytest.param(
            composed(step("dec", {"X": "I"}, {"Y": "m"}), step("vec", {"X": "m"}, {"Y": "O"})),
            id="a decoupled model",
        ),
        pytest.param(
            composed(
                VEC,
                inputs={"I": ("FP32", [2, 2], "reshape { shape: [4] }")},
                outputs={"O": ("FP32", [-1, 1], "reshape { shape: [-1] }")},
            ),
            id="reshape of the ensemble",
        ),
    ],
)
def test_ensemble_fits(config):
    check_composing_models(config, find)


UNFIT = {
    "no such model": (
        composed(step("missing", {"X": "I"}, {"Y": "O"})),
        "ensemble e contains models that are not available or ambiguous: missing",
    ),
    "no such version": (
        composed(step("vec", {"X": "I"}, {"Y": "O"}, version=7)),
        "ensemble 'e' depends on 'vec' whose required version 7 is not loaded.",
    ),
    "no such input": (
        composed(step("vec", {"Q": "I"}, {"Y": "O"})),
        "in ensemble e, ensemble tensor I is mapping to non-existing input Q in model vec",
    ),
    "no such output": (
        composed(step("vec", {"X": "I"}, {"Q": "O"})),
        "in ensemble e, ensemble tensor O is mapped from non-existing output Q in model vec",
    ),
    "an input that is not mapped": (
        composed(step("pair", {"A": "I"}, {"Y": "O"})),
        "in ensemble e, input B in model pair is not mapped to any ensemble tensors",
    ),
    "type of an input": (
        composed(VEC, inputs={"I": ("INT32", [-1])}),
        "in ensemble e, ensemble tensor I: inconsistent data type: TYPE_INT32 is inferred from "
        "model e while TYPE_FP32 is inferred from model vec",
    ),
    "type of an output": (
        composed(VEC, outputs={"O": ("STRING", [-1])}),
        "in ensemble e, ensemble tensor O: inconsistent data type: TYPE_STRING is inferred from "
        "model e while TYPE_FP32 is inferred from model vec",
    ),
    "rank": (
        composed(VEC, inputs={"I": ("FP32", [-1, -1])}),
        "in ensemble e, ensemble tensor I: inconsistent shape: [-1,-1] is inferred from model e "
        "while [-1] is inferred from model vec",
    ),
    "size, with a batch dimension": (
        composed(BAT, inputs={"I": ("FP32", [3])}, outputs={"O": ("FP32", [4])}, batch=4),
        "in ensemble e, ensemble tensor I: inconsistent shape: [-1,3] is inferred from model e "
        "while [-1,4] is inferred from model bat",
    ),
    "a reshape of an input": (
        composed(VEC, inputs={"I": ("FP32", [4], "reshape { shape: [2, 2] }")}),
        "in ensemble e, ensemble tensor I: inconsistent shape: [2,2] is inferred from model e "
        "while [-1] is inferred from model vec",
    ),
    "a reshape of an output, with a batch dimension": (
        composed(
            BAT,
            inputs={"I": ("FP32", [4])},
            outputs={"O": ("FP32", [4], "reshape { shape: [2, 2] }")},
            batch=4,
        ),
        "in ensemble e, ensemble tensor O: inconsistent shape: [-1,2,2] is inferred from model e "
        "while [-1,4] is inferred from model bat",
    ),
    "between two steps": (
        composed(
            step("bat", {"X": "I"}, {"Y": "mid"}),
            step("mat", {"X": "mid"}, {"Y": "O"}),
            inputs={"I": ("FP32", [-1, 4])},
        ),
        "in ensemble e, ensemble tensor mid: inconsistent shape: [-1,4] is inferred from model "
        "bat while [-1,3] is inferred from model mat",
    ),
    "batch size": (
        composed(BAT, inputs={"I": ("FP32", [4])}, outputs={"O": ("FP32", [4])}, batch=9),
        "ensemble e allows maximum batch size 9, but it contains model bat which only allows "
        "maximum batch size to be 8",
    ),
    "responses of different models": (
        composed(
            step("dec", {"X": "I"}, {"Y": "m"}),
            step("dec", {"X": "I"}, {"Y": "n"}),
            step("pair", {"A": "m", "B": "n"}, {"Y": "O"}),
        ),
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled "
        "models",
    ),
    "responses of different models, inside": (
        composed(
            step("dec", {"X": "I"}, {"Y": "m"}),
            step("dec", {"X": "I"}, {"Y": "n"}),
            step("pair", {"A": "m", "B": "n"}, {"Y": "p"}),
            step("dec", {"X": "p"}, {"Y": "O"}),
        ),
        "in ensemble e, step of model 'pair' receives inputs originated from different decoupled "
        "models",
    ),
}


@pytest.mark.parametrize(("config", "said"), UNFIT.values(), ids=UNFIT)
def test_ensemble_does_not_fit(config, said):
    with pytest.raises(ServerError) as caught:
        check_composing_models(config, find)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, said)
