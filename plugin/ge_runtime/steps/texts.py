"""Converts texts to token ids, with the tokenizer of a model in tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.errors import ArtifactFault, ConfigFault, RequestFault
from ge_runtime.specs import Array, DType, Tensors

# Objects of the package `tokenizers`, which has no type stubs.
Tokenizer: TypeAlias = Any
Encoding: TypeAlias = Any

_FEWEST_TOKENS: Final = 3
"""A start token, one token of the text, an end token."""
_ATTRIBUTES: Final = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
    "token": "tokens",
}
"""For each output, the attribute of an encoding."""
_OUTPUTS: Final[Mapping[str, DType]] = MappingProxyType(
    {"input_ids": DType.INT64, "lengths": DType.INT32}
)


def read_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer of a file, without its truncation and padding.

    Raises:
        ArtifactFault: The file or the package `tokenizers` is missing, or the file is damaged.
    """
    try:
        from tokenizers import Tokenizer as Class
    except ImportError as error:
        raise ArtifactFault(
            f"found no package tokenizers ({error}), expected it for {file.name}: "
            "`pip install 'ge-runtime[text]'`"
        ) from error
    if not file.is_file():
        raise ArtifactFault(f"{file}: found nothing; `make models` builds the artifacts")
    try:
        tokenizer = Class.from_file(str(file))
    except Exception as error:  # tokenizers raises Exception itself
        raise ArtifactFault(
            f"{file}: found no tokenizer ({error}), expected a file that the package tokenizers "
            "has written"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class TextStep:
    """Converts the texts of requests to padded token ids. For one thread.

    The inputs are `text` and, for models of pairs, `text_pair`: UTF-8 in BYTES [n] or [n, 1].
    Outputs are [n, longest], padded with 0: `input_ids`, `attention_mask`, `token_type_ids` and
    the tokens themselves, `token`; `lengths` [n, 1] has the number of tokens in each row.
    """

    def __init__(
        self,
        file: Path,
        *,
        inputs: Sequence[str] = ("text",),
        outputs: Mapping[str, DType] = _OUTPUTS,
        prompt: str = "",
        clean: Sequence[str] = (),
    ) -> None:
        """Read tokenizer.json. Texts are not truncated until `truncate` is called.

        `prompt` is put before each `text`; "strip" and "lower" in `clean` change each text after
        that. Raises ArtifactFault, see `read_tokenizer`.
        """
        self.tokenizer = read_tokenizer(file)
        self._inputs, self._outputs = tuple(inputs), dict(outputs)
        self._prompt, self._clean = prompt, tuple(clean)
        self._truncation: tuple[int, str] | None = None

    @classmethod
    def open(cls, args: Mapping[str, str]) -> TextStep:
        """Return the step for the arguments of `initialize`; tokenizer.json is beside model.py.

        Raises:
            ArtifactFault: See `read_tokenizer`.
            ConfigFault: Parameter `max_tokens` is not a whole number of 3 or more.
        """
        config = json.loads(args["model_config"])
        given = {key: own["string_value"] for key, own in config.get("parameters", {}).items()}
        step = cls(
            Path(args["model_repository"], args["model_version"], "tokenizer.json"),
            inputs=[own["name"] for own in config["input"]],
            outputs={own["name"]: DType.of_config(own["data_type"]) for own in config["output"]},
            prompt=given.get("prompt", ""),
            clean=given.get("clean", "").split(", "),
        )
        tokens = given.get("max_tokens", "")
        if not tokens.isdecimal() or int(tokens) < _FEWEST_TOKENS:
            fault = (
                f"parameter 'max_tokens': found '{tokens}', expected a whole number of 3 or more"
            )
            raise ConfigFault(config["name"], [fault])
        step.truncate(int(tokens), given.get("truncation", "right"))
        return step

    def truncate(self, max_tokens: int, direction: str = "right") -> None:
        """Truncate longer texts from now on; `direction` is the end that is cut off."""
        self._truncation = max_tokens, direction
        if len(self._inputs) == 1:
            self.tokenizer.enable_truncation(max_tokens, direction=direction)

    def __call__(self, batch: Sequence[Tensors]) -> list[Tensors | Exception]:
        """Return the outputs of each request, or its RequestFault."""
        requests = [self._texts(inputs) for inputs in batch]
        texts = [text for request in requests if isinstance(request, list) for text in request]
        # One call for all requests: it uses all cores and releases the GIL.
        encode = self.tokenizer.encode_batch if len(self._inputs) == 1 else self._pairs
        encodings = iter(encode(texts))
        return [
            self._padded([next(encodings) for _ in request])
            if isinstance(request, list)
            else request
            for request in requests
        ]

    def _texts(self, inputs: Tensors) -> list[Any] | RequestFault:
        """Return the texts of a request, or its pairs of texts."""
        columns = []
        for name in self._inputs:
            texts = _decode(name, inputs[name].reshape(-1))
            if isinstance(texts, RequestFault):
                return texts
            columns.append([self._cleaned(text, name) for text in texts])
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _cleaned(self, text: str, name: str) -> str:
        if name == "text":
            text = self._prompt + text
        if "strip" in self._clean:
            text = text.strip()
        return text.lower() if "lower" in self._clean else text

    def _pairs(self, texts: Sequence[tuple[str, str]]) -> list[Encoding]:
        """Return the encodings of pairs.

        `encode_batch` also returns the parts that it cuts off. For pairs it returns all
        combinations of such parts, which takes minutes and gigabytes for long texts. Here each text
        is truncated before the two texts are joined.
        """
        both = [
            self.tokenizer.encode_batch(list(column), add_special_tokens=False)
            for column in zip(*texts, strict=True)
        ]
        pairs = list(zip(*both, strict=True))
        if self._truncation is not None:
            most, direction = self._truncation
            room = max(most - self.tokenizer.num_special_tokens_to_add(True), 0)
            for pair in pairs:
                # Tokens of the longer text are dropped until both texts are equally long.
                shorter, longer = sorted(pair, key=len)
                shorter.truncate(min(len(shorter), room // 2), direction=direction)
                longer.truncate(min(len(longer), room - len(shorter)), direction=direction)
        return [self.tokenizer.post_process(*pair) for pair in pairs]

    def _padded(self, encodings: Sequence[Encoding]) -> Tensors | RequestFault:
        lengths = np.array([len(one) for one in encodings], np.int32)[:, None]
        if not lengths.all():
            row = int(lengths.argmin())
            return RequestFault(f"input 'text', element {row}: found no tokens, expected some")
        mask = np.arange(lengths.max()) < lengths
        found: dict[str, Array] = {}
        for name, dtype in self._outputs.items():
            if name == "lengths":
                found[name] = lengths.astype(dtype.numpy)
                continue
            rows = [getattr(one, _ATTRIBUTES[name]) for one in encodings]
            values = [value for row in rows for value in row]
            if dtype is DType.BYTES:
                values = [value.encode() for value in values]
            found[name] = np.full(mask.shape, b"" if dtype is DType.BYTES else 0, dtype.numpy)
            found[name][mask] = values
        return found


def _decode(name: str, elements: Array) -> list[str] | RequestFault:
    """Return the texts of a request's elements, bytes [n], or a RequestFault."""
    if not elements.size:
        return RequestFault(f"input '{name}': found no text, expected one or more")
    texts = []
    for index, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            return RequestFault(
                f"input '{name}', element {index}: found {error.reason} at byte {error.start}, "
                "expected UTF-8"
            )
    return texts
