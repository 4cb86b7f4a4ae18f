"""What tells models apart: their names, or with `--model-namespacing` also their repositories.

With it models of several repositories may have one name, and each repository is a namespace. An
ensemble means the models of its own namespace, and of others where a name is there once.
"""

from __future__ import annotations

from collections.abc import Iterator


class ModelId(str):
    """A model's `name` in its `namespace`, shown as `namespace::name`.

    Without a namespace it is the name, and equal to it.
    """

    __slots__ = ("name", "namespace")

    name: str
    namespace: str

    def __new__(cls, name: str, namespace: str = "") -> ModelId:
        """The id of `name`, which may be one itself."""
        found = super().__new__(cls, f"{namespace}::{name}" if namespace else name)
        found.name = name
        found.namespace = namespace
        return found


class ModelIds:
    """Models that are known, by their names. Not thread-safe."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[ModelId, None]] = {}

    def add(self, model: ModelId) -> None:
        """From now on it is known; once more does not matter."""
        self._by_name.setdefault(model.name, {})[model] = None

    def discard(self, model: ModelId) -> None:
        """It is known no more; its name still is."""
        self._by_name.get(model.name, {}).pop(model, None)

    def called(self, name: str) -> list[ModelId] | None:
        """The models of this name; None if there has never been one."""
        found = self._by_name.get(name)
        return None if found is None else list(found)

    def meant(self, name: str, namespace: str) -> ModelId | None:
        """The model that an ensemble of `namespace` means; None if there is none, or several."""
        found = self._by_name.get(name, {})
        own = ModelId(name, namespace)
        if own in found:
            return own
        return next(iter(found)) if namespace and len(found) == 1 else None

    def may_mean(self, name: str, namespace: str, model: ModelId) -> bool:
        """Whether it matters to such an ensemble that `model` comes, changes or goes."""
        own = ModelId(name, namespace)
        return name == model.name and (model == own or own not in self._by_name.get(name, {}))

    def __iter__(self) -> Iterator[ModelId]:
        return (model for found in self._by_name.values() for model in found)
