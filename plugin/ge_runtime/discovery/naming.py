"""Names of axes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

from ge_runtime.discovery.graph import Port
from ge_runtime.specs import ROWS


def axis_name(symbol: str, ports: Sequence[Port], taken: set[str], *, batched: bool) -> str:
    """Return a name for an axis: its symbol if that is a name, else one for the input's type."""
    name = re.sub(r"\W+", "_", symbol).strip("_").lower()
    generic = "." in symbol or re.match(r"unk__|dynamic_axes|DynamicDimension|p2o|s\d+$", symbol)
    if generic or not name.isidentifier() or keyword.iskeyword(name) or len(name) == 1:
        port = next(port for port in ports if symbol in port.dims)
        place = port.dims.index(symbol)
        if place == 0 and len(port.dims) > 1 and not batched:
            name = "rows"
        elif port.dtype.is_integer and len(port.symbols) <= 2:
            name = "tokens"
        elif len(port.dims) == 4:
            channels_last = isinstance(port.dims[-1], int) and port.dims[-1] <= 4
            name = "width" if place == (2 if channels_last else 3) else "height"
        elif len(port.dims) <= 2:
            name = "samples"
        else:
            name = "frames"
    if name == ROWS:
        name = "rows"
    if name in ("min", "max"):
        name += "_size"
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique
