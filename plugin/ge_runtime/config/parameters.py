"""The words of the language in `parameters { key: "..." value { string_value: "..." } }`.

Keys are told apart here: settings of the whole model, and families of keys that each speak of one
tensor or axis. What their values mean is in `runtime_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ge_runtime.config.faults import Faults, did_you_mean

ENGINES: Final = ("auto", "onnxruntime", "torch")

_SETTINGS: Final = ("engine", "intra_op_threads")
_FAMILIES: Final = {
    "axes": "axes.<input or output>",
    "limit": "limit.<axis>",
    "axis_length": "axis_length.<axis>",
    "mask": "mask.<graph input>",
    "lengths": "lengths.<graph input>",
    "pad": "pad.<input>",
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one model as text, sorted by family: {"limit": {"tokens": "512"}, ...}.

    Every family is present, be it empty.
    """

    settings: Mapping[str, str]
    families: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, model_config: Mapping[str, object], faults: Faults) -> Parameters:
        """The parameters in Triton's JSON form. Unknown keys and other values become faults."""
        settings: dict[str, str] = {}
        families: dict[str, dict[str, str]] = {family: {} for family in _FAMILIES}
        entries = model_config.get("parameters") or {}
        if not isinstance(entries, Mapping):
            faults.add("parameters", repr(entries), "keys with string values")
            entries = {}
        for key, entry in entries.items():
            # Upper case is the server's own, e.g. EXECUTION_ENV_PATH.
            if str(key).isupper():
                continue
            family, dot, target = str(key).partition(".")
            value = entry.get("string_value") if isinstance(entry, Mapping) else None
            if key not in _SETTINGS and not (family in _FAMILIES and target):
                known = ", ".join((*_SETTINGS, *_FAMILIES.values()))
                hint = did_you_mean(family, (*_SETTINGS, *_FAMILIES), dot + target)
                faults.add(f"parameter '{key}'", "no such parameter", f"one of: {known}{hint}")
            elif not isinstance(value, str):
                faults.add(f"parameter '{key}'", repr(entry), 'value { string_value: "..." }')
            elif key in _SETTINGS:
                settings[key] = value.strip()
            else:
                families[family][target] = value.strip()
        return cls(settings, families)


def split_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated value, in order."""
    return tuple(name.strip() for name in text.split(","))
