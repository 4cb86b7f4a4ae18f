"""Decodes and encodes bodies and messages, without sockets, clocks or event loops.

`setup.py` compiles each module that has a .pxd file beside it. Without a C compiler the same files
run interpreted.
"""

from importlib.util import find_spec

_MODULES = (
    *("codecs.grisu", "codecs.json_arrays", "codecs.json_fast_reader", "codecs.json_skeleton"),
    *("codecs.proto_fields", "core.byte_strings"),
)


def _is_compiled(module: str) -> bool:
    spec = find_spec(f"reference_server.{module}")
    return spec is not None and not (spec.origin or "").endswith(".py")


#: False if at least one module runs interpreted.
IS_COMPILED = all(map(_is_compiled, _MODULES))
