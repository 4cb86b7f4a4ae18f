"""Models, versions and outputs that have other names on a second server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, StreamMessage
from triton_replay.errors import ReplayError
from triton_replay.wire.answers import Answer
from triton_replay.wire.bodies import JSON_LENGTH, Body, NotUnderstood, read_body
from triton_replay.wire.grpc_messages import SERVICE, STREAMING, framed, messages, read_messages

_PATH: Final = re.compile(
    r"(?P<start>/v2(?:/repository)?/models/)(?P<model>[^/?]+)"
    r"(?:(?P<middle>/versions/)(?P<version>[^/?]+))?(?P<end>.*)",
    re.DOTALL,
)
_NOT_A_MODEL: Final = "/v2/models/stats"


@dataclass(frozen=True)
class Names:
    """The second server's names by the first server's names. Names that are not listed are equal.

    Args:
        models: Model names.
        versions: Versions by "VERSION" or "MODEL:VERSION".
        outputs: Output names by "OUTPUT" or "MODEL/OUTPUT".
    """

    models: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.models or self.versions or self.outputs)

    def version(self, model: str, version: str) -> str:
        """Return the second server's version, by the first server's model and version."""
        return self.versions.get(f"{model}:{version}", self.versions.get(version, version))

    def output(self, model: str, output: str) -> str:
        """Return the second server's output name, by the first server's model and output."""
        return self.outputs.get(f"{model}/{output}", self.outputs.get(output, output))

    def check(self, exchanges: Iterable[Exchange]) -> None:
        """Raise ReplayError if a named model occurs in no request."""
        if not self:
            return
        models = {model for one in exchanges for model in _models_of(one.request)} - {""}
        of_versions = {key.rpartition(":")[0] for key in self.versions} - {""}
        of_outputs = {key.rpartition("/")[0] for key in self.outputs} - {""}
        for option, named in (
            ("--map-model", self.models.keys()),
            ("--map-version", of_versions),
            ("--map-output", of_outputs),
        ):
            if unknown := sorted(named - models):
                expected = ", ".join(sorted(models)) or "none"
                text = f"{option}: found model {', '.join(unknown)}; expected models of the capture"
                raise ReplayError(f"{text}: {expected}")

    def renamed(self, exchange: Exchange) -> Exchange:
        """Return an exchange with the second server's names in its request and messages."""
        if not self:
            return exchange
        request = exchange.request
        if request.protocol == "http":
            return replace(exchange, request=self._http(request))
        later = [self._message(request, one) if one.sent else one for one in exchange.messages]
        body = self._call(request, request.body)
        request = replace(request, body=body, body_size=len(body)) if request.whole else request
        return replace(exchange, request=request, messages=tuple(later))

    def aligned(self, model: str, a: Answer, b: Answer) -> Answer:
        """Return B's response to a request of `model` with the names of A's response."""
        if not self:
            return b
        outputs = {self.output(model, name): name for name in a.tensors}
        tensors = {outputs.get(name, name): tensor for name, tensor in b.tensors.items()}
        fields = dict(b.fields)
        mapped = {
            "model_name": self.models.get(str(a.fields.get("model_name"))),
            "name": self.models.get(str(a.fields.get("name"))),
            "model_version": self.version(model, str(a.fields.get("model_version"))),
        }
        for key, name in mapped.items():
            if key in a.fields and key in fields and str(fields[key]) == name:
                fields[key] = a.fields[key]
        return Answer(tensors, fields)

    def _http(self, request: Request) -> Request:
        found = _PATH.fullmatch(request.target)
        if found is None or request.target.startswith(_NOT_A_MODEL):
            return request
        model, version = found["model"], found["version"] or ""
        target = found["start"] + self.models.get(model, model)
        if version:
            target += found["middle"] + self.version(model, version)
        request = replace(request, target=target + found["end"])
        if not found["end"].startswith("/infer") or not self.outputs:
            return request
        try:
            body = read_body(request.headers, request.body)
        except NotUnderstood:
            return request
        if not self._rename_outputs(model, body.document.get("outputs")):
            return request
        text = json.dumps(body.document).encode()
        dropped = ("content-encoding", JSON_LENGTH)
        headers = tuple(pair for pair in request.headers if pair[0].lower() not in dropped)
        if body.binary:
            headers += (("Inference-Header-Content-Length", str(len(text))),)
        content = text + bytes(body.binary)
        return replace(request, headers=headers, body=content, body_size=len(content))

    def _rename_outputs(self, model: str, outputs: object) -> bool:
        """Rename outputs of a request's JSON; return whether a name has changed."""
        changed = False
        for one in outputs if isinstance(outputs, list) else []:
            if isinstance(one, dict) and isinstance(one.get("name"), str):
                name = self.output(model, one["name"])
                changed |= name != one["name"]
                one["name"] = name
        return changed

    def _message(self, request: Request, message: StreamMessage) -> StreamMessage:
        body = self._call(request, message.body)
        return replace(message, body=body, body_size=len(body)) if message.whole else message

    def _call(self, request: Request, body: Body) -> Body:
        """Return the messages of a call, without compression if a name has changed."""
        requests = _requests_of(request, body)
        before = framed(requests)
        for one in requests:
            model = _model_of(one)
            for key in ("model_name", "name"):
                if hasattr(one, key):
                    setattr(one, key, self.models.get(model, model))
            for key in ("model_version", "version"):
                if getattr(one, key, ""):
                    setattr(one, key, self.version(model, getattr(one, key)))
            for output in getattr(one, "outputs", ()):
                output.name = self.output(model, output.name)
        after = framed(requests)
        return body if before == after else after


def _model_of(message: Any) -> str:  # noqa: ANN401  protobuf's classes are made at run time
    return str(getattr(message, "model_name", "") or getattr(message, "name", ""))


def _requests_of(request: Request, body: Body) -> list[Any]:
    """Return the messages of a call, or none if they name no model or cannot be read."""
    if not request.target.startswith(f"{SERVICE}/") or "SharedMemory" in request.target:
        return []
    method = "ModelInfer" if request.target.endswith(STREAMING) else request.target.split("/")[-1]
    kind = getattr(messages, f"{method}Request", None)
    try:
        return read_messages(kind, body) if kind is not None else []
    except NotUnderstood:
        return []


def _models_of(request: Request) -> list[str]:
    """Return the models that a request names."""
    if request.protocol == "grpc":
        return [_model_of(one) for one in _requests_of(request, request.body)]
    found = _PATH.fullmatch(request.target)
    return [found["model"]] if found and not request.target.startswith(_NOT_A_MODEL) else []


def parse_names(models: Sequence[str], versions: Sequence[str], outputs: Sequence[str]) -> Names:
    """Parse values of `--map-model`, `--map-version` and `--map-output`.

    Raises:
        ReplayError: A value is invalid.
    """
    return Names(
        _pairs("--map-model", "MODEL=MODEL", models),
        _pairs("--map-version", "[MODEL:]VERSION=VERSION", versions),
        _pairs("--map-output", "[MODEL/]OUTPUT=OUTPUT", outputs),
    )


def _pairs(option: str, form: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, _, other = text.partition("=")
        if not name or not other:
            raise ReplayError(f"{option}: found {text!r}, expected {form}")
        found[name] = other
    return found
