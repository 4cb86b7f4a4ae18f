"""The model under load, as its server describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from triton_replay.errors import ReplayError

Document = Mapping[str, Any]
_SAFE: Final = "!$&'()*+,;=:@"
"""What servers take as it is in a path, and do not decode."""


@dataclass(frozen=True)
class TensorPlace:
    """An input or output: without the axis of the batch, where the model has one; -1 is any."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Model:
    """What requests to it must be like."""

    name: str
    version: str
    max_batch_size: int
    """0: requests have no axis of a batch."""
    inputs: tuple[TensorPlace, ...]
    outputs: tuple[TensorPlace, ...]
    is_decoupled: bool
    is_sequence: bool
    steps: tuple[tuple[str, str], ...]
    """The models of an ensemble and their versions; empty for the newest."""
    has_cache: bool

    @property
    def path(self) -> str:
        """Where it is found over HTTP."""
        return model_path(self.name, self.version)


def model_path(name: str, version: str) -> str:
    """Where a model is found over HTTP; version: empty for the newest."""
    versions = f"/versions/{quote(version)}" if version else ""
    return f"/v2/models/{quote(name, _SAFE)}{versions}"


def model_of(name: str, version: str, metadata: Document, config: Document) -> Model:
    """Read what a server says of a model; config: empty where it has none. Raises ReplayError."""
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
        text = f"-m {name}: its metadata tell no inputs with name, datatype and shape: {metadata}"
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
