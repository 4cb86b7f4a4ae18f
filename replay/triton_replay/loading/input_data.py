"""Values of requests: `--input-data zero`, `random`, a folder or JSON files."""

from __future__ import annotations

import base64
import binascii
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from triton_replay.errors import ReplayError
from triton_replay.generating import InputPlan
from triton_replay.loading.tensors import (
    SIZES,
    Model,
    Row,
    TensorData,
    TensorPlace,
    bytes_of,
    values_of,
)

_SEED = 0


@dataclass(frozen=True)
class InputOptions:
    """Options for inputs.

    Args:
        sources: "zero", "random", one folder, or JSON files.
        shapes: Shapes by input name.
        string_length: Length of random BYTES elements.
        string_data: Value of all BYTES elements; None for random values.
    """

    sources: Sequence[str]
    shapes: Mapping[str, tuple[int, ...]]
    string_length: int
    string_data: str | None


def read_streams(model: Model, options: InputOptions) -> list[list[Row]]:
    """Return the rows of each stream, i.e. sequence of inputs. Only JSON files have several.

    Raises:
        ReplayError: The data cannot be read, or do not fit the model.
    """
    unknown = set(options.shapes) - {place.name for place in model.inputs}
    if unknown:
        known = ", ".join(place.name for place in model.inputs)
        raise ReplayError(f"--shape {min(unknown)}: not an input of {model.name}; expected {known}")
    if any(source in ("zero", "random") for source in options.sources):
        if len(options.sources) > 1:
            raise ReplayError("--input-data: zero and random cannot be combined with other values")
        maker = _zeros if options.sources[0] == "zero" else _random
        return [[_make_row(model, options, maker)]]
    paths = [Path(source) for source in options.sources]
    if paths[0].is_dir():
        if len(paths) > 1:
            raise ReplayError(
                f"--input-data {paths[0]}: a folder cannot be combined with other values"
            )
        return [[_of_folder(model, options, paths[0])]]
    streams = [stream for path in paths for stream in _JsonFile(model, options, path).streams()]
    if not any(streams):
        raise ReplayError(f"--input-data {paths[0]}: found empty data, expected inputs")
    return streams


def shape_of(place: TensorPlace, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of an input whose data do not specify a shape.

    Raises:
        ReplayError: The shape has free sizes and no `--shape`, or `--shape` does not fit.
    """
    if place.name not in shapes:
        if any(size < 0 for size in place.shape):
            raise ReplayError(
                f"--shape: {place.name} has shape {list(place.shape)}; expected fixed sizes, e.g. "
                f"--shape {place.name}:{','.join(str(max(n, 16)) for n in place.shape)}"
            )
        return place.shape
    return _check_shape(place, shapes[place.name], f"--shape {place.name}")


def _check_shape(place: TensorPlace, shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    fits = len(shape) == len(place.shape) and all(
        has in (-1, given) for has, given in zip(place.shape, shape, strict=True)
    )
    if not fits:
        raise ReplayError(f"{where}: found {list(shape)}, expected {list(place.shape)}")
    return shape


def _make_row(model: Model, options: InputOptions, maker: Any) -> Row:  # noqa: ANN401  two functions
    chance = random.Random(_SEED)
    found = {}
    for place in model.inputs:
        if place.optional:
            continue
        shape = shape_of(place, options.shapes)
        if place.datatype == "BYTES" and options.string_data is not None:
            values = [options.string_data] * prod(shape)
            found[place.name] = values_of(place, shape, values, "--string-data")
        else:
            data = maker(place, shape, options, chance)
            found[place.name] = TensorData(place.name, place.datatype, shape, data)
    return found


def _zeros(
    place: TensorPlace, shape: tuple[int, ...], options: InputOptions, chance: random.Random
) -> bytes:
    if place.datatype == "BYTES":  # empty elements, each of which is a length of zero
        return bytes(4 * prod(shape))
    return bytes(SIZES[place.datatype] * prod(shape))


def _random(
    place: TensorPlace, shape: tuple[int, ...], options: InputOptions, chance: random.Random
) -> bytes:
    low = high = options.string_length
    if place.datatype != "BYTES":
        low, high = 0, 1
    datatype = "FP32" if place.datatype == "BF16" else place.datatype
    _, data = InputPlan(place.name, datatype, shape, low, high).make({}, chance)
    if place.datatype == "BF16":  # the upper half of each FP32
        return b"".join(data[at + 2 : at + 4] for at in range(0, len(data), 4))
    return data


def _of_folder(model: Model, options: InputOptions, folder: Path) -> Row:
    found = {}
    for place in model.inputs:
        path = folder / place.name
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            if place.optional:
                continue
            raise ReplayError(f"{path}: missing; expected the data of {place.name}") from error
        except OSError as error:
            raise ReplayError(f"{path}: cannot be read: {error.strerror}") from error
        shape = shape_of(place, options.shapes)
        if place.datatype == "BYTES":
            lines = data.decode(errors="replace").splitlines()
            found[place.name] = values_of(place, shape, lines, str(path))
        else:
            found[place.name] = bytes_of(place, shape, data, str(path))
    return found


class _JsonFile:
    """A file `{"data": [...]}`. Errors name the field."""

    def __init__(self, model: Model, options: InputOptions, path: Path) -> None:
        self._model = model
        self._options = options
        self._path = path

    def streams(self) -> list[list[Row]]:
        try:
            document = json.loads(self._path.read_bytes())
        except OSError as error:
            text = f"--input-data {self._path}: cannot be read: {error.strerror}"
            raise ReplayError(text) from error
        except (ValueError, RecursionError) as error:
            raise ReplayError(f"--input-data {self._path}: not JSON: {error}") from error
        data = document.get("data") if isinstance(document, dict) else None
        if not isinstance(data, list):
            raise ReplayError(f"{self._path}: data: expected a list of objects, or of lists")
        if data and all(isinstance(entry, list) for entry in data):
            return [
                [self._row(row, f"data[{number}][{step}]") for step, row in enumerate(stream)]
                for number, stream in enumerate(data)
                if stream
            ]
        return [[self._row(row, f"data[{number}]") for number, row in enumerate(data)]]

    def _row(self, row: object, where: str) -> Row:
        if not isinstance(row, dict):
            raise self._fault(where, f"found {_kind(row)}, expected an object of inputs")
        places = {place.name: place for place in self._model.inputs}
        for name in row:
            if name not in places:
                known = ", ".join(places)
                raise self._fault(f"{where}.{name}", f"not an input of the model; expected {known}")
        for place in places.values():
            if place.name not in row and not place.optional:
                raise self._fault(where, f"input {place.name} is missing")
        return {
            name: self._tensor(places[name], row[name], f"{where}.{name}")
            for name in places
            if name in row
        }

    def _tensor(self, place: TensorPlace, given: object, where: str) -> TensorData:
        content, shape = given, None
        if isinstance(given, dict) and ("content" in given or "shape" in given):
            if "content" not in given and "b64" not in given:
                raise self._fault(where, "content is missing")
            content = given["content"] if "content" in given else {"b64": given["b64"]}
            if "shape" in given:
                shape = self._shape(place, given["shape"], f"{where}.shape")
            where += ".content" if "content" in given else ""
        found = shape_of(place, self._options.shapes) if shape is None else shape
        if isinstance(content, dict):
            if not isinstance(content.get("b64"), str):
                raise self._fault(where, "expected a list, or an object with b64")
            try:
                data = base64.b64decode(content["b64"], validate=True)
            except (binascii.Error, ValueError) as error:
                raise self._fault(f"{where}.b64", f"not base64: {error}") from error
            return bytes_of(place, found, data, f"{self._path}: {where}.b64")
        return values_of(place, found, content, f"{self._path}: {where}")

    def _shape(self, place: TensorPlace, given: object, where: str) -> tuple[int, ...]:
        if not isinstance(given, list) or not all(type(n) is int and n >= 0 for n in given):
            raise self._fault(where, f"found {given!r}, expected a list of sizes")
        return _check_shape(place, tuple(given), f"{self._path}: {where}")

    def _fault(self, where: str, what: str) -> ReplayError:
        return ReplayError(f"{self._path}: {where}: {what}")


def _kind(value: object) -> str:
    return {str: "a string", list: "a list", type(None): "null"}.get(type(value), "a number")
