"""The model under load, from its metadata and configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from triton_replay.errors import ReplayError

Document = Mapping[str, Any]
_SAFE: Final = "!$&'()*+,;=:@"
"""Characters that stay unescaped in a path: servers do not decode them."""


@dataclass(frozen=True)
class TensorPlace:
    """An input or output. The shape has no batch axis; -1 is a free size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Model:
    """The properties of a model that requests depend on."""

    name: str
    version: str
    max_batch_size: int
    """0 if tensors have no batch axis."""
    inputs: tuple[TensorPlace, ...]
    outputs: tuple[TensorPlace, ...]
    is_decoupled: bool
    is_sequence: bool
    steps: tuple[tuple[str, str], ...]
    """Models of an ensemble and their versions; "" for the newest."""
    has_cache: bool

    @property
    def path(self) -> str:
        """URL path of the model."""
        return model_path(self.name, self.version)


def model_path(name: str, version: str) -> str:
    """Return the URL path of a model; version "" is the newest."""
    versions = f"/versions/{quote(version)}" if version else ""
    return f"/v2/models/{quote(name, _SAFE)}{versions}"


def model_of(name: str, version: str, metadata: Document, config: Document) -> Model:
    """Read a model's metadata and configuration.

    Args:
        name: Name of the model.
        version: Version of the model; "" for the newest.
        metadata: The server's metadata of the model.
        config: The model's configuration; empty if the server has none.

    Raises:
        ReplayError: The metadata describe no inputs.
    """
    batch = int(config.get("max_batch_size", 0) or 0)
    optional = {
        str(one.get("name"))
        for one in _objects(config.get("input", ()))
        if one.get("optional") is True
    }
    try:
        inputs = tuple(_place(one, batch, optional) for one in metadata["inputs"])
        outputs = tuple(_place(one, batch, optional) for one in metadata.get("outputs", ()))
    except (KeyError, TypeError, ValueError) as error:
        text = f"-m {name}: metadata: expected inputs with name, datatype, shape; found {metadata}"
        raise ReplayError(text[:400]) from error
    steps = _objects(_object(config.get("ensemble_scheduling")).get("step", ()))
    return Model(
        name=name,
        version=version,
        max_batch_size=batch,
        inputs=inputs,
        outputs=outputs,
        is_decoupled=_object(config.get("model_transaction_policy")).get("decoupled") is True,
        is_sequence="sequence_batching" in config,
        steps=tuple((str(s.get("model_name")), _version(s.get("model_version"))) for s in steps),
        has_cache=_object(config.get("response_cache")).get("enable") is True,
    )


def _place(described: Document, batch: int, optional: set[str]) -> TensorPlace:
    shape = tuple(int(size) for size in described["shape"])
    name = str(described["name"])
    return TensorPlace(
        name, str(described["datatype"]), shape[1:] if batch else shape, name in optional
    )


def _version(value: object) -> str:
    text = str(value if value is not None else "")
    return "" if text == "-1" else text


def _objects(value: object) -> Sequence[Document]:
    if not isinstance(value, list | tuple):
        return ()
    return [one for one in value if isinstance(one, Mapping)]


def _object(value: object) -> Document:
    return value if isinstance(value, Mapping) else {}
