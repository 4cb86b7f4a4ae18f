"""Decodes and encodes the generate extension: requests and responses as flat JSON objects.

Members with the name of an input become that input; all other members become parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from reference_server.codecs import rapid_json
from reference_server.codecs.bodies import UNLIMITED, InputLimit
from reference_server.codecs.infer_json_reader import read_parameter
from reference_server.codecs.json_exact_reader import JsonValue, Repeated, TooDeep
from reference_server.codecs.json_tensor_reader import read_tensor
from reference_server.codecs.json_writer import encode_parameter, write_data, write_string
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Signature, TensorConfig
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import InferRequest, InferResponse, Parameter, ResponseSink
from reference_server.core.tensor import Array, DataType, Shape, Tensor

_NESTED = "parameters"


def decode(
    signature: Signature,
    body: memoryview,
    sink: ResponseSink,
    profile: TritonProfile = V2_51,
    limit: InputLimit = UNLIMITED,
) -> InferRequest:
    """Decode the body of a generate request.

    Args:
        signature: The model's inputs. Members with other names become parameters.
        body: The JSON.
        sink: The sink of the responses.
        profile: The Triton release to imitate.
        limit: Limits the total size of the inputs.

    Raises:
        ServerError: The request is refused.
    """
    reader = _Reader(signature, InferRequest(signature.name, {}, sink), profile, limit)
    try:
        return rapid_json.decode(body, reader.read_all, profile, reader.repeated)
    except TooDeep as error:
        raise reader.nested_too_deeply(error) from None


class _Reader:
    """Adds members to a request, as inputs or as parameters.

    `repeated` receives the members that occur more than once in their object.
    """

    def __init__(
        self, signature: Signature, request: InferRequest, profile: TritonProfile, limit: InputLimit
    ) -> None:
        self._profile = profile
        self._limit = limit
        self._bytes = 0  # the size of the inputs so far
        self._signature = signature
        self._inputs = {tensor.name: tensor for tensor in signature.inputs}
        self._request = request
        self.repeated: Repeated = {}
        self._parameters: dict[str, Parameter] = {}
        request.parameters = self._parameters

    def read_all(self, document: JsonValue) -> InferRequest:
        request = self._request
        if isinstance(document, dict) and "id" in document:
            request.id = rapid_json.parse_member(document, "id", rapid_json.as_string)
        for name, value in self.occurrences(rapid_json.members(document)):
            if name == _NESTED:
                self.read_nested(value)
            else:
                self.read(name, value)
        return request

    def occurrences(self, members: dict[str, JsonValue]) -> Iterable[tuple[str, JsonValue]]:
        """Yield the members in the document's order.

        A repeated name occurs twice, both times with its first value, as in Triton.
        """
        again: dict[int, list[str]] = {}
        for (_, name), (owner, place) in self.repeated.items():
            if owner is members:
                again.setdefault(place, []).append(name)
        for place, (name, value) in enumerate(members.items(), 1):
            yield name, value
            for repeated in again.get(place, ()):
                yield repeated, members[repeated]

    def read_nested(self, value: JsonValue) -> None:
        if _NESTED in self._inputs:
            raise invalid_arg(
                f"Keyword '{_NESTED}' for nested schema also given as input tensor name"
            )
        try:
            members = rapid_json.as_object(value)
        except ServerError as error:
            context = f"Expected JSON object for keyword: '{_NESTED}'"
            raise rapid_json.prefixed(context, error) from None
        try:
            for name, member in self.occurrences(members):
                self.read(name, member)
        except ServerError as error:
            raise rapid_json.prefixed(f"Converting keyword: '{_NESTED}'", error) from None

    def read(self, name: str, value: JsonValue) -> None:
        config = self._inputs.get(name)
        if config is None:
            self._parameters[name] = read_parameter(name, value)
            return
        inputs = self._request.inputs
        shape = self._shape(config, len(value) if isinstance(value, list) else 1)
        if name in inputs:
            raise invalid_arg(f"{self._request.label} input '{name}' already exists in request")
        array = _data(config, value, shape)
        if value == [] and self._profile.newer_request_checks:
            shape = ()  # a scalar, which no model accepts
        tensor = Tensor(name, config.datatype, shape, array=array)
        if self._limit.most is not None:
            self._limit.check_sum(self._bytes, name, tensor.byte_size)
            self._bytes += tensor.byte_size
        inputs[name] = tensor

    def nested_too_deeply(self, error: TooDeep) -> ServerError:
        """Return the error for too deep nesting; within an input it gets Triton's prefix."""
        names = [name for _, name in error.opened]
        config = self._inputs.get(names[-1]) if names else None
        if config is None or config.datatype.is_bytes:
            return error
        return rapid_json.prefixed("Unable to parse 'data'", error)

    def _shape(self, config: TensorConfig, count: int) -> Shape:
        """Return the shape of `count` elements.

        Variable sizes are 1, except for the innermost variable size, which is computed from
        `count`.
        """
        shape = list(self._signature.full_dims(config))
        for size in shape:
            if size > 0:
                count, rest = divmod(count, size)
                if rest:
                    raise _shapeless(config)
        free = [index for index, size in enumerate(shape) if size < 0]
        for index in free[:-1]:
            shape[index] = 1
        if free:
            shape[free[-1]] = count
        elif count != 1:
            raise _shapeless(config)
        return tuple(shape)


def _shapeless(config: TensorConfig) -> ServerError:
    return invalid_arg(
        f"The schema can not convert input '{config.name}' to tensor with proper shape"
    )


def _data(config: TensorConfig, value: JsonValue, shape: Shape) -> Array:
    if config.datatype in (DataType.FP16, DataType.BF16):
        raise invalid_arg(
            f"receiving {config.datatype.value} data via JSON is not supported. Please use the "
            f"binary data format for input {config.name}"
        )
    return read_tensor(value if isinstance(value, list) else [value], config.datatype, shape)


def encode(response: InferResponse) -> bytes:
    """Encode a response without error as a JSON object with members sorted by name.

    Raises ServerError if an output has no JSON form.
    """
    members = {b"id": write_string(response.id)} if response.id else {}
    members[b"model_name"] = write_string(response.model_name)
    members[b"model_version"] = b'"%d"' % response.model_version
    for key, value in response.parameters:
        members.setdefault(_name(key), encode_parameter(value))
    for tensor in response.outputs:
        members.setdefault(_name(tensor.name), _value(tensor))
    return b"{%b}" % b",".join(
        b"%b:%b" % (write_string(name), members[name]) for name in sorted(members)
    )


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _value(tensor: Tensor) -> bytes:
    elements = b"".join(write_data(tensor))
    return elements if prod(tensor.shape) == 1 else b"[%b]" % elements
