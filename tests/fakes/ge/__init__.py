"""A fake of GE-PY, for tests: it compiles nothing, and is no simulator of GE.

Its sessions work on the memory and the streams of the simulator `ascend_simulator`, by its `acl`,
so that addresses, lifetimes and orders are checked there. Computations are ONNX Runtime's: an AIR
file is, here, what `ge.graph.air_of` makes of an ONNX file.

It refuses what GE-PY's source and documents say is refused, with their texts. What GE would not
notice, or is only documented, raises `Misuse`.
"""


class Misuse(AssertionError):
    """A rule of GE-PY's documents was broken that GE itself does not look for."""
