"""What executions cost, and what batching makes of it: the encoder, and a recogniser of lines.

    python -m benchmarks.costs                        both parts for the encoder, eight minutes
    python -m benchmarks.costs --wheel FILE           with the recogniser, twice as long
    python -m benchmarks.costs --parts alone --turns 9

Parts: `alone` holds request batches against the same requests one by one; `plans` holds the plans
by many loads' calibrations against the best plans there are. FILE is the wheel of
rapidocr-onnxruntime 1.4.4, which is not installed: `pip download --no-deps
rapidocr-onnxruntime==1.4.4`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks import alone, plans, traces
from benchmarks.instruments import print_machine_facts
from benchmarks.workloads import Workload, encoder, recogniser

_RECOGNISER = ("equal", "neutral")


def main() -> None:
    options = parse_arguments()
    print_machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        workloads = [encoder(trace) for trace in options.traces]
        if options.wheel:
            workloads += recognisers(options.wheel, Path(folder))
        results = {part: PARTS[part](workloads, options) for part in options.parts}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--traces",
        nargs="*",
        choices=traces.TOKEN_TRACES,
        default=list(traces.TOKEN_TRACES),
        help="lengths of the encoder's rows (default: all three)",
    )
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="measure the recogniser, too")
    parser.add_argument("--requests", type=int, default=32, help="in a batch (32)")
    parser.add_argument("--turns", type=int, default=5, help="of `alone` (5)")
    parser.add_argument("--batches", type=int, default=4, help="of a turn (4)")
    parser.add_argument("--loads", type=int, default=10, help="of `plans` (10)")
    parser.add_argument(
        "--others", type=int, default=4, help="busy processes beside as many more loads (4)"
    )
    parser.add_argument("--rounds", type=int, default=6, help="of the grid of `plans` (6)")
    parser.add_argument("--seed", type=int, default=11, help="of sizes and contents (11)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    return parser.parse_args()


def recognisers(wheel: Path, folder: Path) -> list[Workload]:
    """Lines of equal widths share an execution; or of all widths, as if padding were neutral."""
    workloads = []
    for padding in _RECOGNISER:
        version = folder / padding
        version.mkdir()
        workloads.append(recogniser(wheel, version, padding))
    return workloads


def compare_alone(workloads: list[Workload], options: argparse.Namespace) -> list[dict]:
    return alone.compare(
        workloads,
        turns=options.turns,
        batches=options.batches,
        requests=options.requests,
        seed=options.seed,
    )


def compare_plans(workloads: list[Workload], options: argparse.Namespace) -> list[dict]:
    return plans.compare(
        workloads,
        loads=options.loads,
        others=options.others,
        rounds=options.rounds,
        batches=5 * options.batches,
        requests=options.requests,
        seed=options.seed,
    )


PARTS = {"alone": compare_alone, "plans": compare_plans}


if __name__ == "__main__":
    main()
