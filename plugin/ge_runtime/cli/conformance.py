"""`ge-runtime conformance`: checks that results do not depend on other requests in the batch."""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import Final

from ge_runtime.cli.command import EXIT_NO, Command, add_model, number, whole
from ge_runtime.cli.config_pbtxt import read_graph_config
from ge_runtime.cli.inspect import inspect
from ge_runtime.errors import ConfigFault
from ge_runtime.testing.conformance import DEFAULT_ROUNDS, check
from ge_runtime.testing.model_under_test import PADDINGS

DEFAULT_SECONDS: Final = 5.0

_DESCRIPTION: Final = """\
Check that a model's response to a request does not depend on other requests in its batch.

MODEL_DIR is a Triton model folder: config.pbtxt and version folders with artifacts. Random requests
are generated from config.pbtxt. Their rows and sizes are mostly small, and often at a limit or a
gear; optional inputs are omitted at random. The requests are executed alone, in random groups, and
in the groups that the runtime forms. Each response is compared with that of a simple second
implementation, which executes the graph for one request. Integers, BOOL and BYTES must be equal.
Floats may differ, relative to the expected value plus 1, by 1e-5 (FP32, FP64), 4e-3 (FP16) or 3e-2
(BF16), or by the rounding error of that response, which is measured if necessary.

A second check detects leaks between requests: random groups are executed again with the same
shapes, and with other values in all requests except one. The response to that request must be equal
bit by bit. The report contains both checks.

Memory that must not influence the results is filled with special values:
  - bytes of request tensors beyond their rows: NaN, and the largest integers;
  - the runtime's memory before each execution: bytes 0xFF (NaN) or 0x7F (large integers);
  - padding that masks, lengths or offsets describe: the model is opened a second time with padding
    of the highest value in each input's range.

A graph that ignores its mask fails, and so does a graph whose rows influence each other. After a
failure the report shows the smallest group of requests that still fails.

The model's own code (prepare, derive) is not run; prepared tensors are generated like inputs.
"""

_EPILOG: Final = """\
Limit token ids to the model's vocabulary with --range; otherwise the graph fails.

--padding nan is for graphs that select with their mask (Where, masked_fill). It fails for graphs
that multiply by their mask, although these graphs are correct, because NaN times 0 is NaN.

examples:
  ge-runtime conformance model_repository/ge_classifier --range image=0:1
  ge-runtime conformance model_repository/text_encoder --range input_ids=0:30522 --rounds 100

Exit codes: 0 all responses are right, 1 a response is wrong, 2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add(
        "--rounds",
        type=whole,
        default=DEFAULT_ROUNDS,
        metavar="N",
        help=f"number of random request batches (default: {DEFAULT_ROUNDS})",
    )
    add(
        "--seconds",
        type=_positive,
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"start no request batch after this time (default: {DEFAULT_SECONDS:g})",
    )
    add(
        "--seed",
        type=partial(whole, least=0),
        default=0,
        metavar="S",
        help="seed of the random request batches (default: 0)",
    )
    add(
        "--range",
        action="append",
        default=[],
        type=_range,
        metavar="INPUT=LOW:HIGH",
        help="range of the elements of an input or prepared tensor, HIGH excluded for integers "
        "(default: 0:10 for integers, -1:1 for floats)",
    )
    add(
        "--tolerance",
        type=_tolerance,
        metavar="T",
        help="allowed difference of all floats, relative to the expected value plus 1 (default: "
        "see above)",
    )
    add(
        "--padding",
        choices=PADDINGS,
        default=PADDINGS[0],
        help="padding of the second opening: the highest value of the range, NaN for floats, or no "
        f"second opening (default: {PADDINGS[0]})",
    )


def _run(given: argparse.Namespace) -> int:
    inspection = inspect(given.folder, given.version)
    if inspection.faults:
        raise ConfigFault(inspection.config.model, inspection.faults)
    report = check(
        inspection.version_dir,
        read_graph_config(given.folder),
        derived=[spec.name for spec in inspection.config.derived],
        seed=given.seed,
        rounds=given.rounds,
        ranges=dict(given.range),
        tolerance=given.tolerance,
        padding=given.padding,
        seconds=given.seconds,
    )
    print(report)
    return 0 if report.passed else EXIT_NO


COMMAND: Final = Command(
    name="conformance",
    help="check that results do not depend on other requests in the batch",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, equals, bounds = text.rpartition("=")
    low, colon, high = bounds.partition(":")
    try:
        if equals and colon:
            return name.strip(), (float(low), float(high))
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"found {text!r}, expected an input and two numbers, e.g. input_ids=0:30000"
    )


def _positive(text: str) -> float:
    return number(text, lambda value: value > 0, "a number above 0")


def _tolerance(text: str) -> float:
    return number(text, lambda value: 0 <= value < math.inf, "a number of at least 0")
