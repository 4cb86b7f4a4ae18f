"""Model identifiers: the name and, with `--model-namespacing`, the repository as a namespace.

With namespaces, models of different repositories may have the same name. The name of an ensemble's
step is looked up in the ensemble's namespace first, and in all namespaces if it is unique there.
"""

from __future__ import annotations

from collections.abc import Iterator


class ModelId(str):
    """A model's `name` and `namespace`, as the string `namespace::name`.

    Without a namespace it is equal to the name.
    """

    __slots__ = ("name", "namespace")

    name: str
    namespace: str

    def __new__(cls, name: str, namespace: str = "") -> ModelId:
        """Return the id of the model `name`."""
        found = super().__new__(cls, f"{namespace}::{name}" if namespace else name)
        found.name = name
        found.namespace = namespace
        return found


class ModelIds:
    """An index of model ids by name. Not thread-safe."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[ModelId, None]] = {}

    def add(self, model: ModelId) -> None:
        """Add a model; no-op if it is present."""
        self._by_name.setdefault(model.name, {})[model] = None

    def discard(self, model: ModelId) -> None:
        """Remove a model; `named` still knows its name."""
        self._by_name.get(model.name, {}).pop(model, None)

    def named(self, name: str) -> list[ModelId] | None:
        """Return the models of this name; None if there has never been one."""
        found = self._by_name.get(name)
        return None if found is None else list(found)

    def resolve(self, name: str, namespace: str) -> ModelId | None:
        """Return the model `name` of an ensemble in `namespace`; None if missing or ambiguous."""
        found = self._by_name.get(name, {})
        own = ModelId(name, namespace)
        if own in found:
            return own
        return next(iter(found)) if namespace and len(found) == 1 else None

    def is_affected(self, name: str, namespace: str, model: ModelId) -> bool:
        """Return whether a change of `model` can affect an ensemble in `namespace` with `name`."""
        own = ModelId(name, namespace)
        return name == model.name and (model == own or own not in self._by_name.get(name, {}))

    def __iter__(self) -> Iterator[ModelId]:
        return (model for found in self._by_name.values() for model in found)
