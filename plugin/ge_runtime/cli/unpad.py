"""`ge-runtime unpad`: rewrites an exported encoder so that padding is not computed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from ge_runtime.cli.command import Command, add_rewrite, rewrite_target, whole
from ge_runtime.scheduling.kept_costs import cores_of_process

_DESCRIPTION: Final = """\
Rewrite an exported encoder (BERT, RoBERTa, DistilBERT, E5, BGE, ...) without padding.

Token-wise operators are computed for valid tokens only: tokens whose mask is not 0.
Inputs and outputs stay the same, and only standard ONNX operators are used, so every server and
client can use the file. Padded places of outputs repeat the last token of their row.

The file is verified: its answers to random inputs, padded and unpadded, must equal those of
the original graph. Then alternating executions of both graphs are timed.
"""

_EPILOG: Final = """\
At load, the parameter `unpad: auto` of config.pbtxt does the same.

examples:
  ge-runtime unpad model.onnx
  ge-runtime unpad onnx/model.onnx -o model_repository/encoder/1/model.onnx

Exit codes: 0 written, 2 the graph cannot be rewritten, or invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_rewrite(parser, "the exported encoder", "unpadded")
    parser.add_argument(
        "--threads", type=whole, metavar="N", help="threads of an execution (default: all cores)"
    )


def _run(given: argparse.Namespace) -> int:
    # Imported here, because only this command needs it.
    from ge_runtime.rewriting.at_load import unpad_and_prove
    from ge_runtime.rewriting.graph import replacing

    graph: Path = given.graph
    target = rewrite_target(given, "unpadded")
    with replacing(target) as own:  # after the verification
        found, gain = unpad_and_prove(graph, own, given.threads or cores_of_process())
    print(f"{target}: {found}")
    print("verified: answers are those of the original graph, padded and unpadded")
    print(f"work per CPU second, relative to the original graph: {gain}")
    return 0


COMMAND: Final = Command(
    name="unpad",
    help="rewrite an encoder so that padding is not computed",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
