"""Models on ge_runtime: tiny graphs, each with a config.pbtxt that asks for certain features.

`write_models` writes a repository with these models. Their config.pbtxt has the cost of executions,
which would otherwise be measured at load, so that every machine forms the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from contract import runtime_graphs
from contract.probes import MODELS
from runtime.support.axis_graphs import recurrent
from runtime.support.graphs import ENCODER, PIXELS

BATCH = 16

# The types of fixed size, each with the value of an omitted element.
DEFAULTS = {
    "BOOL": "true",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64"), "7"),
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64"), "-7"),
    **dict.fromkeys(("FP16", "BF16", "FP32", "FP64"), "-1.5"),
}
BATCH_INPUTS = {
    "count": "BATCH_ELEMENT_COUNT",
    "accumulated": "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "offsets": "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "largest": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "shape": "BATCH_ITEM_SHAPE",
    "flat": "BATCH_ITEM_SHAPE_FLATTEN",
}


@dataclass(frozen=True)
class Model:
    """A model folder: its config, its graph, and the source of its model.py."""

    config: str
    graph: Callable[[], onnx.ModelProto]
    code: Path = MODELS / "graph.py"


def given(name: str, datatype: str, dims: str = "-1", more: str = "") -> str:
    return f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims}] {more} }}\n'


def wanted(name: str, datatype: str, dims: str = "-1") -> str:
    return f'output {{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims}] }}\n'


def parameters(text: str) -> str:
    """Return a parameter for each line `key: value`."""
    pairs = (line.strip().partition(": ") for line in text.splitlines() if line.strip())
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, _, value in pairs
    )


def batches_of(rows: int) -> str:
    """Return a dynamic batcher that waits for exactly this number of rows, longer than any test."""
    return (
        f"max_batch_size: {rows}\ndynamic_batching {{ max_queue_delay_microseconds: 60000000 }}\n"
    )


COST = "cost: launch_us=100, element_ns=1000, element2_ns=0"
RAGGED = "allow_ragged_batch: true"
ENCODES = (
    given("input_ids", "INT64", more=RAGGED)
    + wanted("embedding", "FP32", "4")
    + parameters("""
        axes.input_ids: tokens
        mask.attention_mask: tokens
    """)
)


RUNTIME_MODELS = {
    "window": Model(
        batches_of(BATCH)
        + ENCODES
        + parameters(f"""
            limit.tokens: 32
            workspace_pool_mib: 8
            {COST}
        """),
        ENCODER.onnx,
    ),
    "geared": Model(
        "max_batch_size: 8\n"
        + ENCODES
        + parameters(f"""
            gears.tokens: 4, 8, 16
            gears.batch: 1, 2, 4
            limit.tokens: 32
            oversize: fallback
            {COST}
        """),
        ENCODER.onnx,
    ),
    "packed": Model(
        batches_of(4)
        + given("input_ids", "INT64", more=RAGGED)
        + wanted("told", "INT64")
        + wanted("row_sum", "INT64", "1")
        + wanted("row_length", "INT64", "1")
        + parameters(f"""
            axes.input_ids: tokens
            axes.told: tokens
            limit.tokens: 16
            packing: tokens
            offsets.cu_seqlens: tokens
            positions.position_ids: tokens
            lengths.lengths: tokens
            {COST}
        """),
        runtime_graphs.packed_rows,
    ),
    "types": Model(
        "max_batch_size: 4\n"
        + "".join(
            given(name, name, more="" if name == "FP32" else "optional: true") for name in DEFAULTS
        )
        + given("note", "STRING", "2, -1")
        + given("BF16_kept", "BF16", "1")
        + "".join(wanted(f"{name}_OUT", name) for name in DEFAULTS)
        + wanted("note_too", "STRING", "2, -1")
        + wanted("BF16_kept_too", "BF16", "1")
        + "".join(
            parameters(f"""
                axes.{name}: size
                axes.{name}_OUT: size
                {f"default.{name}: {text}" if name != "FP32" else ""}
            """)
            for name, text in DEFAULTS.items()
        )
        + parameters(f"""
            limit.size: 8
            pass.note_too: note
            pass.BF16_kept_too: BF16_kept
            {COST}
        """),
        lambda: runtime_graphs.identities(DEFAULTS),
    ),
    "described": Model(
        batches_of(2)
        + given("x", "INT32", more=RAGGED)
        + wanted("told", "INT32", "7")
        + "".join(
            f'batch_input {{ kind: {kind} target_name: "{name}" data_type: TYPE_INT32 '
            'source_input: "x" }\n'
            for name, kind in BATCH_INPUTS.items()
        )
        # An execution costs more than any padding. The answers depend on the batch.
        + parameters("""
            axes.x: size
            limit.size: 8
            cost: launch_us=1000000, element_ns=1, element2_ns=0
            load_check: off
        """),
        runtime_graphs.told_of_batches,
    ),
    "prepared": Model(
        given("text", "STRING")
        + wanted("embedding", "FP32", "-1, 4")
        + parameters(f"""
            prepared.input_ids: INT64[tokens]
            prepared.lengths: INT32[1]
            rows: 4
            limit.tokens: 8
            axis_length.tokens: lengths
            mask.attention_mask: tokens
            {COST}
        """),
        ENCODER.onnx,
        MODELS / "letters.py",
    ),
    **{
        f"{strategy}_states": Model(
            "max_batch_size: 4\n"
            f"sequence_batching {{ max_sequence_idle_microseconds: 600000000 {batching} }}\n"
            + given("x", "FP32", "3")
            + wanted("y", "FP32", "3")
            + parameters(f"""
                state.state: next
                batch_axis.state: 1
                batch_axis.next: 1
                range.x: -100..100
                {COST}
            """),
            recurrent,
        )
        for strategy, batching in {
            "direct": "direct { }",
            "oldest": "oldest { max_candidate_sequences: 8 }",
        }.items()
    },
    # Faults in config.pbtxt.
    "misconfigured": Model(
        "max_batch_size: 8\n"
        + ENCODES
        + given("types", "INT64")
        + parameters("""
            limits.tokens: 16
            limit.tokens: many
            gears.tokens: auto
            gears.batch: 16
            pad.input_id: 1
            engine: onnx
        """),
        ENCODER.onnx,
    ),
    # Contradictions between config.pbtxt and the graph.
    "mismatched": Model(
        "max_batch_size: 8\n"
        + given("image", "FP64", "1, -1, -1")
        + given("size", "INT32", "1")
        + wanted("sums", "FP32", "3")
        + parameters("""
            axes.image: h, w
            limit.h: 8
            limit.w: 8
        """),
        PIXELS.onnx,
    ),
    # Faults that the servers themselves detect.
    "typeless": Model(
        "max_batch_size: 8\n"
        + ENCODES
        + 'batch_input { target_name: "n" data_type: TYPE_INT64 source_input: "input_ids" }',
        ENCODER.onnx,
    ),
    "sourceless": Model(
        "max_batch_size: 8\n"
        + ENCODES
        + 'batch_input { target_name: "n" data_type: TYPE_INT32 source_input: "ids" }',
        ENCODER.onnx,
    ),
}


def write_models(repository: Path) -> None:
    """Write all models, each with its graph as model.onnx."""
    for name, model in RUNTIME_MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        # With model.onnx, Triton would select its ONNX Runtime backend.
        (repository / name / "config.pbtxt").write_text('backend: "python"\n' + model.config)
        (version / "model.py").write_bytes(model.code.read_bytes())
        onnx.save(model.graph(), version / "model.onnx")
