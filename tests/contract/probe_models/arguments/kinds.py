"""Python values of all kinds that a model might pass."""

import decimal
import enum
import fractions
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class Text(str):
    pass


class Bytes(bytes):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Word(str, enum.Enum):
    MEMBER = "m"


class Count(enum.IntEnum):
    ONE = 1


class Plain(enum.Enum):
    MEMBER = 1


def having(**methods):
    """Return an object with these special methods only, and a text without an address."""
    names = " ".join(methods)
    methods = {f"__{name}__": lambda self, *_, v=value: v for name, value in methods.items()}
    return type("Having", (), {"__repr__": lambda self: f"<{names}>", **methods})()


class Indexed:
    def __init__(self, *items):
        self.items = items

    def __getitem__(self, at):
        return self.items[at]

    def __repr__(self):
        return "<indexed>"


class Sized(Indexed):
    def __len__(self):
        return len(self.items)


class Failing:
    def __index__(self):
        raise ValueError("no index")

    def __float__(self):
        raise ValueError("no float")

    def __bool__(self):
        raise ValueError("no truth")

    def __str__(self):
        raise ValueError("no text")

    def __len__(self):
        raise ValueError("no length")

    def __repr__(self):
        return "<failing>"


class Unshown:
    def __repr__(self):
        raise ValueError("no repr")


def array():
    return np.array([1, 2], np.int32)


def tensor(name="IN"):
    return pb_utils.Tensor(name, np.array([1, 2], np.float32))


def kinds(text="m", number=1):
    """Return values by kind; where possible they contain `text` or `number`."""
    raw = text.encode()
    return {
        "None": None,
        "str": text,
        "str, empty": "",
        "str, subclass": Text(text),
        "str, Enum": enum.Enum("Word", {"MEMBER": text}, type=str).MEMBER,
        "str, half a surrogate pair": "\ud800",
        "str, not ASCII": "é",
        "str, a zero": "a\0b",
        "np.str_": np.str_(text),
        "bytes": raw,
        "bytes, empty": b"",
        "bytes, subclass": Bytes(raw),
        "bytes, no UTF-8": b"\xff",
        "np.bytes_": np.bytes_(raw),
        "bytearray": bytearray(raw),
        "memoryview": memoryview(raw),
        "int": number,
        "int, zero": 0,
        "int, negative": -1,
        "int, subclass": Number(number),
        "int, IntEnum": enum.IntEnum("Count", {"MEMBER": number}).MEMBER,
        "Enum": Plain.MEMBER,
        "2**31": 2**31,
        "2**32": 2**32,
        "2**63": 2**63,
        "2**64": 2**64,
        "-2**31 - 1": -(2**31) - 1,
        "-2**63 - 1": -(2**63) - 1,
        "bool": True,
        "bool, False": False,
        "np.bool_": np.bool_(True),
        **{f"np.{t}": getattr(np, t)(number) for t in (
            "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
            "float16", "float32", "float64", "longdouble", "complex64")},
        "np.int8, negative": np.int8(-1),
        "np.float32, 1.5": np.float32(1.5),
        "float": float(number),
        "float, 1.5": 1.5,
        "float, NaN": float("nan"),
        "float, subclass": Real(number),
        "complex": complex(number),
        "Decimal": decimal.Decimal(number),
        "Fraction": fractions.Fraction(number),
        "np.datetime64": np.datetime64(number, "s"),
        "list": [text],
        "list, empty": [],
        "tuple": (text,),
        "tuple, empty": (),
        "set": {text},
        "frozenset": frozenset([text]),
        "dict": {text: text},
        "dict, empty": {},
        "dict keys": {text: 1}.keys(),
        "generator": (item for item in (text,)),
        "iterator": iter([text]),
        "range": range(number, number + 1),
        "range, empty": range(0),
        "array, 0-d": np.array(number),
        "array, 0-d float": np.array(1.5),
        "array of 1": np.array([number]),
        "array of 2": np.array([number, number]),
        "array of none": np.array([]),
        "array of str": np.array([text]),
        "array of bytes": np.array([raw]),
        "array of objects": np.array([text], object),
        "with __index__": having(index=number),
        "with __int__": having(int=number),
        "with __float__": having(float=float(number)),
        "with __bool__": having(bool=True),
        "with __str__": having(str=text),
        "with __bytes__": having(bytes=raw),
        "with __len__": having(len=1),
        "with __fspath__": having(fspath=text),
        "with __int__ of 2**70": having(int=2**70),
        "with __getitem__": Indexed(text),
        "with __getitem__ and __len__": Sized(text),
        "failing": Failing(),
        "without repr": Unshown(),
        "type": int,
        "dtype": np.dtype(np.float32),
        "function": len,
        "module": json,
        "Ellipsis": ...,
        "object": object(),
        "Tensor": tensor(),
        "list of Tensor": [tensor()],
        "tuple of Tensor": (tensor(),),
        "array of Tensor": np.array([tensor()], object),
        "list of None": [None],
        "list of numbers": [number, 1.5],
        "InferenceRequest": request(),
        "InferenceResponse": pb_utils.InferenceResponse([]),
        "TritonError": pb_utils.TritonError("e"),
        "TritonModelException": pb_utils.TritonModelException("e"),
        "PreferredMemory": pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
        "InferenceTrace": request().trace(),
        "ModelConfig": pb_utils.ModelConfig("{}"),
        "MemoryType": pb_utils.TRITONSERVER_MEMORY_CPU,
        "MetricKind": pb_utils.MetricFamily.GAUGE,
        "LogLevel": pb_utils.Logger.WARNING,
        "error code": pb_utils.TritonError.CANCELLED,
    }  # fmt: skip


def request(**named):
    given = {"model_name": "echoes", "inputs": [tensor()], "requested_output_names": ["OUT"]}
    return pb_utils.InferenceRequest(**given | named)
