"""Decodes the body of an HTTP inference request: JSON, JSON with binary data, or raw data.

Requests that differ only in id and data are parsed once. A request is split into a skeleton, its
id, and its `data` arrays. If the skeleton was parsed before, only the id and the arrays are read.
`infer_json_reader` reads any other request as a whole.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from reference_server.codecs import IS_COMPILED, json_arrays, rapid_json
from reference_server.codecs.bodies import UNLIMITED, InputLimit
from reference_server.codecs.infer_json_reader import RequestReader, Spans, decode_raw
from reference_server.codecs.inference import (
    LONGEST_KEY,
    OutputForm,
    RequestCache,
    RequestTemplate,
    ResponseForm,
    Span,
)
from reference_server.codecs.json_exact_reader import TooDeep
from reference_server.codecs.json_skeleton import GAP, Skeleton, split_request
from reference_server.codecs.json_tensor_reader import BINARY_ONLY
from reference_server.core import byte_strings
from reference_server.core.cpp import leading_integer
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.ports import Regions
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import InferRequest, ResponseSink
from reference_server.core.tensor import Array, DataType, Tensor

_RAW_FORM = ResponseForm(OutputForm(binary=True))
#: Triton counts only the arrays in `data`, and accepts 99 levels; three levels surround an input's
#: `data`.
_DEEPEST = 3 + 99
#: Longer JSON is not looked up in the cache: its numbers are most of the work.
_LONGEST_CACHED = 1 << 16
#: The kind and the size in bytes of the elements that a JSON array can have.
_ELEMENTS = {
    datatype: (np.dtype(datatype.numpy).kind, datatype.byte_size)
    for datatype in DataType
    if datatype not in BINARY_ONLY and not datatype.is_bytes
}


def json_length(header: str | None, body_length: int, *, strictly: bool = False) -> int:
    """Return how many bytes of the body are JSON; 0 if the body is a raw tensor.

    Args:
        header: The value of `Inference-Header-Content-Length`, if any. As in C, text after the
            number is ignored.
        body_length: The size of the body in bytes.
        strictly: Whether a value without a number, or beyond int32, is refused.

    Raises:
        ServerError: INVALID_ARG if the value is not a length within the body.
    """
    if header is None:
        return body_length
    number = leading_integer(header)
    if strictly and number is None:
        raise invalid_arg(f"Unable to parse Inference-Header-Content-Length, got: {header}")
    length = number or 0
    if strictly and not -(2**31) <= length < 2**31:
        raise invalid_arg(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {header}"
        )
    if not 0 <= length <= body_length:
        raise invalid_arg(
            f"inference header size should be in range (0, {body_length}), got: {header}"
        )
    return length


class InferRequestDecoder:
    """Decodes bodies, with a cache. Used by one thread, except for `decode_uncached`.

    `limit` applies to JSON, to raw bodies, and to the tensors that are made from JSON.
    """

    def __init__(self, profile: TritonProfile = V2_51, limit: InputLimit = UNLIMITED) -> None:
        self._profile = profile
        self._limit = limit
        self._cache = JsonRequestCache()
        # Requests in the cache are not checked again: their JSON and strings are within the limit.
        self._uses_cache = limit.most is None or limit.most >= 2 * _LONGEST_CACHED

    def decode(
        self,
        signature: Signature,
        body: memoryview,
        length: int,
        sink: ResponseSink,
        regions: Regions,
    ) -> tuple[InferRequest, ResponseForm]:
        """Decode a body.

        Args:
            signature: The model.
            body: The body. Tensors with binary data are views of it.
            length: The number of bytes of JSON at its start.
            sink: The sink of the responses.
            regions: The shared memory that inputs are read from.

        Returns:
            The request, and the form of its response.

        Raises:
            ServerError: The request is refused.
        """
        if not (self._uses_cache and 0 < length <= _LONGEST_CACHED):
            return self.decode_uncached(signature, body, length, sink, regions)
        # The JSON is the same for all models, since it does not contain the name of the model.
        # Whether the model accepts the request is checked later.
        parts, template = self._cache.find(bytes(body[:length]))
        if template is not None:
            cached = template.fill(signature.name, parts, body[length:], sink, regions)
            if cached is not None:
                return cached
        reader = RequestReader(signature, body, length, sink, regions, self._profile, self._limit)
        request, form = self._decoded(body[:length], reader)
        if template is None:
            self._cache.keep(parts, request, form, reader.spans)
        return request, form

    def decode_uncached(
        self,
        signature: Signature,
        body: memoryview,
        length: int,
        sink: ResponseSink,
        regions: Regions,
    ) -> tuple[InferRequest, ResponseForm]:
        """Decode a body without the cache. Any thread."""
        if length == 0:
            self._limit.check_raw(len(body))
            return decode_raw(signature, body, sink), _RAW_FORM
        self._limit.check_json(length)
        reader = RequestReader(signature, body, length, sink, regions, self._profile, self._limit)
        return self._decoded(body[:length], reader)

    def _decoded(
        self, document: memoryview, reader: RequestReader
    ) -> tuple[InferRequest, ResponseForm]:
        try:
            return rapid_json.decode(document, reader.read, self._profile, deepest=_DEEPEST)
        except TooDeep as error:
            if [name for _, name in error.opened[-2:]] != ["data", "inputs"]:
                raise
            # Triton has read the whole document; here, a datatype after the data is not read yet.
            if error.opened[-2][0].get("datatype") == DataType.BYTES.value:
                raise
            raise rapid_json.prefixed("Unable to parse 'data'", error) from None


# -- the cache


def read_elements(text: bytes, datatype: DataType, count: int) -> memoryview | Array | None:
    """Read a JSON array of elements.

    Args:
        text: The array. It may contain arrays, which are read depth first.
        datatype: A datatype that has a JSON form.
        count: The expected number of elements.

    Returns:
        The bytes of the tensor, or for BYTES a flat object array. None if the array is malformed,
        does not fit, or has an unusual form; the request is then parsed as a whole.
    """
    if datatype.is_bytes:
        strings = json_arrays.read_strings(text, len(text), count)
        return None if strings is None else byte_strings.as_array(strings, (count,))
    numbers = json_arrays.read_numbers(text, count, *_ELEMENTS[datatype])
    return None if numbers is None else memoryview(numbers)


def _find_owners(parts: Skeleton) -> dict[str, int] | None:
    """Return the index of the `data` array of each input, by input name.

    The gaps are filled with markers, and the JSON is parsed. Returns None if the arrays or the id
    belong to anything but the inputs or the request.
    """
    if not parts.arrays and parts.request_id is None:
        return {}
    ids = int(parts.request_id is not None)
    if parts.text.count(b'"data"') != len(parts.arrays) or parts.text.count(b'"id"') != ids:
        return None
    if b"\\" in parts.text:  # the names may also be written with escapes
        return None
    first, *others = parts.text.split(GAP)
    marked = first
    number = 0
    for part in others:
        if marked.endswith(b'"'):
            marked += b"marked"
        else:
            marked += b"[%d]" % number
            number += 1
        marked += part
    try:
        document = rapid_json.fields(rapid_json.loads(marked))
    except ServerError:
        return None
    if parts.request_id is not None and document.get("id") != "marked":
        return None
    owners: dict[str, int] = {}
    for entry in rapid_json.as_array(document["inputs"]):
        tensor = rapid_json.as_object(entry)
        if tensor.get("data") == [len(owners)]:
            owners[rapid_json.as_string(tensor["name"])] = len(owners)
    return owners if len(owners) == len(parts.arrays) else None


class _ArraySource(NamedTuple):
    """An input whose elements are in the `data` array with this index."""

    array: int
    elements: int


class JsonTemplate:
    """The template of a JSON request, with the source of the data of each input.

    A source is a number of bytes of the binary data, a part of shared memory, or an array.
    """

    def __init__(
        self,
        request: InferRequest,
        form: ResponseForm,
        spans: Spans,
        sources: list[int | Span | _ArraySource],
        *,
        has_id: bool,
    ) -> None:
        self._outputs = tuple(spans.outputs)
        if spans.outputs:  # an output buffer is valid for one request
            without = {name: OutputForm() for name, _, counts in spans.outputs if counts}
            form = ResponseForm(form.default, {**form.outputs, **without})
        self._template = RequestTemplate.of(request, form)
        self._inputs = tuple(zip(self._template.inputs, sources, strict=True))
        # A request must have the same size of binary data, number of arrays, and presence of an id.
        binary_size = sum(source for source in sources if isinstance(source, int))
        arrays = sum(isinstance(source, _ArraySource) for source in sources)
        self._expected = binary_size, arrays, has_id

    @classmethod
    def of(
        cls, request: InferRequest, form: ResponseForm, spans: Spans, parts: Skeleton
    ) -> JsonTemplate | None:
        """Return the template of a parsed request; None if its form is unusual."""
        if request.id != (parts.request_id or b"").decode() or not all(
            # Triton ignores the data of a tensor without elements.
            tensor.is_raw
            or (
                isinstance(tensor.datatype, DataType)
                and tensor.datatype not in BINARY_ONLY
                and prod(tensor.shape)
                and tensor.shape
            )
            for tensor in request.inputs.values()
        ):
            return None
        owners = _find_owners(parts)
        if owners is None:
            return None
        sources: list[int | Span | _ArraySource] = []
        for name, tensor in request.inputs.items():
            if tensor.is_raw:
                sources.append(spans.inputs.get(name, tensor.byte_size))
            elif name in owners:
                sources.append(_ArraySource(owners[name], prod(tensor.shape)))
            else:
                return None
        return cls(request, form, spans, sources, has_id=parts.request_id is not None)

    def fill(
        self, model: str, parts: Skeleton, data: memoryview, sink: ResponseSink, regions: Regions
    ) -> tuple[InferRequest, ResponseForm] | None:
        """Make a request with the same skeleton from its own arrays and binary `data`.

        Returns None if these do not fit the template; parsing the request as a whole then finds
        its faults in Triton's order.

        Raises:
            ServerError: A region is not registered any more.
        """
        has_id = parts.request_id is not None
        if (len(data), len(parts.arrays), has_id) != self._expected:
            return None
        inputs: dict[str, Tensor] = {}
        position = 0
        raw: memoryview | None
        array: Array | None
        for (name, datatype, shape), source in self._inputs:
            array = None
            if isinstance(source, int):
                raw = data[position : position + source]
                position += source
            elif isinstance(source, _ArraySource):
                assert isinstance(datatype, DataType)
                elements = read_elements(parts.arrays[source.array], datatype, source.elements)
                if elements is None:
                    return None
                raw = None
                if isinstance(elements, memoryview):
                    raw = elements
                else:
                    array = elements
            else:
                raw = regions.read(*source)
            inputs[name] = Tensor(name, datatype, shape, raw=raw, array=array)
        form = self._template.form
        if self._outputs:
            outputs = dict(form.outputs)
            for name, span, counts in self._outputs:
                buffer = regions.output_buffer(*span)
                if counts:
                    outputs[name] = OutputForm(buffer=buffer)
            form = ResponseForm(form.default, outputs)
        request_id = "" if parts.request_id is None else parts.request_id.decode()
        return self._template.request(model, request_id, inputs, sink), form


class JsonRequestCache:
    """A cache of the templates of JSON requests, by skeleton. Used by one thread."""

    def __init__(self) -> None:
        self._cache: RequestCache[JsonTemplate] = RequestCache()

    def find(self, json: bytes) -> tuple[Skeleton, JsonTemplate | None]:
        """Split a request, and return its parts and its template, if the cache has it."""
        # Longer texts are not in the cache, and take time to hash.
        known = self._cache.find(json) if len(json) <= LONGEST_KEY else None
        if known is not None:  # a request without variable parts
            return Skeleton(json, None, []), known
        parts = split_request(json)
        return parts, self._cache.find(parts.text) if len(parts.text) <= LONGEST_KEY else None

    def keep(
        self, parts: Skeleton, request: InferRequest, form: ResponseForm, spans: Spans
    ) -> None:
        """Store the template of a parsed request, if it has one."""
        # If `read_elements` is interpreted, orjson reads a whole request faster.
        if len(parts.text) <= LONGEST_KEY and (IS_COMPILED or not parts.arrays):
            template = JsonTemplate.of(request, form, spans, parts)
            if template is not None:
                self._cache.keep(parts.text, template)
