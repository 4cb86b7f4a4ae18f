"""What of a JSON request stays the same from one to the next, and the requests made of it again.

A request is its skeleton, its id, and the arrays that are called `data`. Where a skeleton was read
before, only the numbers are read; everything that is not as simple as that is read as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from reference_server.codecs import json_data, rapid_json
from reference_server.codecs.json_skeleton import GAP, Skeleton, skeleton
from reference_server.codecs.request_memo import LONGEST_KEY, RequestMemo, RequestTemplate
from reference_server.codecs.response_forms import OutputForm, ResponseForm
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError
from reference_server.core.ports import Regions
from reference_server.core.request import InferRequest, ResponseSink
from reference_server.core.tensor import Array, Tensor

#: A part of a shared memory region: its name, an offset and a size in bytes.
Span = tuple[str, int, int]


def _owners(taken: Skeleton) -> dict[str, int] | None:
    """The inputs whose `data` the arrays are, by name; None if that is not what they are.

    The gaps are filled with what tells them apart, and the JSON is read.
    """
    if not taken.arrays and taken.request_id is None:
        return {}
    ids = int(taken.request_id is not None)
    if taken.text.count(b'"data"') != len(taken.arrays) or taken.text.count(b'"id"') != ids:
        return None
    if b"\\" in taken.text:  # another way to write these names
        return None
    first, *others = taken.text.split(GAP)
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
    if taken.request_id is not None and document.get("id") != "marked":
        return None
    owners: dict[str, int] = {}
    for entry in rapid_json.as_array(document["inputs"]):
        tensor = rapid_json.as_object(entry)
        if tensor.get("data") == [len(owners)]:
            owners[rapid_json.as_string(tensor["name"])] = len(owners)
    return owners if len(owners) == len(taken.arrays) else None


@dataclass(slots=True)
class Spans:
    """What a JSON request takes from shared memory, and what it wants there.

    `outputs` are in the order of the request, with whether the output is to go there: one that was
    named before is not.
    """

    inputs: dict[str, Span] = field(default_factory=dict)
    outputs: list[tuple[str, Span, bool]] = field(default_factory=list)


class _Packed(NamedTuple):
    """That an input is in the array of this number, and how many elements it has."""

    array: int
    elements: int


class JsonTemplate:
    """The template of a JSON request, with where the data of its inputs is.

    That is so many bytes of the binary data, a part of shared memory, or an array of elements.
    """

    def __init__(
        self,
        request: InferRequest,
        form: ResponseForm,
        spans: Spans,
        sources: list[int | Span | _Packed],
        *,
        has_id: bool,
    ) -> None:
        self._outputs = tuple(spans.outputs)
        if spans.outputs:  # a buffer in a region is good for one request
            without = {name: OutputForm() for name, _, counts in spans.outputs if counts}
            form = ResponseForm(form.default, {**form.outputs, **without})
        self._template = RequestTemplate.of(request, form)
        self._inputs = tuple(zip(self._template.inputs, sources, strict=True))
        # What a request must have to be one of these: so much binary data, arrays, an id in a gap.
        binary_size = sum(source for source in sources if isinstance(source, int))
        arrays = sum(isinstance(source, _Packed) for source in sources)
        self._fits = binary_size, arrays, has_id

    @classmethod
    def of(
        cls, request: InferRequest, form: ResponseForm, spans: Spans, taken: Skeleton
    ) -> JsonTemplate | None:
        """The template of a request that was read; None if it is of a kind that has none."""
        if request.id != (taken.request_id or b"").decode() or not all(
            # Of a shape without elements Triton does not look at the data.
            tensor.is_raw
            or (
                (tensor.datatype in json_data.PACKED or tensor.datatype is DataType.BYTES)
                and prod(tensor.shape)
                and tensor.shape
            )
            for tensor in request.inputs.values()
        ):
            return None
        owners = _owners(taken)
        if owners is None:
            return None
        sources: list[int | Span | _Packed] = []
        for name, tensor in request.inputs.items():
            if tensor.is_raw:
                sources.append(spans.inputs.get(name, tensor.byte_size))
            elif name in owners:
                sources.append(_Packed(owners[name], prod(tensor.shape)))
            else:
                return None
        return cls(request, form, spans, sources, has_id=taken.request_id is not None)

    def fill(
        self,
        model: str,
        taken: Skeleton,
        data: memoryview,
        sink: ResponseSink,
        regions: Regions,
    ) -> tuple[InferRequest, ResponseForm] | None:
        """The request of the same skeleton with its own arrays, and over its own binary `data`.

        None if they are not what they were: reading the request anew finds the fault in Triton's
        order. Raises ServerError for a region that is not there any more.
        """
        has_id = taken.request_id is not None
        if (len(data), len(taken.arrays), has_id) != self._fits:
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
            elif isinstance(source, _Packed):
                assert isinstance(datatype, DataType)
                text, raw = taken.arrays[source.array], None
                if datatype.is_bytes:
                    array = json_data.strings(text, source.elements)
                else:
                    raw = json_data.packed(text, datatype, source.elements)
                if array is None and raw is None:
                    return None
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
        request_id = "" if taken.request_id is None else taken.request_id.decode()
        return self._template.request(model, request_id, inputs, sink), form


class JsonMemo:
    """The JSON requests that were read before, by what stays the same. Used by one thread."""

    def __init__(self) -> None:
        self._memo: RequestMemo[JsonTemplate] = RequestMemo()

    def find(self, json: bytes) -> tuple[Skeleton, JsonTemplate | None]:
        """A request taken apart, and the template of its like, if one was kept."""
        # What is longer was not kept, and hashing it is work.
        known = self._memo.recall(json) if len(json) <= LONGEST_KEY else None
        if known is not None:  # nothing of it changes
            return Skeleton(json, None, []), known
        taken = skeleton(json)
        return taken, self._memo.recall(taken.text) if len(taken.text) <= LONGEST_KEY else None

    def keep(
        self, taken: Skeleton, request: InferRequest, form: ResponseForm, spans: Spans
    ) -> None:
        """Remember a request that was read, if its like can be made of what is taken out."""
        if len(taken.text) <= LONGEST_KEY:
            template = JsonTemplate.of(request, form, spans, taken)
            if template is not None:
                self._memo.keep(taken.text, template)
