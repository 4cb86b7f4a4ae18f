"""What a recipe is: one artifact of the model repository, how to make it and what it depends on.

Values only. `artifacts` executes recipes; a module with models to offer exports its own
`RECIPES: tuple[Recipe, ...]`, and `__main__` joins them. Importing such a module must be cheap:
heavy libraries (onnx, torch, ...) are imported inside `build`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class BuildError(Exception):
    """An artifact cannot be built; the message says what is at fault and what to do."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one artifact is made.

    model: the model's name, which is its folder in the repository.
    file: the artifact's name in the version folder `1`, such as `model.onnx`.
    build: writes the artifact to the path it is given, whose suffix is that of `file`, and reports
        what takes long through its module's logger. It works from `inputs` alone, so the same
        inputs give the same artifact whatever was built before. Raises BuildError.
    inputs: the files whose content decides the result. The sources that do the work are among
        them, so that a changed recipe builds again; see `sources`.
    needs_torch: made only on request (`--torch`), since serving needs no torch.
    same_as: the recipe of an equal artifact elsewhere. Where that one is current, it gets a second
        name instead of being built twice.
    """

    model: str
    file: str
    build: Callable[[Path], None]
    inputs: tuple[Path, ...]
    needs_torch: bool = False
    same_as: Recipe | None = None

    def target(self, repository: Path) -> Path:
        """The artifact's path in `repository`."""
        return repository / self.model / "1" / self.file

    def digest(self) -> str:
        """SHA-256 over the inputs, in hexadecimal: equal digests promise equal artifacts.

        Raises FileNotFoundError if an input file is missing. Reads the files; blocks.
        """
        total = hashlib.sha256()
        for path in self.inputs:
            # A hash of hashes, so that a byte that moves from one file to the next counts.
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


def sources(*modules: str) -> tuple[Path, ...]:
    """The source files of these modules of model_factory, as inputs of a recipe."""
    return tuple(Path(__file__).with_name(f"{module}.py") for module in modules)
