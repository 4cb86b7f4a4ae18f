"""Write observe/dashboard.json, the Grafana dashboard of both servers, with Grafana's SDK.

    python -m tools.dashboard

ROWS has the panels. Queries select by two variables of the dashboard: `$job` (the servers) and
`$model`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
)

FILE = Path(__file__).resolve().parents[1] / "observe" / "dashboard.json"
#: Grafana replaces this by the duration over which a rate is computed.
RATE = "$__rate_interval"
_MODELS = 'job=~"$job",model=~"$model"'
_SERVERS = 'job=~"$job"'
_NAMED = "{{job}} {{model}}"
_GRID_WIDTH = 24


@dataclass(frozen=True)
class Panel:
    """A diagram: its title, Grafana's unit, its description, and its queries by legend.

    `reference_only` is true if only the reference server has the metrics.
    """

    title: str
    unit: str
    description: str
    queries: Mapping[str, str]
    reference_only: bool = False
    stacked: bool = False


def _rate(counter: str) -> str:
    return f"sum by (job, model) (rate({counter}{{{_MODELS}}}[{RATE}]))"


def _sum(gauge: str) -> str:
    return f"sum by (job, model) ({gauge}{{{_MODELS}}})"


def _mean(of: str, over: str) -> str:
    return f"{_rate(of)} / {_rate(over)}"


def _by(label: str, name: str) -> str:
    return f"sum by (job, model, {label}) (rate({name}{{{_MODELS}}}[{RATE}]))"


def _largest(name: str) -> str:
    """Return a query of a metric that is equal for all instances in a process."""
    return f"max by (job, model) ({name}{{{_MODELS}}})"


def _server(name: str, over: str = "") -> str:
    rate = f"rate({name}{{{_SERVERS}}}[{RATE}])"
    return f"{rate} / rate({over}{{{_SERVERS}}}[{RATE}])" if over else rate


_SUCCESS = "nv_inference_request_success"
_HITS = _rate("nv_cache_num_hits_per_model")

ROWS: Mapping[str, Sequence[Panel]] = {
    "Requests": (
        Panel(
            "Servers that answer", "short",
            "1: Prometheus reaches the metrics port; 0: it does not.",
            {"{{job}} {{instance}}": f"up{{{_SERVERS}}}"},
        ),
        Panel(
            "Requests answered", "reqps",
            "Successful requests per second, including those answered from the response cache.",
            {_NAMED: _rate(_SUCCESS)},
        ),
        Panel(
            "Requests that wait", "short",
            "Requests whose execution has not started.",
            {_NAMED: _sum("nv_inference_pending_request_count")},
        ),
    ),
    "Batches": (
        Panel(
            "Batch size", "short",
            "Rows of an execution, on average. It should rise with the load.",
            {_NAMED: _mean("nv_inference_count", "nv_inference_exec_count")},
        ),
        Panel(
            "Executions", "ops",
            "Executed batches, i.e. calls of a model's `execute`, per second.",
            {_NAMED: _rate("nv_inference_exec_count")},
        ),
        Panel(
            "Rows of a launch", "short",
            "Models on ge_runtime: rows per execution of the graph, the 50 % and 95 % quantiles.",
            {
                f"{_NAMED} {share:.0%}": f"histogram_quantile({share}, "
                f"{_by('le', 'ge_runtime_launch_rows_bucket')})"
                for share in (0.5, 0.95)
            },
        ),
    ),
    "Time": (
        Panel(
            "Time of a request", "µs",
            "From its arrival to its answer, on average.",
            {_NAMED: _mean("nv_inference_request_duration_us", _SUCCESS)},
        ),
        Panel(
            "Where it goes", "µs",
            "The average request's time in the queue and in the three parts of an execution.",
            {
                f"{_NAMED} {part}": _mean(f"nv_inference_{part}_duration_us", _SUCCESS)
                for part in ("queue", "compute_input", "compute_infer", "compute_output")
            },
            stacked=True,
        ),
        Panel(
            "Wait for memory", "s",
            "Models on ge_runtime: how long an execution waits for workspace, on average.",
            {
                _NAMED: _mean(
                    "ge_runtime_workspace_wait_seconds_total", "ge_runtime_launches_total"
                )
            },
        ),
    ),
    "Padding and gears (models on ge_runtime)": (
        Panel(
            "Padding", "percentunit",
            "The share of executed elements that are padding.",
            {
                _NAMED: "1 - "
                + _mean("ge_runtime_useful_elements_total", "ge_runtime_executed_elements_total")
            },
        ),
        Panel(
            "Gears", "ops",
            "Executions of each gear per second.",
            {f"{_NAMED} {{{{gear}}}}": _by("gear", "ge_runtime_gear_launches_total")},
            stacked=True,
        ),
        Panel(
            "Time of executions, by the prediction", "short",
            "Measured time of executions divided by the time that the cost model predicted. If the "
            "ratio is far from 1, plans are not the best.",
            {
                _NAMED: _mean(
                    "ge_runtime_measured_seconds_total", "ge_runtime_predicted_seconds_total"
                )
            },
        ),
    ),
    "Memory": (
        Panel(
            "Memory plan", "bytes",
            "Models on ge_runtime: the planned memory of all instances.",
            {
                f"{_NAMED} {part}": _sum(f"ge_runtime_{part}_bytes")
                for part in ("weights", "workspace", "io")
            },
            stacked=True,
        ),
        Panel(
            "Plan and use", "bytes",
            "The planned memory; the private memory of the process, including libraries; the "
            "currently leased workspace.",
            {
                f"{_NAMED} planned": _sum("ge_runtime_total_bytes"),
                f"{_NAMED} resident": _largest("ge_runtime_resident_bytes"),
                f"{_NAMED} leased": _largest("ge_runtime_workspace_leased_bytes"),
            },
        ),
        Panel(
            "The machine's memory in use", "percentunit",
            "By all processes.",
            {
                "{{job}} {{instance}}": f"nv_cpu_memory_used_bytes{{{_SERVERS}}} / "
                f"nv_cpu_memory_total_bytes{{{_SERVERS}}}"
            },
        ),
    ),
    "Errors": (
        Panel(
            "Failed requests by reason", "reqps",
            "The server's reasons: REJECTED, CANCELED, BACKEND, OTHER.",
            {f"{_NAMED} {{{{reason}}}}": _by("reason", "nv_inference_request_failure")},
        ),
        Panel(
            "What ge_runtime refuses or loses", "ops",
            "Invalid requests, requests too large for all gears, requests that made an execution "
            "fail, and failed executions.",
            {
                f"{_NAMED} {what}": _rate(f"ge_runtime_{what}_total")
                for what in ("refused", "gear_misses", "culprits", "failed_launches")
            },
        ),
        Panel(
            "Connections ended by the server", "ops",
            "By protocol and reason; docs/server.md has the reasons.",
            {
                "{{job}} {{protocol}} {{reason}}": "sum by (job, protocol, reason) "
                f"({_server('ge_server_connections_ended_total')})"
            },
            reference_only=True,
        ),
    ),
    "Response cache": (
        Panel(
            "Answers out of the cache", "percentunit",
            "The share of hits in the requests to models with `response_cache`.",
            {_NAMED: f"{_HITS} / ({_HITS} + {_rate('nv_cache_num_misses_per_model')})"},
        ),
        Panel(
            "Time of a hit and of a miss", "µs",
            "The time of a miss includes the look-up and the insertion.",
            {
                f"{_NAMED} {what}": _mean(
                    f"nv_cache_{what}_duration_per_model", f"nv_cache_num_{plural}_per_model"
                )
                for what, plural in (("hit", "hits"), ("miss", "misses"))
            },
        ),
    ),
    "Server": (
        Panel(
            "CPUs in use", "percentunit",
            "The share of the machine's CPUs that all processes use.",
            {"{{job}} {{instance}}": f"nv_cpu_utilization{{{_SERVERS}}}"},
        ),
        Panel(
            "How late the event loop is", "s",
            "The mean, and the maximum of the last minute. A model that computes in the server's "
            "process without releasing the GIL delays the loop.",
            {
                "{{job}} {{instance}} mean": _server(
                    "ge_server_loop_lag_seconds_total", "ge_server_loop_ticks_total"
                ),
                "{{job}} {{instance}} most": "ge_server_loop_lag_greatest_seconds"
                f"{{{_SERVERS}}}",
            },
            reference_only=True,
        ),
        Panel(
            "Time to load a model", "s",
            "The duration of the last load of each version.",
            {f"{_NAMED} {{{{version}}}}": f"nv_model_load_duration_secs{{{_MODELS}}}"},
            reference_only=True,  # tritonserver has this metric only in releases after 2.51
        ),
    ),
}  # fmt: skip


def build() -> str:
    """Return the dashboard as JSON for Grafana's import."""
    source = DataSourceRef(type_val="prometheus", uid="$datasource")

    def variable(name: str, label: str, query: str) -> QueryVariable:
        return (
            QueryVariable(name)
            .label(label)
            .datasource(source)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
        )

    board = (
        Dashboard("Triton and the reference server")
        .uid("triton-reference")
        .description("Requests, batches, time, padding, memory, errors and cache of both servers.")
        .tags(["triton"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(variable("job", "Server", "label_values(nv_inference_count, job)"))
        .with_variable(variable("model", "Model", "label_values(nv_inference_count, model)"))
    )
    numbers = itertools.count(1)
    for title, panels in ROWS.items():
        board = board.with_row(Row(title).id(next(numbers)))
        for panel in panels:
            made = _timeseries(panel, source).id(next(numbers)).span(_GRID_WIDTH // len(panels))
            board = board.with_panel(made)
    return JSONEncoder(sort_keys=True, indent=1).encode(board.build()) + "\n"


def _timeseries(panel: Panel, source: DataSourceRef) -> TimeSeries:
    text = panel.description + " Reference server only." * panel.reference_only
    series = (
        TimeSeries()
        .title(panel.title)
        .description(text)
        .unit(panel.unit)
        .min(0)
        .datasource(source)
        .height(8)
        .fill_opacity(30 if panel.stacked else 5)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if panel.stacked:
        series = series.stacking(StackingConfig().mode(StackingMode.NORMAL).group("A"))
    for number, (legend, query) in enumerate(panel.queries.items()):
        target = Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + number))
        series = series.with_target(target.datasource(source).range())
    return series


if __name__ == "__main__":
    FILE.write_text(build())
