"""Repeated loads of many graphs, and their answers compared with those of plain ONNX Runtime.

    python -m benchmarks.graph_trials GRAPHS                          loads and plays every model
    python -m benchmarks.graph_trials GRAPHS --loads 20 --busy 4      and loads beside busy loops
    python -m benchmarks.graph_trials GRAPHS --servers triton reference
    python -m benchmarks.graph_trials GRAPHS --models encoder --markdown table.md
    python -m benchmarks.graph_trials GRAPHS --page docs/results/load_check.md
    python -m benchmarks.graph_trials --defects --page docs/results/load_check.md

GRAPHS are folders of model folders, whose version 1 has a `model.onnx`. A config.pbtxt may have the
comments `# source: TEXT` and `# truth: TEXT`, which the Markdown repeats.

Each load is made in a process of its own, with an empty cache of costs. Its verdict is the line of
the load check in the load log, or the error; column `verdicts` counts the different ones. Then
seeded requests of mixed sizes are played alone and together, and compared with the
answers of `plain_answers`. Costs are such that all requests that may share an execution do. A model
that is refused is played with `load_check: off`, and its counts are in parentheses: if they are
complete, the refusal is false.

`--page` replaces a table of a page: "Repeated loads" with `--busy`, "Graphs" without it, and
"Seeded defects" with `--defects`, which loads the graphs of tests/runtime/verification/defects.py.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from tritonclient.grpc.model_config_pb2 import TYPE_STRING
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from benchmarks.instruments import (
    ROOT,
    model_folders,
    open_runtime,
    print_machine_facts,
    print_table,
    read_config,
)
from benchmarks.load import starter
from benchmarks.plain_answers import Played, one_line
from ge_runtime.assembly import with_parameters
from ge_runtime.errors import RuntimeFault
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.request_batch import Caller

SHARING = {"cost": "launch_us=1000000, element_ns=1, element2_ns=0"}
"""An execution is so expensive that all requests that may share one do."""
LONGEST_S = 180.0
"""Longest time of one load, or of playing one model."""
TOGETHER = 8
"""Requests that are sent at a time to play them together."""
MODELS_OF_A_SERVER = 12


class Load(NamedTuple):
    """The result of one load."""

    loaded: bool
    verdict: str
    seconds: float
    cpu_s: float = 0.0
    """CPU time of the load, all threads."""


@dataclass
class Trial:
    """The results of one model."""

    folder: Path
    source: str
    truth: str
    opset: str
    idle: list[Load] = field(default_factory=list)
    busy: list[Load] = field(default_factory=list)
    played: dict[str, str] = field(default_factory=dict)
    """Way of playing to the count of right answers."""

    @classmethod
    def of(cls, folder: Path) -> Trial:
        """Return the trial of a model before its first load."""
        config = (folder / "config.pbtxt").read_text()
        texts = dict(re.findall(r"^# (source|truth): (.*)$", config, re.MULTILINE))
        opset = ""
        if (file := folder / "1" / "model.onnx").exists():
            graph = onnx.load(file, load_external_data=False)
            opsets = {each.domain or "ai.onnx": each.version for each in graph.opset_import}
            opset = str(opsets.get("ai.onnx") or f"ml {opsets['ai.onnx.ml']}")
        return cls(folder, texts.get("source", ""), texts.get("truth", ""), opset)

    @property
    def verdicts(self) -> dict[str, int]:
        """Each verdict, and its number of loads."""
        texts = [each.verdict for each in (*self.idle, *self.busy)]
        return {text: texts.count(text) for text in texts}

    @property
    def is_served(self) -> bool:
        """True if every load succeeded."""
        return all(each.loaded for each in (*self.idle, *self.busy))

    @property
    def result(self) -> str:
        """The conclusion from verdicts and answers."""
        if len(self.verdicts) > 1:
            return "verdicts differ"
        if not self.played:
            return "served" if self.is_served else "refused"
        right = all(re.match(r"([1-9]\d*)/\1$", text) for text in self.played.values())
        if self.is_served:
            return "served" if right else "wrong answers"
        return "refused, but right" if right else "refused"

    def row(self, ways: Sequence[str]) -> list[str]:
        """Return the cells of the table."""
        loads = [
            f"{sum(load.loaded for load in loads)}/{len(loads)}" for loads in (self.idle, self.busy)
        ]
        seconds = _median([load.seconds for load in self.idle])
        counts = [self.played.get(way, "").partition(" ")[0] for way in ways]
        shown = [count if self.is_served or not count else f"({count})" for count in counts]
        first = [self.folder.name, self.opset, *loads, str(len(self.verdicts)), seconds]
        return [*first, *shown, self.result]

    def play(self, count: int, seed: int) -> None:
        """Play requests in a process of its own."""
        played = in_process(play, self.folder, count, seed, self.is_served)
        if not isinstance(played, dict):
            played = dict.fromkeys(("alone", "together"), f"0/{count} {played}")
        self.played |= played

    def page_row(self, repeated: bool) -> list[str]:
        """Return the cells of a table of the page."""
        *_, idle, busy, verdicts, seconds, alone, together, result = self.row(("alone", "together"))
        cpu = _median([load.cpu_s for load in self.idle])
        origin = re.sub("^(wheel|sdist) ", r"PyPI \1 ", self.source) or "model_repository"
        if repeated:
            slow = _median([load.seconds for load in self.busy])
            return [self.folder.name, origin, idle, busy, verdicts, seconds, slow]
        right = [alone, together]
        return [self.folder.name, origin, self.truth, idle, *right, seconds, cpu, result]


def _median(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f}" if seconds else ""


# -- one load, and requests played in one process


def load(folder: Path) -> Load:
    """Load a model once."""
    with tempfile.TemporaryDirectory(prefix="trials-") as cache:
        os.environ["GE_RUNTIME_CACHE"] = cache
        config = read_config(folder)
        derived = [output.name for output in config.output if output.data_type == TYPE_STRING]
        if derived and (file := folder / "1" / "model.onnx").exists():  # model.py computes more
            graph = onnx.load(file, load_external_data=False).graph
            computed = {output.name for output in graph.output}
            derived = [output.name for output in config.output if output.name not in computed]
        started, cpu_s = time.perf_counter(), _cpu_s()
        try:
            runtime = open_runtime(folder / "1", config, derived=derived)
        except RuntimeFault as fault:
            loaded, verdict = False, f"{type(fault).__name__}: {fault}"
        else:
            loaded = True
            verdict = "; ".join(line for line in runtime.report if "load check: " in line)
            runtime.close()
        return Load(loaded, verdict, time.perf_counter() - started, _cpu_s() - cpu_s)


def _loads(trial: Trial, count: int) -> list[Load]:
    found = (in_process(load, trial.folder) for _ in range(count))
    return [each if isinstance(each, Load) else Load(False, each, 0.0) for each in found]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def play(folder: Path, count: int, seed: int, checked: bool) -> dict[str, str]:
    """Play requests of a model alone and together, in this process."""
    played = Played.drawn(folder, count, seed)
    parameters = SHARING if checked else {**SHARING, "load_check": "off"}
    runtime = open_runtime(folder / "1", read_config(folder), parameters)
    try:
        return {
            "alone": played.count(_answers(runtime, played, 1)),
            "together": played.count(_answers(runtime, played, TOGETHER)),
        }
    finally:
        runtime.close()


def _answers(runtime: Runtime, played: Played, size: int) -> list[object]:
    answers: list[object] = []
    for places in played.batches(size):
        callers = [Caller(sequence=played.steps[place]) for place in places]
        answers += runtime.infer([played.requests[place] for place in places], callers)
    return answers


def in_process(function: Callable[..., object], *arguments: object) -> Any:
    """Return the result of a call in a new process, or the text of its failure."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(LONGEST_S) else f"no result in {LONGEST_S:g} s"
    except EOFError:
        return "the process crashed"
    finally:
        process.kill()
        process.join()


def _send_result(sender: Connection, function: Callable[..., object], arguments: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # ONNX Runtime writes errors to stderr
    try:
        sender.send(function(*arguments))
    except Exception as error:  # any failure is a result
        sender.send(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run busy loops, each in a process of its own."""
    context = multiprocessing.get_context("fork")
    loops = [context.Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _spin() -> None:
    while True:
        pass


# -- requests played through servers


def play_served(name: str, trials: Sequence[Trial], count: int, seed: int) -> None:
    """Play requests of models through a server, and add the counts to their trials."""
    for start in range(0, len(trials), MODELS_OF_A_SERVER):
        some = trials[start : start + MODELS_OF_A_SERVER]
        with tempfile.TemporaryDirectory(prefix="trials-") as repository:
            for trial in some:
                (Path(repository) / trial.folder.name).symlink_to(trial.folder.resolve())
            with starter(name)(Path(repository), allow_metrics=False) as server:
                for trial in some:
                    played = in_process(Played.drawn, trial.folder, count, seed)
                    with InferenceServerClient(server.http, concurrency=TOGETHER) as client:
                        for way, size in (("alone", 1), ("together", TOGETHER)):
                            text = f"0/{count} {played}"
                            if isinstance(played, Played):
                                answers = _served(client, trial.folder.name, played, size)
                                text = played.count(answers)
                            trial.played[f"{name} {way}"] = text


def _served(client: InferenceServerClient, model: str, played: Played, size: int) -> list[object]:
    outputs = [InferRequestedOutput(spec.name) for spec in played.config.outputs]
    answers: list[object] = []
    for places in played.batches(size):
        pending = []
        for place in places:
            step = played.steps[place]
            sequence = {}
            if step is not None:
                sequence = {"sequence_id": step.sequence}
                sequence |= {"sequence_start": step.starts, "sequence_end": step.ends}
            inputs = _http_inputs(played, place)
            pending.append(client.async_infer(model, inputs, outputs=outputs, **sequence))
        answers += [_http_answer(call, played) for call in pending]
    return answers


def _http_inputs(played: Played, place: int) -> list[InferInput]:
    inputs = []
    for spec in played.config.sources:
        values = played.requests[place][spec.name]
        if not spec.dims:  # config.pbtxt reshapes [1] to []
            values = values[..., np.newaxis]
        inputs.append(InferInput(spec.name, list(values.shape), spec.dtype.value))
        inputs[-1].set_data_from_numpy(values)
    return inputs


def _http_answer(call: Any, played: Played) -> Mapping[str, np.ndarray] | Exception:
    try:
        result = call.get_result()
    except InferenceServerException as error:
        return error
    return {spec.name: result.as_numpy(spec.name) for spec in played.config.outputs}


# -- the command


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    if options.defects:
        headings, rows = defects()
        if options.page is not None:
            replace_table(options.page, "Seeded defects", headings, rows)
        print_table(headings, rows)
        return
    trials = [Trial.of(folder) for folder in model_folders(options.graphs, options.models)]
    for trial in trials:
        trial.idle += _loads(trial, options.loads)
        if options.requests:
            trial.play(options.requests, options.seed)
        write(options, [own for own in trials if own.idle])
    if options.busy:
        with busy_loops(options.busy):
            for trial in trials:
                trial.busy += _loads(trial, options.loads)
                write(options, trials)
    for name in options.servers:
        served = [trial for trial in trials if trial.is_served]
        play_served(name, served, options.requests, options.seed)
        write(options, trials)
    print_table(*table(trials, options.servers))


PAGE_HEADINGS = {
    "Graphs": [
        "graph",
        "origin",
        "expected",
        "loads",
        "alone",
        "together",
        "load s",
        "CPU s",
        "result",
    ],
    "Repeated loads": ["graph", "origin", "idle", "busy", "verdicts", "idle s", "busy s"],
}


def replace_table(
    page: Path, heading: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Replace the table below a heading of a Markdown page."""
    lines = ["| " + " | ".join(row) + " |" for row in (headings, ["---"] * len(headings), *rows)]
    before, title, after = page.read_text().partition(f"\n## {heading}\n")
    if not title:
        raise SystemExit(f"{page}: found no '## {heading}', expected one above the table")
    text = re.sub(r"(?m)(^\|.*\n)+", lambda _: "\n".join(lines) + "\n", after, count=1)
    page.write_text(before + title + text)


def defects() -> tuple[list[str], list[list[str]]]:
    """Load the graphs with seeded defects, and the healthy ones, with one thread and with three."""
    sys.path.insert(0, str(ROOT / "tests"))
    from runtime.verification.defects import DEFECTS, HEALTHY

    headings = ["graph", "expected", "1 thread", "3 threads", "cure", "with the cure"]
    rows = []
    for expected, graphs in (("refused", DEFECTS), ("loaded", HEALTHY)):
        for name, (family, body) in graphs.items():
            found = [_load_seeded(family, body, {"intra_op_threads": own}) for own in ("1", "3")]
            cure = re.search(r"Cure, tried: with (.*) it loads$", found[0])
            parameters = dict(re.findall(r"'([^':]+): ([^']+)'", cure[1])) if cure else {}
            shown = ", ".join(f"`{key}: {text}`" for key, text in parameters.items())
            cured = _load_seeded(family, body, parameters) if cure else None
            results = ["loaded" if not each else "refused" for each in found]
            result = "" if cured is None else "refused" if cured else "loaded"
            rows.append([name, expected, *results, shown, result])
    return headings, rows


def _load_seeded(family: Any, body: str, parameters: Mapping[str, str]) -> str:
    """Load a graph of the tests; return the error, or an empty text."""
    with tempfile.TemporaryDirectory(prefix="trials-") as folder:
        onnx.save(family.model(body), Path(folder) / "model.onnx")
        config = with_parameters(family.config, parameters)
        try:
            Runtime.open(Path(folder), config, instance_name="seeded").close()
        except RuntimeFault as fault:
            return str(fault)
    return ""


def table(trials: Sequence[Trial], servers: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of the table."""
    ways = ["alone", "together"]
    ways += [f"{name} {way}" for name in servers for way in ("alone", "together")]
    headings = ["graph", "opset", "loads", "busy", "verdicts", "s", *ways, "result"]
    return headings, [trial.row(ways) for trial in trials]


def write(options: argparse.Namespace, trials: Sequence[Trial]) -> None:
    """Write the Markdown and the page, if files are given: results so far are kept."""
    if options.markdown is not None:
        options.markdown.write_text(markdown(*table(trials, options.servers), trials))
    if options.page is not None:
        heading = "Repeated loads" if options.busy else "Graphs"
        rows = [trial.page_row(bool(options.busy)) for trial in trials]
        replace_table(options.page, heading, PAGE_HEADINGS[heading], rows)


def markdown(
    headings: Sequence[str], rows: Sequence[Sequence[str]], trials: Sequence[Trial]
) -> str:
    """Return the table, and below it the verdicts and the first wrong answers of each model."""
    lines = [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows)]
    for trial in trials:
        lines += ["", f"### {trial.folder.name}", f"- source: {trial.source}"]
        lines += [f"- truth: {trial.truth}"]
        lines += [f"- {count} x {one_line(text, 900)}" for text, count in trial.verdicts.items()]
        lines += [f"- {way}: {text}" for way, text in trial.played.items()]
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.graph_trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("graphs", type=Path, nargs="*", metavar="GRAPHS", help="folders of model folders")
    add("--models", nargs="+", metavar="MODEL", help="only these models")
    add("--loads", type=int, default=3, metavar="N", help="loads of each model (3)")
    add("--busy", type=int, default=0, metavar="N", help="load again beside N busy loops (0)")
    add(
        "--requests", type=int, default=24, metavar="N", help="requests of each model (24); 0: none"
    )
    add("--seed", type=int, default=0, help="seed of the requests (0)")
    add("--servers", nargs="+", default=[], metavar="SERVER", help="triton, reference (none)")
    add("--markdown", type=Path, metavar="FILE", help="write the table and all verdicts")
    add("--page", type=Path, metavar="FILE", help="replace a table of this page")
    add("--defects", action="store_true", help="load the graphs with seeded defects")
    return parser.parse_args()


if __name__ == "__main__":
    main()
