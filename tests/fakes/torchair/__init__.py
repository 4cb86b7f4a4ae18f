"""A fake of torchair, for tests: its graphs are executed by the fake of torch_npu, uncompiled.

It refuses what torchair's documents say is refused, for the mode of GE graphs.
"""

import os

import torch
import torch_npu

if os.environ.get("FAKE_TORCHAIR_WITHOUT_CANN"):
    raise ImportError("libge_runner.so: cannot open shared object file: No such file or directory")

_MODES = ("max-autotune", "reduce-overhead")


class _Options:
    """Fields by name, and no others."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __setattr__(self, name, value):
        if name not in self.__dict__:
            raise ValueError(f"{type(self).__name__} has no option {name}")
        self.__dict__[name] = value


class CompilerConfig(_Options):
    """The part of it that chapter and verse are known of."""

    def __init__(self):
        super().__init__(
            mode="max-autotune",
            ge_config=_Options(
                enable_single_stream=False, aicore_num=None, oo_level=None, optimization_switch=None
            ),
        )


def get_npu_backend(*, compiler_config=None, custom_decompositions=None):
    """A back end for torch.compile."""
    config = compiler_config or CompilerConfig()
    if not isinstance(config, CompilerConfig):
        raise TypeError(f"found {type(config).__name__}, expected CompilerConfig")
    if config.mode not in _MODES:
        raise ValueError(f"found mode {config.mode}, expected one of {_MODES}")
    if not isinstance(config.ge_config.enable_single_stream, bool):
        raise ValueError("enable_single_stream: expected True or False")

    def compile_(module, inputs):
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        for each in inputs:
            if isinstance(each, torch.SymInt):
                raise AssertionError("found a size that varies, expected dynamic=False")
        for tensor in tensors:
            if tensor.device.type != "npu":
                raise AssertionError(f"found an input on {tensor.device}, expected one on npu")
        torch_npu.STATE.compiled.append([tuple(tensor.shape) for tensor in tensors])

        def execute(*given):
            current = torch.device("npu", torch_npu.npu.current_device())
            for each in given:
                if isinstance(each, torch.Tensor) and each.device != current:
                    raise AssertionError(f"found the thread on {current}, expected {each.device}")
            return module.forward(*given)

        return execute

    return compile_
