"""The words of the language in `parameters { key: "..." value { string_value: "..." } }`.

Keys are told apart here: settings of the whole model, and families of keys that each speak of one
tensor or axis. What their values mean is in the modules that read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ge_runtime.config.faults import Faults, did_you_mean

_SETTINGS: Final = (
    "engine",
    "intra_op_threads",
    "devices",
    "stages",
    "cost",
    "oversize",
    "packing",
    "rows",
    "histogram",
    "warmup",
    "workspace_pool_mib",
    "placement",
    "service_weight",
    "service_priority",
    "device_ids",
    "device_exec_blocks",
    "static_model",
)
_FAMILIES: Final = {
    "axes": "axes.<input or output>",
    "limit": "limit.<axis>",
    "axis_length": "axis_length.<axis>",
    "gears": "gears.<axes>",
    "mask": "mask.<graph input>",
    "lengths": "lengths.<graph input>",
    "positions": "positions.<graph input>",
    "offsets": "offsets.<graph input>",
    "pad": "pad.<input>",
    "default": "default.<input>",
    "pass": "pass.<output>",
    "prepared": "prepared.<tensor>",
    "graph": "graph.ge.<option>",
    "session": "session.ge.<option>",
    "ge": "ge.<option>",
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
        # Sorted, because Triton hands them over in the order of a hash table: what is told of
        # them, and counted by their names, shall not change from one start to the next.
        for key, entry in sorted(entries.items()):
            # Upper case is the server's own, e.g. EXECUTION_ENV_PATH.
            if str(key).isupper():
                continue
            family, _, target = str(key).partition(".")
            value = entry.get("string_value") if isinstance(entry, Mapping) else None
            if key not in _SETTINGS and not (family in _FAMILIES and target):
                known = ", ".join((*_SETTINGS, *_FAMILIES.values()))
                hint = did_you_mean(family, _offers(target))
                faults.add(f"parameter '{key}'", "no such parameter", f"one of: {known}{hint}")
            elif not isinstance(value, str):
                faults.add(f"parameter '{key}'", repr(entry), 'value { string_value: "..." }')
            elif key in _SETTINGS:
                settings[key] = value.strip()
            else:
                families[family][target] = value.strip()
        return cls(settings, families)


def _offers(target: str) -> dict[str, str]:
    """What may have been meant instead of an unknown key that speaks of `target`, if of any."""
    families = {
        family: f"{family}.{target}" if target else words for family, words in _FAMILIES.items()
    }
    return {**dict(zip(_SETTINGS, _SETTINGS, strict=True)), **families}


def split_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated text, in order."""
    return tuple(name.strip() for name in text.split(","))
