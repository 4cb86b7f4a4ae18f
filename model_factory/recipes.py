"""Recipes of artifacts: how to build each artifact of the model repository, and its inputs.

`artifacts` has the recipes of all models.

`build_all` builds artifacts that are missing or out of date. Each artifact is written to a
temporary file and renamed, so that it is always complete. Its stamp, the recipe's digest, lies in
`.cache/` of the same version folder, so that a copy of the folder has it. Servers ignore `.cache/`,
because its name is not a number.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


class BuildError(Exception):
    """An artifact cannot be built; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of one artifact.

    model: the model's name, which is its folder in the repository.
    file: the artifact's name in the version folder `1`, such as `model.onnx`.
    build: writes the artifact to a path, which has the suffix of `file`, and logs long steps with
        its module's logger. The artifact depends only on `inputs`. Raises BuildError.
    inputs: the files whose content determines the artifact. They include the sources that build
        it, so that a changed recipe causes a new build; see `sources`.
    needs_torch: built only on request (`--torch`), since serving does not need torch.
    same_as: the recipe of an equal artifact of another model. If that artifact is current, it is
        linked instead of being built twice.
    """

    model: str
    file: str
    build: Callable[[Path], None]
    inputs: tuple[Path, ...]
    needs_torch: bool = False
    same_as: Recipe | None = None

    def target(self, repository: Path) -> Path:
        """Return the artifact's path in `repository`."""
        return repository / self.model / "1" / self.file

    def digest(self) -> str:
        """Return the SHA-256 of the inputs in hexadecimal; equal digests mean equal artifacts.

        Raises FileNotFoundError if an input file is missing. Reads all files; blocks.
        """
        total = hashlib.sha256()
        for path in self.inputs:
            # A hash of hashes, so that moving a byte from one file to the next changes the result.
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


def sources(*modules: str) -> tuple[Path, ...]:
    """Return the source files of modules of model_factory, as inputs of a recipe."""
    return tuple(Path(__file__).with_name(f"{module}.py") for module in modules)


logger = logging.getLogger(__name__)


def build_all(recipes: Iterable[Recipe], repository: Path, *, force: bool = False) -> int:
    """Bring the artifacts of `recipes` in `repository` up to date; return how many were built.

    force: whether current artifacts are built, too.
    Raises what a recipe's `build` raises; artifacts that were built before stay.
    Blocks while recipes are built, and logs one or two lines for each artifact.
    """
    built = 0
    for recipe in recipes:
        name = f"{recipe.model}/1/{recipe.file}"
        if not force and is_current(recipe, repository):
            logger.info("%s is up to date", name)
            continue
        logger.info("%s: building", name)
        started = time.monotonic()
        build_one(recipe, repository)
        size = recipe.target(repository).stat().st_size
        seconds = time.monotonic() - started
        logger.info("%s: built in %.1f s, %.0f kB", name, seconds, size / 1e3)
        built += 1
    return built


def is_current(recipe: Recipe, repository: Path) -> bool:
    """Return whether the artifact exists, complete, as this recipe would build it.

    Reads the recipe's inputs and the stamp, but only the size of the artifact: the size shows an
    incomplete copy, and hashing 90 MB at every start would be slow.
    """
    target = recipe.target(repository)
    try:
        return _stamp_path(target).read_text() == _stamp(recipe, target)
    except FileNotFoundError:
        return False


def build_one(recipe: Recipe, repository: Path) -> None:
    """Build one artifact and its stamp, even if the artifact is current.

    Two processes that build the same artifact at once both succeed; the later result stays.
    Raises what `recipe.build` raises; an earlier artifact then stays unchanged.
    """
    target = recipe.target(repository)
    stamp_path = _stamp_path(target)
    stamp_path.parent.mkdir(parents=True, exist_ok=True)
    draft = stamp_path.with_name(f"{os.getpid()}-{target.name}")
    try:
        if recipe.same_as and is_current(recipe.same_as, repository):
            _link(recipe.same_as.target(repository), draft)
        else:
            recipe.build(draft)
        # The old stamp is removed first: after an interruption, the artifact then counts as out of
        # date, instead of having a wrong stamp.
        stamp_path.unlink(missing_ok=True)
        draft.replace(target)
        stamp_path.write_text(_stamp(recipe, target))
    finally:
        draft.unlink(missing_ok=True)


def _link(source: Path, path: Path) -> None:
    """Create a hard link, or a copy if the file system does not support links."""
    try:
        path.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, path)


def _stamp_path(target: Path) -> Path:
    return target.parent / ".cache" / f"{target.name}.stamp"


def _stamp(recipe: Recipe, target: Path) -> str:
    return f"{recipe.digest()} {target.stat().st_size}\n"
