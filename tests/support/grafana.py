"""A dashboard as TypeScript, so that the compiler can check it against Grafana's types."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from support.servers import ROOT

#: The folder of the types and the compiler, installed by `make clients` with npm.
MODULES = ROOT / ".cache" / "grafana" / "node_modules"
COMPILER = MODULES / "typescript" / "bin" / "tsc"
_RAW = (MODULES / "@grafana" / "schema" / "dist" / "esm" / "raw").as_posix()
_TYPES = f"""\
import type {{ Dashboard, Panel, RowPanel }} from "{_RAW}/dashboard/x/dashboard_types.gen";
import type {{ Options, FieldConfig }}
  from "{_RAW}/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
// In JSON the members of an enumeration are their values.
type Plain<T> = T extends string ? `${{T}}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? {{ [K in keyof T]: Plain<T[K]> }} : T;
"""
#: Fields that Grafana's SDK writes for all variables, and that Grafana's types do not have.
_OF_INTERVALS = ("auto", "auto_count", "auto_min")


def typescript(dashboard: Mapping[str, Any]) -> str:
    """Return a module that compiles if a dashboard has the fields of its types and no others."""
    return _TYPES + "".join(
        f"export const v{number}: Plain<{kind}> = {json.dumps(value)};\n"
        for number, (kind, value) in enumerate(_parts(copy.deepcopy(dict(dashboard))))
    )


def _parts(dashboard: dict[str, Any]) -> Iterator[tuple[str, object]]:
    panels = dashboard.pop("panels")
    for variable in dashboard["templating"]["list"]:
        for name in _OF_INTERVALS:
            variable.pop(name, None)
    yield "Omit<Dashboard, 'panels'>", dashboard
    for panel in panels:
        if panel["type"] == "row":
            yield "RowPanel", panel
        else:  # Grafana has separate types for the parts of each panel's plugin
            assert panel["type"] == "timeseries"
            yield "Options", panel.pop("options")
            yield "Partial<FieldConfig>", panel["fieldConfig"]["defaults"].pop("custom")
            yield "Omit<Panel, 'options'>", panel
