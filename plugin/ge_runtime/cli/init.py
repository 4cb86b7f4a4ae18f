"""`ge-runtime init`: writes a model folder for a graph, and proves its configuration."""

from __future__ import annotations

import argparse
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ge_runtime.child_process import Outcome, cleanup_on_termination, run_graph_process
from ge_runtime.cli.backend import MODEL
from ge_runtime.cli.command import EXIT_NO, Command, whole
from ge_runtime.cli.proving import proven, proven_pipeline
from ge_runtime.discovery.configuration import STRATEGIES
from ge_runtime.discovery.discover import Discovery
from ge_runtime.discovery.export import Export
from ge_runtime.discovery.graph import PT2, Graph
from ge_runtime.discovery.labels import find_labels
from ge_runtime.discovery.pipeline import GRAPH, SUFFIXES
from ge_runtime.discovery.sample import read_sample
from ge_runtime.discovery.torch_archive import copy_archive
from ge_runtime.engines.analysis.onnx_file import OnnxFile
from ge_runtime.errors import RuntimeFault
from ge_runtime.scheduling.kept_costs import cores_of_process

_DESCRIPTION: Final = """\
Write a model folder for an ONNX graph or a program of torch.export, or the models of an exported
folder.

The command executes the graph at different sizes, with and without padding, and derives
config.pbtxt from the results: rows, axes and their limits, masks and lengths, ranges of ids, and
the sizes of outputs. A comment above each line has the evidence. Then it loads the model, which
includes the load check, sends requests alone and together, and compares the answers with those of
the engine. Nothing is written unless all answers are equal. For decisions that experiments cannot
make, comments have questions with two choices.

For a folder that optimum, transformers or sentence-transformers has exported, with model.onnx and
tokenizer.json or preprocessor_config.json, the command also writes the steps before and after the
graph, and an ensemble of these models.
"""

_EPILOG: Final = """\
examples:
  ge-runtime init model.onnx
  ge-runtime init encoder.onnx --into model_repository --name encoder --max-batch 64
  ge-runtime init vad.onnx --constant sr=16000
  ge-runtime init all-MiniLM-L6-v2
  ge-runtime init molecules.onnx --sample request.npz

Exit codes: 0 written, 1 no configuration was found, 2 invalid arguments or input.
"""


_IN_PROCESS: Final = "--in-process"
"""Option of the process that executes the graph: it writes to a new folder without checks."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("graph", type=Path, metavar="GRAPH", help="the .onnx or .pt2 file, or the exported folder")
    add(
        "--into",
        type=Path,
        default=Path("model_repository"),
        metavar="DIR",
        help="model repository in which to write the folder (default: %(default)s)",
    )
    add(_IN_PROCESS, action="store_true", help=argparse.SUPPRESS)
    add("--name", metavar="NAME", help="name of the model (default: name of the file or folder)")
    add_init_options(parser)


def add_init_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the derivation."""
    add = parser.add_argument
    add(
        "--max-batch",
        type=whole,
        default=16,
        metavar="N",
        help="largest max_batch_size (default: %(default)s)",
    )
    add(
        "--constant",
        action="append",
        default=[],
        type=_constant,
        metavar="INPUT=VALUE",
        help="the value of a graph input that is the same in all executions; may be repeated",
    )
    add(
        "--sample",
        type=Path,
        metavar="FILE",
        help="example values for graphs that fail with invented values: an .npz file with an array "
        "for each input, or a JSON inference request",
    )
    add(
        "--no-states",
        action="store_true",
        help="requests send the states that the server would keep for a sequence",
    )
    add(
        "--int8",
        action="store_true",
        help="write the graph in INT8 with a scale per row, as `ge-runtime quantize` does",
    )
    add_strategy(parser)


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Add the option `--strategy`; its default is ""."""
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="",
        help="latency: no queue delay, and early answers; throughput: batches of max_batch_size, a "
        "queue delay of 10 ms, and no early answers (default: none of these is written)",
    )


def init_arguments(given: argparse.Namespace) -> list[str]:
    """Return the values of the options of `add_init_options` as command-line arguments."""
    sample = [] if given.sample is None else [f"--sample={given.sample}"]
    flags = [*["--no-states"] * given.no_states, *["--int8"] * given.int8]
    constants = [f"--constant={name}={value}" for name, value in given.constant]
    strategy = [f"--strategy={given.strategy}"] if given.strategy else []
    return [f"--max-batch={given.max_batch}", *constants, *sample, *flags, *strategy]


def _constant(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    try:
        float(value)
    except ValueError:
        equals = ""
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected INPUT=NUMBER, e.g. sr=16000")
    return name, value


def _run(given: argparse.Namespace) -> int:
    file: Path = given.graph
    export = Export.read(file) if file.is_dir() else None
    if export is None and not file.is_file():
        found = "a folder" if file.is_dir() else "nothing"
        raise RuntimeFault(
            f"{file}: found {found}, expected an .onnx or .pt2 file, or a folder with model.onnx "
            "and tokenizer.json or preprocessor_config.json"
        )
    folder: Path = given.into / (given.name or model_name(file))
    if given.in_process:
        return _derive(file, export, folder, given)
    for suffix in SUFFIXES if export else ("",):
        own = folder.with_name(folder.name + suffix)
        if own.exists():
            raise RuntimeFault(
                f"{own}: found a folder, expected none; choose another --name or --into"
            )
    return write_model(file, folder, init_arguments(given))


COMMAND: Final = Command(
    name="init",
    help="write and prove a model folder for an ONNX graph or an exported folder",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=cleanup_on_termination()(_run),
)


def model_name(source: Path) -> str:
    """Return the name of the model of a file or an exported folder."""
    return source.resolve().name if source.is_dir() else source.stem


def write_model(file: Path, folder: Path, options: Sequence[str]) -> int:
    """Prove the configuration of a graph, print it and write the model; return the exit code.

    Another process executes the graph. The other models of an export are written beside `folder`.
    For `options` see `init_arguments`. Without a proof nothing is written, the reason is printed,
    and the exit code is not 0.
    """
    with TemporaryDirectory(prefix="ge_runtime_init_") as scratch:
        arguments = ["init", str(file), _IN_PROCESS, f"--into={scratch}", f"--name={folder.name}"]
        child = run_graph_process("ge_runtime.cli", [*arguments, *options], shows_stderr=True)
        print(child.stdout, end="")
        if child.outcome is Outcome.CRASHED:
            print(
                f"ge-runtime: {file}: found an engine that ended with {child.error} during an "
                "execution, expected outputs or an error; write config.pbtxt by hand",
                file=sys.stderr,
            )
        if child.outcome is not Outcome.DONE:
            return child.exit_code or EXIT_NO
        folder.parent.mkdir(parents=True, exist_ok=True)
        models = [folder.with_name(model.name) for model in sorted(Path(scratch).iterdir())]
        for model in models:
            shutil.move(str(Path(scratch, model.name)), model)
    print(f"Written: {', '.join(map(str, models))}")
    return 0


def _derive(file: Path, export: Export | None, folder: Path, given: argparse.Namespace) -> int:
    """Derive, prove, write and print the models of a graph or an export; return the exit code."""
    progress = Progress()
    source = export.graph if export else file
    model = folder.with_name(folder.name + GRAPH) if export else folder
    is_archive = source.suffix == PT2 or zipfile.is_zipfile(source)
    if is_archive and given.int8:
        raise RuntimeFault(f"{source}: found a program of torch, expected an ONNX graph for --int8")
    notes = []
    cores = cores_of_process()
    # An archive is opened without its pickles.
    graph = Graph(copy_graph(source, model / "1") if is_archive else source, threads=cores)
    sample = {} if given.sample is None else read_sample(given.sample, graph.inputs)
    if given.int8:
        # Only loaded for this option.
        from ge_runtime.rewriting.int8_choice import write_int8

        progress("rewrite the graph in INT8")
        (model / "1").mkdir(parents=True)
        target = model / "1" / "model.onnx"
        notes.append(f"--int8: {write_int8(source, target, sample=sample or None, threads=cores)}.")
        graph = Graph(target, threads=cores)
    elif not is_archive:
        copy_graph(source, model / "1")
    labels = find_labels(export.folder if export else file.parent, source)
    try:
        if export:
            export.fix_sizes(graph)
        discovery = Discovery(
            graph,
            given.max_batch,
            dict(given.constant),
            progress,
            sample,
            keep_states=not given.no_states,
        )
        found, proof = proven(discovery, model, file.name)
        found.strategy = given.strategy
        found.notes += [
            *notes,
            f"One instance, whose executions use all cores ({cores} on this machine): the defaults "
            "of instance_group and intra_op_threads.",
        ]
        (model / "1" / "model.py").write_text(MODEL, encoding="utf-8")
        is_labelled = labels is not None and labels.attach(found)
        if export:
            text, proof = proven_pipeline(export, folder, found, labels, graph, progress)
        else:
            text = found.text(file.name)
            (model / "config.pbtxt").write_text(text, encoding="utf-8")
            if labels and is_labelled:
                labels.write(model)
    except RuntimeFault as fault:
        progress.end()
        print(f"ge-runtime: {file}: {fault}", file=sys.stderr)
        return EXIT_NO
    progress.end()
    print(text)
    print(f"Proven: {proof}.")
    return 0


def copy_graph(file: Path, version_dir: Path) -> Path:
    """Copy a graph as model.onnx or model.pt2 with the external files that it names.

    Returns the copy. Raises ArtifactFault if the file cannot be served, and RuntimeFault if an
    external file is outside the graph's folder.
    """
    version_dir.mkdir(parents=True)
    if file.suffix == PT2 or zipfile.is_zipfile(file):
        return copy_archive(file, version_dir / f"model{PT2}")
    copy = version_dir / "model.onnx"
    shutil.copyfile(file, copy)
    for location in OnnxFile.read(file).elsewhere:
        target = version_dir / location
        if ".." in Path(location).parts or Path(location).is_absolute():
            raise RuntimeFault(
                f"{file}: found external data in {location}, expected a file in the graph's folder"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.parent / location, target)
    return copy


class Progress:
    """Shows the current step on stderr; on a terminal, each step replaces the previous step."""

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()

    def __call__(self, line: str) -> None:
        """Show a step."""
        text = f"... {line}"
        if self._rewrites:
            width = max(shutil.get_terminal_size().columns - 1, 1)
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._rewrites:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
