"""The probes: small models, each with one property that a client can notice.

`write_probes` makes a repository of them. The code of each model.py is in `probe_models/`. This
module has the names, the configurations and the other files of the folders.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from support.servers import ROOT

MODELS = Path(__file__).with_name("probe_models")
GE_CLASSIFIER = ROOT / "model_repository" / "ge_classifier"

# One optional input of each type, so that a request may have any of the types. BF16, which has no
# NumPy type, is refused here; the probe `bf16` accepts it.
TYPES = [
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "BF16", "FP32", "FP64", "STRING"),
]
TYPES_CONFIG = "\n".join(
    f"""input {{ name: "{name}" data_type: TYPE_{name} dims: [-1] optional: true }}
    output {{ name: "{name}_OUT" data_type: TYPE_{name} dims: [-1] }}"""
    for name in TYPES
)

METER_CONFIG = """
    input { name: "what" data_type: TYPE_STRING dims: [1] }
    output { name: "told" data_type: TYPE_STRING dims: [1] }
"""

#: The default model of probes, a class of `probe_models/small.py`.
IDENTITY = "Identity"

# Enough inputs for collisions in a hash table, and for its growth: 13 buckets suffice for these ten
# and three of the five inputs that the server adds.
WIDE = ("a", "B1", "c-3", "delta", "E", "input_ids", "attention_mask", "x" * 20, "ö", "_")
WIDE_CONFIG = (
    "".join(f'''input {{ name: "{name}" data_type: TYPE_FP32 dims: [1] }}\n''' for name in WIDE)
    + """output { name: "ORDER" data_type: TYPE_STRING dims: [1] }
output { name: "2nd" data_type: TYPE_FP32 dims: [1] }
output { name: "third" data_type: TYPE_FP32 dims: [1] }
"""
)


@dataclass(frozen=True)
class Probe:
    """A model folder: its config, its versions, and its files.

    model: the source of its model.py, i.e. a file, or a class of `probe_models/small.py`.
    """

    config: str
    model: Path | str | None = IDENTITY
    versions: tuple[int, ...] = (1,)
    files: dict[str, str] = field(default_factory=dict)


PROBES = {
    # Shapes and batching.
    "types": Probe(TYPES_CONFIG),
    "vector": Probe("""
        input { name: "X" data_type: TYPE_FP32 dims: [-1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
    """),
    "matrix": Probe("""
        input { name: "X" data_type: TYPE_INT32 dims: [-1, -1] }
        output { name: "Y" data_type: TYPE_INT32 dims: [-1, -1] }
    """),
    "half": Probe("""
        input { name: "X" data_type: TYPE_FP16 dims: [-1] }
        output { name: "Y" data_type: TYPE_FP16 dims: [-1] }
    """),
    "batched": Probe("""
        max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: [4] }
        output { name: "Y" data_type: TYPE_FP32 dims: [4] }
    """),
    "ragged": Probe("""
        max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }
        output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
        dynamic_batching { }
    """),
    "pair": Probe("""
        max_batch_size: 8
        input { name: "A" data_type: TYPE_FP32 dims: [4] }
        input { name: "B" data_type: TYPE_INT32 dims: [1, 2] }
        output { name: "OA" data_type: TYPE_FP32 dims: [4] }
        output { name: "OB" data_type: TYPE_INT32 dims: [1, 2] }
    """),
    "optional": Probe("""
        max_batch_size: 4
        input { name: "A" data_type: TYPE_FP32 dims: [2] }
        input { name: "B" data_type: TYPE_FP32 dims: [2] optional: true }
        output { name: "OA" data_type: TYPE_FP32 dims: [2] }
        output { name: "OB" data_type: TYPE_FP32 dims: [2] }
    """),
    "reshaped": Probe("""
        max_batch_size: 4
        input { name: "X" data_type: TYPE_INT32 dims: [4] reshape { shape: [2, 2] } }
        output { name: "Y" data_type: TYPE_INT32 dims: [2, 2] }
    """),
    "text": Probe("""
        max_batch_size: 4
        input { name: "T" data_type: TYPE_STRING dims: [1] }
        output { name: "U" data_type: TYPE_STRING dims: [1] }
    """),
    "words": Probe("""
        input { name: "T" data_type: TYPE_STRING dims: [-1] }
        output { name: "U" data_type: TYPE_STRING dims: [-1] }
    """),
    # The server's order of inputs and outputs.
    "wide": Probe(WIDE_CONFIG, "Order"),
    "wide_sequence": Probe(
        WIDE_CONFIG
        + """
        sequence_batching {
          control_input { name: "START" control { kind: CONTROL_SEQUENCE_START
                                                  int32_false_true: [0, 1] } }
          control_input { name: "END" control { kind: CONTROL_SEQUENCE_END
                                                int32_false_true: [0, 1] } }
          control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY
                                                  int32_false_true: [0, 1] } }
          control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID
                                               data_type: TYPE_UINT64 } }
          state { input_name: "STATE" output_name: "LEFT" data_type: TYPE_FP32 dims: [1] }
        }
        """,
        "Order",
    ),
    # Other kinds of answers.
    "labelled": Probe(
        """
        max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: [-1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [-1] label_filename: "labels.txt" }
        """,
        files={"labels.txt": "cat\ndog\nBär\n"},
    ),
    "mirror": Probe(
        """
        input { name: "X" data_type: TYPE_FP32 dims: [-1] }
        output { name: "facts" data_type: TYPE_STRING dims: [1] }
        output { name: "again" data_type: TYPE_STRING dims: [1] }
        """,
        "Mirror",
    ),
    "bf16": Probe(
        """
        input { name: "X" data_type: TYPE_BF16 dims: [-1, -1] }
        output { name: "same" data_type: TYPE_BF16 dims: [-1, -1] }
        output { name: "again" data_type: TYPE_BF16 dims: [-1, -1] }
        output { name: "more" data_type: TYPE_BF16 dims: [-1, -1] }
        """,
        MODELS / "bf16.py",
    ),
    "faults": Probe(
        """
        input { name: "what" data_type: TYPE_STRING dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        MODELS / "faults.py",
    ),
    "no_execute": Probe(
        """
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        "NoExecute",
    ),
    "decoupled": Probe(
        """
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        model_transaction_policy { decoupled: true }
        """,
        "Decoupled",
    ),
    # Versions, instances and other parts of a config.
    "versions": Probe(
        """
        version_policy { specific { versions: [1, 3] } }
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        versions=(1, 2, 3),
    ),
    # The probes are shared by all modules; this one is never sent a request.
    "unasked": Probe(
        """
        version_policy { specific { versions: [1, 3] } }
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        versions=(1, 3),
    ),
    "elaborate": Probe("""
        name: "elaborate"
        backend: "python"
        max_batch_size: 16
        input { name: "X" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, 2, -1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [3, 2, -1] }
        dynamic_batching {
          preferred_batch_size: [4, 8]
          max_queue_delay_microseconds: 100
        }
        instance_group [ { name: "workers" kind: KIND_CPU count: 2 } ]
        optimization {
          priority: PRIORITY_MAX input_pinned_memory { enable: false } eager_batching: true
        }
        parameters { key: "one" value { string_value: "1" } }
        parameters { key: "Two" value { string_value: "zwei" } }
        metric_tags [ { key: "team" value: "blue" } ]
    """),
    "queueing": Probe("""
        max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: [2] }
        output { name: "Y" data_type: TYPE_FP32 dims: [2] }
        dynamic_batching {
          priority_levels: 2
          default_priority_level: 1
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 500000
                                 allow_timeout_override: true max_queue_size: 7 }
          priority_queue_policy { key: 1 value { max_queue_size: 3 } }
        }
    """),
    "warmed": Probe("""
        max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: [2] }
        output { name: "Y" data_type: TYPE_FP32 dims: [2] }
        model_warmup [ { name: "zeros" batch_size: 2 count: 3
          inputs { key: "X" value { data_type: TYPE_FP32 dims: [2] zero_data: true } } } ]
    """),
    # Ensembles.
    "chain": Probe(
        """
        platform: "ensemble"
        max_batch_size: 4
        input { name: "IN" data_type: TYPE_FP32 dims: [4] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [4] }
        ensemble_scheduling {
          step { model_name: "batched" model_version: -1
                 input_map { key: "X" value: "IN" } output_map { key: "Y" value: "middle" } }
          step { model_name: "batched" model_version: -1
                 input_map { key: "X" value: "middle" } output_map { key: "Y" value: "OUT" } }
        }
        """,
        None,
    ),
    "fork": Probe(
        """
        platform: "ensemble"
        input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
        output { name: "LEFT" data_type: TYPE_FP32 dims: [-1] }
        output { name: "RIGHT" data_type: TYPE_FP32 dims: [-1] }
        ensemble_scheduling {
          step { model_name: "vector" model_version: 1
                 input_map { key: "X" value: "IN" } output_map { key: "Y" value: "LEFT" } }
          step { model_name: "vector" model_version: 1
                 input_map { key: "X" value: "IN" } output_map { key: "Y" value: "RIGHT" } }
        }
        """,
        None,
    ),
    "faulty_chain": Probe(
        """
        platform: "ensemble"
        input { name: "what" data_type: TYPE_STRING dims: [1] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
        ensemble_scheduling {
          step { model_name: "faults" model_version: -1
                 input_map { key: "what" value: "what" } output_map { key: "Y" value: "middle" } }
          step { model_name: "vector" model_version: -1
                 input_map { key: "X" value: "middle" } output_map { key: "Y" value: "OUT" } }
        }
        """,
        None,
    ),
    "outer_chain": Probe(
        """
        platform: "ensemble"
        input { name: "what" data_type: TYPE_STRING dims: [1] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
        ensemble_scheduling {
          step { model_name: "faulty_chain" model_version: -1
                 input_map { key: "what" value: "what" } output_map { key: "OUT" value: "OUT" } }
        }
        """,
        None,
    ),
    # Metrics: custom metrics, and pending requests.
    "meter": Probe(METER_CONFIG, MODELS / "meter.py"),
    "meter_too": Probe(METER_CONFIG, MODELS / "meter.py"),
    "held": Probe(
        """
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        "Held",
    ),
    # Models that fail to load for different reasons; because of them, the server is not ready.
    "fails_to_start": Probe(
        """
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        MODELS / "fails_to_start.py",
    ),
    "misspelt": Probe("""
        max_batch_sise: 8
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
    """),
    "no_version": Probe(
        """
        backend: "python"
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        versions=(),
    ),
    "no_artifact": Probe(
        (GE_CLASSIFIER / "config.pbtxt").read_text(encoding="utf-8"),
        MODELS / "no_artifact.py",
        files={"labels.txt": (GE_CLASSIFIER / "labels.txt").read_text(encoding="utf-8")},
    ),
    "missing_step": Probe(
        """
        platform: "ensemble"
        input { name: "IN" data_type: TYPE_FP32 dims: [1] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [1] }
        ensemble_scheduling {
          step { model_name: "nobody" model_version: -1
                 input_map { key: "X" value: "IN" } output_map { key: "Y" value: "OUT" } }
        }
        """,
        None,
    ),
}

BROKEN = ("fails_to_start", "misspelt", "no_version", "no_artifact", "missing_step")


def write_probes(repository: Path, *names: str) -> None:
    """Write probes into a repository, all of them unless some are named."""
    for name in names or PROBES:
        write_probe(repository, name, PROBES[name])


def write_probe(repository: Path, name: str, probe: Probe) -> None:
    folder = repository / name
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(probe.config, encoding="utf-8")
    for path, text in probe.files.items():
        (folder / path).write_text(text, encoding="utf-8")
    for version in probe.versions:
        (folder / str(version)).mkdir()
        if isinstance(probe.model, Path):
            shutil.copy(probe.model, folder / str(version) / "model.py")
        elif probe.model is not None:
            code = (MODELS / "small.py").read_text(encoding="utf-8")
            code += f"\n\nclass TritonPythonModel({probe.model}):\n    pass\n"
            (folder / str(version) / "model.py").write_text(code, encoding="utf-8")
