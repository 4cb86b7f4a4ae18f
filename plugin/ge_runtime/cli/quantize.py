"""`ge-runtime quantize`: rewrites a graph to INT8 whose answers do not depend on the batch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from ge_runtime.cli.command import Command, add_rewrite, number, rewrite_target
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.sample import read_sample
from ge_runtime.rewriting.int8_choice import LEAST_COSINE, LEAST_GENERATED, write_int8
from ge_runtime.scheduling.kept_costs import cores_of_process

_DESCRIPTION: Final = """\
Rewrite a graph to INT8 with one scale for each row (token) of activations.

With `quantize_dynamic` of ONNX Runtime, one scale applies to a whole execution, so an answer
depends on the other requests of its batch. With a scale per row it does not. The graph may be FP32,
or a file of `quantize_dynamic` (model_quantized.onnx). Linear layers (MatMul, Gemm, Conv of width
1) and large embeddings become INT8, with weights per channel. The error that each layer causes at
the outputs is measured. Layers with a large error for their size stay FP32.
"""

_EPILOG: Final = """\
At load, the parameter `int8: rows` of config.pbtxt does the same.

examples:
  ge-runtime quantize model.onnx
  ge-runtime quantize onnx/model_quantized.onnx -o model_repository/encoder/1/model.onnx
  ge-runtime quantize model.onnx --sample texts.npz

Exit codes: 0 written, 2 the graph cannot be rewritten, or invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_rewrite(parser, "the graph", "int8")
    add = parser.add_argument
    add(
        "--sample",
        type=Path,
        metavar="FILE",
        help="inputs for measuring errors: an .npz file or a JSON inference request (default: "
        "random inputs)",
    )
    add(
        "--least-cosine",
        type=_cosine,
        metavar="C",
        help="least allowed mean cosine between the outputs of both graphs (default: "
        f"{LEAST_COSINE:g} with --sample, {LEAST_GENERATED:g} with random inputs)",
    )


def _run(given: argparse.Namespace) -> int:
    graph: Path = given.graph
    target = rewrite_target(given, "int8")
    threads = cores_of_process()
    sample = given.sample and read_sample(given.sample, Graph(graph, threads).inputs)
    found = write_int8(
        graph, target, sample=sample, least_cosine=given.least_cosine, threads=threads
    )
    print(f"{target}: {found}")
    sizes = [path.stat().st_size / 2**20 for path in (graph, target)]
    print(f"size: {sizes[0]:.1f} MiB before, {sizes[1]:.1f} MiB now")
    if found.kept:
        print(f"FP32: {', '.join(layer.name for layer in found.kept)}")
    return 0


COMMAND: Final = Command(
    name="quantize",
    help="rewrite a graph to INT8 with a scale per row, independent of the batch",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def _cosine(text: str) -> float:
    return number(text, lambda value: 0 < value < 1, "a number between 0 and 1")
