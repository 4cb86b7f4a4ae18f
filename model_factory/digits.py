"""The recipes of `ge_classifier`, from the parameters that ship with this package.

`digits_train` made those parameters; nothing is trained here.
"""

from __future__ import annotations

from pathlib import Path

from model_factory import digits_parameters
from model_factory.recipes import Recipe, sources


def write_onnx(path: Path) -> None:
    """Write the classifier as `model.onnx`. Needs onnx; takes well under a second."""
    from model_factory.digits_onnx import classifier_model

    parameters, _ = digits_parameters.load()
    model = classifier_model(parameters)
    path.write_bytes(model.SerializeToString(deterministic=True))


def write_pt2(path: Path) -> None:
    """Write the classifier as `model.pt2`. Needs torch; takes seconds."""
    from model_factory.digits_torch import save_classifier

    parameters, _ = digits_parameters.load()
    save_classifier(parameters, path)


_PARAMETERS = (digits_parameters.SHIPPED, *sources("digits_parameters"))

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "ge_classifier",
        "model.onnx",
        write_onnx,
        (*_PARAMETERS, *sources("digits_onnx", "onnx_graph")),
    ),
    Recipe(
        "ge_classifier",
        "model.pt2",
        write_pt2,
        (*_PARAMETERS, *sources("digits_torch")),
        needs_torch=True,
    ),
)
