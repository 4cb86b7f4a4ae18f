"""`ge-runtime init` run on many graphs, and what it wrote compared with plain ONNX Runtime.

    python -m benchmarks.init_trials GRAPHS [GRAPHS ...] --markdown docs/results/init.md
    python -m benchmarks.init_trials GRAPHS --models encoder

GRAPHS is a folder of model folders, as benchmarks.graph_trials takes it; only their graphs and the
comments `# source:` are read. An `init.args` beside config.pbtxt has arguments of `init`. What
`init` wrote is played by `graph_trials.play`, a second comparison beside the proof that `init`
itself makes: other requests, other sizes, costs at which all requests that may share an execution
do. Sizes are small: see `PLAYED_SIZE`. A configuration that loads and answers differently is wrong.
"""

from __future__ import annotations

import argparse
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.graph_trials import in_process, play
from benchmarks.instruments import model_folders, print_table
from benchmarks.plain_answers import one_line
from ge_runtime.cli.config_pbtxt import read_model_config

LONGEST_S = 600
PLAYED_SIZE = 256
"""The largest size along an axis in the second comparison, or four times the axis's minimum."""
NOT_COMPARED = "-"
"""ONNX Runtime itself fails with requests that know nothing of the graph."""
PROMISE = 1e-5
"""The difference of answers that the load check allows."""
HEADINGS = ["graph", "source", "decided", "proof of init", "alone", "together", "CPU s"]


@dataclass
class Result:
    """The result of one graph."""

    name: str
    source: str
    decided: str = ""
    proof: str = ""
    alone: str = ""
    together: str = ""
    cpu_s: float = 0.0
    reason: str = ""
    """Why `init` wrote nothing; empty if it wrote a configuration."""

    @property
    def differences(self) -> list[str]:
        """The first wrong answer of each way of playing; empty if all are right."""
        counts = [each for each in (self.alone, self.together) if each != NOT_COMPARED]
        return [
            each for each in counts if not self.reason and not re.match(r"([1-9]\d*)/\1$", each)
        ]

    @property
    def wrong(self) -> bool:
        """True if the configuration was written, and an answer differs beyond the promise."""
        distances = [re.search(r": distance (\S+)\)$", each) for each in self.differences]
        return any(found is None or float(found[1]) > PROMISE for found in distances)

    def row(self) -> list[str]:
        """Return the cells of the table."""
        decided = self.decided or f"refused: {self.reason}"
        counts = [each.partition(" ")[0] for each in (self.alone, self.together)]
        return [self.name, self.source, decided, self.proof, *counts, f"{self.cpu_s:.1f}"]


def tried(folder: Path, requests: int) -> Result:
    """Run `init` for the graph of a model folder, and play what it wrote."""
    config = folder / "config.pbtxt"
    found = re.search(r"^# source: (.*)$", config.read_text(), re.MULTILINE)
    result = Result(folder.name, found[1] if found else "")
    extra = folder / "init.args"
    arguments = shlex.split(extra.read_text()) if extra.exists() else []
    graph = next((folder / "1").glob("model.*[!y]"))
    with tempfile.TemporaryDirectory(prefix="trials-") as into:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "ge_runtime.cli", "init", str(graph), f"--into={into}"]
        try:
            run = subprocess.run(
                [*command, f"--name={folder.name}", *arguments],
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            result.reason = f"no result in {LONGEST_S} s"
            return result
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result.cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        if run.returncode:
            errors = [line for line in run.stderr.splitlines() if not line.startswith("...")]
            text = re.sub(r"^ge-runtime(?: init)?: (?:\S*/\S+: )?", "", errors[0] if errors else "")
            result.reason = one_line(text, 300)
            return result
        written = Path(into) / folder.name
        proof = re.search(
            r"^Proven: (\d+) .* in (\d+) execution\(s\): equal to .* within (\S+)\.$",
            run.stdout,
            re.M,
        )
        assert proof is not None
        result.proof = f"{proof[1]} requests in {proof[2]} executions, within {proof[3]}"
        result.decided = decided(written)
        _lower_limits(written / "config.pbtxt")
        played = in_process(play, written, requests, 0, True)
        if "ONNXRuntimeError" in str(played):
            result.alone = result.together = NOT_COMPARED
        elif isinstance(played, dict):
            result.alone, result.together = played["alone"], played["together"]
        else:
            result.alone = result.together = f"0/{requests} {one_line(played, 300)}"
    return result


def _lower_limits(config: Path) -> None:
    """Lower the limits of axes, which are choices, so that played requests are of moderate size."""
    text = config.read_text()
    value = r'"{}\.(\S+)" value {{ string_value: "(\d+)"'
    lows = dict(re.findall(value.format("min"), text))
    steps = dict(re.findall(value.format("align"), text))
    for axis, limit in re.findall(value.format("limit"), text):
        step = int(steps.get(axis, 1))
        most = max(PLAYED_SIZE, 4 * int(lows.get(axis, 1))) // step * step
        if int(limit) > most:
            text = text.replace(
                f'"limit.{axis}" value {{ string_value: "{limit}"',
                f'"limit.{axis}" value {{ string_value: "{most}"',
            )
    config.write_text(text)


def decided(folder: Path) -> str:
    """Return the decisions of a configuration in a few words."""
    config: dict[str, Any] = read_model_config(folder)
    given = {key: own["string_value"] for key, own in config.get("parameters", {}).items()}
    families: dict[str, list[str]] = {}
    for key, value in given.items():
        family, _, name = key.partition(".")
        families.setdefault(family, []).append(f"{name} {value}".strip())
    most = config.get("max_batch_size", 0)
    texts = [f"{most} rows" if most else "no rows"]
    if given.get("gears.batch") == "1":
        texts[0] = "one row in an execution"
    lows = dict(text.split() for text in families.get("min", ()))
    sizes = [f"{name} {lows.get(name, 1)}..{most}" for name, most in _pairs(families.get("limit"))]
    texts += [f"sizes: {', '.join(sizes)}"] if sizes else ["fixed sizes"]
    relations = [
        own for own in families.get("axes", ()) if re.search(r"[-+*/(]", own.partition(" ")[2])
    ]
    texts += [f"outputs: {'; '.join(relations)}"] if relations else []
    for family in ("mask", "lengths", "positions", "state", "constant", "align", "range"):
        texts += [f"{family} {', '.join(families[family])}"] if family in families else []
    texts += [f"{own} padding" for own in families.get("padding", ())]
    text = (folder / "config.pbtxt").read_text()
    questions = text.count("# Question: ")
    texts += [f"{questions} question(s)"] if questions else []
    return "; ".join(texts)


def _pairs(texts: Sequence[str] | None) -> list[tuple[str, str]]:
    return [(name, value) for name, value in (text.split() for text in texts or ())]


def page(results: Sequence[Result]) -> str:
    """Return the Markdown page."""
    written = [own for own in results if not own.reason]
    wrong = [own.name for own in results if own.wrong]
    rows = [[cell.replace("|", "\\|") for cell in own.row()] for own in results]
    table = [f"| {' | '.join(row)} |" for row in (HEADINGS, ["---"] * len(HEADINGS), *rows)]
    return "\n".join(
        [
            "# Graphs configured by `ge-runtime init`",
            "",
            "Written by `python -m benchmarks.init_trials`. No configuration was edited. *proof of "
            "init* is the comparison that `init` makes before it writes. *alone* and *together* "
            "count right answers in a second comparison with plain ONNX Runtime, with other "
            "requests, sizes and costs. `-` means that ONNX Runtime fails with the invented values "
            "of these requests, and no `range.` can exclude them.",
            "",
            f"- Graphs: {len(results)}. Configurations written: {len(written)}. Refused: "
            f"{len(results) - len(written)}.",
            f"- **Wrong configurations written: {len(wrong)}**"
            + (f" ({', '.join(wrong)})" if wrong else "")
            + ".",
            *(
                f"- `{own.name}`: {own.differences[0]}, less than the accepted {PROMISE:g}."
                for own in results
                if own.differences and not own.wrong
            ),
            f"- CPU time: median {sorted(own.cpu_s for own in results)[len(results) // 2]:.1f} s, "
            f"largest {max(own.cpu_s for own in results):.1f} s.",
            "",
            *table,
            "",
        ]
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.init_trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("graphs", type=Path, nargs="+", metavar="GRAPHS", help="folders of model folders")
    add("--models", nargs="+", metavar="MODEL", help="only these models")
    add("--requests", type=int, default=24, metavar="N", help="requests of each model (24)")
    add("--jobs", type=int, default=1, metavar="N", help="graphs at a time (1)")
    add("--markdown", type=Path, metavar="FILE", help="write the table")
    options = parser.parse_args()
    chosen = model_folders(options.graphs, options.models)
    results = []
    # Workers fork processes of their own, which daemons may not.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        runs = pool.map(tried, chosen, [options.requests] * len(chosen))
        for own in runs:
            results.append(own)
            _show(own)
            if options.markdown:
                options.markdown.write_text(page(results))
    print_table(HEADINGS, [own.row() for own in results])


def _show(own: Result) -> None:
    print(" | ".join(own.row()), flush=True)
    if own.wrong:
        print(f"WRONG {own.name}: {own.alone} {own.together}", flush=True)


if __name__ == "__main__":
    main()
