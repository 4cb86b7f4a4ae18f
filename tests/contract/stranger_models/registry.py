"""Classes that register themselves by a decorator, an Enum, a NamedTuple and a Protocol."""

import enum
import typing

import numpy as np
import triton_python_backend_utils as pb_utils

REGISTRY = {}


class Mode(enum.Enum):
    FAST = "fast"


class Size(typing.NamedTuple):
    width: int = 2


class Step(typing.Protocol):
    def __call__(self, text: str) -> str: ...


def register(cls):
    REGISTRY[cls.__name__] = cls
    return cls


@register
class Upper:
    size: "Size" = Size()

    def __call__(self, text: str) -> str:
        return text.upper()


class TritonPythonModel:
    def execute(self, requests):
        hints = typing.get_type_hints(Upper)
        told = f"{REGISTRY['Upper']()('a')} {Mode('fast')} {Size()} {hints['size'].__name__}"
        text = np.array([told], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
