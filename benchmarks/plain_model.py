"""ge_runtime against a plain model.py of 15 lines, in the same server, on the same graphs.

    python -m benchmarks.plain_model                         both servers, about ten minutes
    python -m benchmarks.plain_model --graphs encoder --servers triton --in-flight 1 8
    python -m benchmarks.plain_model --trees ../before .     two checkouts of ge_runtime

The plain model opens an ONNX Runtime session with spinning off, joins the requests that Triton
passes to it, and runs them. Triton's batcher joins requests of equal shapes only, so most requests
of different sizes run alone. The ge_runtime model has the parameters of docs/ragged.md.

The load is a closed loop of prepared gRPC requests. The models take turns. CPU time is that of all
processes of the server, per request. A ratio above 1 means that ge_runtime is better.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.instruments import ROOT, print_machine_facts, print_table
from benchmarks.load import Grpc, client_process, closed_loop, cpu_us, starter
from benchmarks.rows import CALLS, grpc
from triton_replay.comparing.latencies import percentile_of

SENT = 200
"""Number of different requests; they are sent repeatedly."""

PLAIN = """
import numpy as np, onnxruntime, triton_python_backend_utils as pb_utils
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self._session = onnxruntime.InferenceSession(str(path), options)
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(r, "{input}").as_numpy() for r in requests]
        data = rows[0] if len(rows) == 1 else np.concatenate(rows)
        inputs = {{"{input}": data}}{mask}
        results, ends = self._session.run({outputs}, inputs), np.cumsum([len(r) for r in rows])
        parts = zip(*(np.split(result, ends[:-1]) for result in results))
        make = lambda own: [pb_utils.Tensor(n, a) for n, a in zip({outputs}, own)]
        return [pb_utils.InferenceResponse(make(own)) for own in parts]
"""

RUNTIME = """
import sys; sys.path.insert(0, "{tree}/plugin")
import triton_python_backend_utils as pb_utils
from ge_runtime.adapters.triton import GraphModel
class TritonPythonModel:
    def initialize(self, args):
        self._graph = GraphModel(args, pb_utils)
    def execute(self, requests):
        return self._graph.execute(requests)
    def finalize(self):
        self._graph.close()
"""


class Graph(NamedTuple):
    """A graph, its requests and its configuration."""

    about: str
    export: Callable[[Path], None]
    """Writes model.onnx."""
    requests: Callable[[np.random.Generator], np.ndarray]
    """Returns the one input of a random request."""
    tensors: str
    """The inputs and outputs in config.pbtxt."""
    parameters: dict[str, str]
    """ge_runtime's parameters."""
    bars: tuple[float, ...] = (1.0, 1.0, 1.3)
    """The least ratios with 1, 8 and 32 requests in flight."""

    @property
    def names(self) -> list[str]:
        """The names of the tensors in config.pbtxt, the input first."""
        return [part.partition('"')[0] for part in self.tensors.split('name: "')[1:]]


# -- graphs


class Layers(nn.Module):
    """Transformer layers, without data in rows where `mask` is 0."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.layers = heads, nn.ModuleList()
        for _ in range(layers):
            parts = (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)
            linear = [nn.Linear(*sizes) for sizes in parts]
            self.layers.append(nn.ModuleList([*linear, nn.LayerNorm(width), nn.LayerNorm(width)]))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        bias = None if mask is None else (1.0 - mask.float())[:, None, None] * -1e4
        for qkv, out, up, down, first, second in self.layers:
            parts = qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            scores = parts[0] @ parts[1].transpose(-1, -2) * parts[0].shape[-1] ** -0.5
            weights = (scores if bias is None else scores + bias).softmax(-1)
            x = first(x + out((weights @ parts[2]).transpose(1, 2).flatten(2)))
            x = second(x + down(nn.functional.gelu(up(x))))
        return x


class Encoder(nn.Module):
    """Token ids and their mask to a vector for each token, as BERT."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(8000, width), nn.Embedding(512, width)
        self.layers = Layers(4, width, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1])
        return self.layers(self.words(input_ids) + self.places(places), attention_mask)


class Speech(nn.Module):
    """Samples and their lengths to 32 letters for each frame of 320 samples, as wav2vec2."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 64, 20, 20), nn.Conv1d(64, width, 16, 16)
        self.layers, self.letters = Layers(4, width, 4), nn.Linear(width, 32)

    def forward(self, samples: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        frames = self.second(nn.functional.gelu(self.first(samples[:, None]))).transpose(1, 2)
        mask = torch.arange(frames.shape[1])[None] < (lengths // 320)[:, None]
        return self.letters(self.layers(frames, mask))


class Image(nn.Module):
    """Images of 224 x 224 to 1,000 classes, as ViT."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.patches, self.layers = nn.Conv2d(3, width, 32, 32), Layers(4, width, 3)
        self.classes = nn.Linear(width, 1000)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        return self.classes(self.layers(patches, None).mean(1))


def exported(
    module: type[nn.Module], inputs: dict[str, torch.Tensor], axes: dict[str, list[str]], name: str
) -> Callable[[Path], None]:
    """Return a function that exports the module with random weights.

    Args:
        module: Its class.
        inputs: Example inputs by name.
        axes: Tensor to the names of its first dims, which are free.
        name: The output.
    """

    def export(path: Path) -> None:
        torch.manual_seed(1)
        with warnings.catch_warnings():
            # The new exporter needs another package.
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.onnx.export(
                module().eval(),
                tuple(inputs.values()),
                path,
                input_names=list(inputs),
                output_names=[name],
                dynamic_axes={key: dict(enumerate(names)) for key, names in axes.items()},
                opset_version=17,
                dynamo=False,
            )

    return export


def linked(model: str) -> Callable[[Path], None]:
    """Return a function that links the graph of a model of the repository."""
    return lambda path: path.symlink_to(ROOT / "model_repository" / model / "1" / "model.onnx")


def tensor(name: str, kind: str, dims: str, *, ragged: bool = False) -> str:
    """Return an entry of an `input` or `output`."""
    suffix = " allow_ragged_batch: true" if ragged else ""
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ]{suffix} }}'


def side(rng: np.random.Generator) -> int:
    return int(rng.integers(6, 65))


GRAPHS = {
    "encoder": Graph(
        "BERT-size, 3 to 48 tokens",
        exported(
            Encoder,
            {"input_ids": torch.ones(2, 9, dtype=torch.long), "attention_mask": torch.ones(2, 9)},
            {
                "input_ids": ["rows", "tokens"],
                "attention_mask": ["rows", "tokens"],
                "vectors": ["rows", "tokens"],
            },
            "vectors",
        ),
        lambda rng: rng.integers(1, 8000, (1, rng.integers(3, 49))),
        f"input [ {tensor('input_ids', 'INT64', '-1', ragged=True)} ]\n"
        f"output [ {tensor('vectors', 'FP32', '-1, 192')} ]",
        {
            "axes.input_ids": "tokens",
            "axes.vectors": "tokens",
            "limit.tokens": "128",
            "mask.attention_mask": "tokens",
            "range.input_ids": "0..7999",
        },
    ),
    "speech": Graph(
        "wav2vec2-size, 0.2 to 2 s",
        exported(
            Speech,
            {"samples": torch.ones(2, 9600), "lengths": torch.tensor([9600, 9000])},
            {
                "samples": ["rows", "samples"],
                "lengths": ["rows"],
                "letters": ["rows", "frames"],
            },
            "letters",
        ),
        lambda rng: rng.standard_normal((1, 320 * rng.integers(10, 101)), np.float32),
        f"input [ {tensor('samples', 'FP32', '-1', ragged=True)} ]\n"
        f"output [ {tensor('letters', 'FP32', '-1, 32')} ]",
        {
            "axes.samples": "length",
            "axes.letters": "length // 320",
            "limit.length": "48000",
            "min.length": "320",
            "lengths.lengths": "length",
        },
    ),
    "image": Graph(
        "ViT-size, 224 x 224",
        exported(Image, {"pixels": torch.ones(2, 3, 224, 224)}, {"pixels": ["rows"]}, "classes"),
        lambda rng: rng.random((1, 3, 224, 224), np.float32),
        f"input [ {tensor('pixels', 'FP32', '3, 224, 224')} ]\n"
        f"output [ {tensor('classes', 'FP32', '1000')} ]",
        {},
        (1.0, 1.0, 1.0),
    ),
    "classifier": Graph(
        "digits, 6 to 64 pixels high and wide",
        linked("ge_classifier"),
        lambda rng: rng.random((1, 1, side(rng), side(rng)), np.float32),
        f"input [ {tensor('image', 'FP32', '1, -1, -1', ragged=True)} ]\n"
        f"output [ {tensor('logits', 'FP32', '10')} ]",
        {
            "axes.image": "height,width",
            "limit.height": "256",
            "limit.width": "256",
            "mask.mask": "height,width",
        },
    ),
    "recogniser": Graph(
        "lines of text, 40 to 320 pixels wide",
        linked("ocr_recognition"),
        lambda rng: rng.integers(0, 256, (1, 48, 8 * rng.integers(5, 41), 3), np.uint8),
        f"input [ {tensor('line', 'UINT8', '48, -1, 3', ragged=True)} ]\n"
        f"output [ {tensor('character', 'INT64', '-1')}, {tensor('probability', 'FP32', '-1')} ]",
        {
            "axes.line": "width",
            "axes.character": "max((width + 3) // 8, 1)",
            "axes.probability": "max((width + 3) // 8, 1)",
            "limit.width": "1920",
        },
        (1.0, 1.0, 1.0),
    ),
}
MASKS = {
    "encoder": '; inputs["attention_mask"] = np.ones(data.shape, np.float32)',
    "speech": '; inputs["lengths"] = np.full(len(data), data.shape[1])',
    "classifier": '; inputs["mask"] = np.ones((len(data), *data.shape[2:]), np.float32)',
}
"""Graph to the plain model's code for the graph input that ge_runtime generates."""


def fill(repository: Path, graph: str, trees: Sequence[str]) -> list[str]:
    """Write the models of a graph: the plain one, and one for each checkout of ge_runtime."""
    own = GRAPHS[graph]
    given, *made = own.names
    plain = PLAIN.format(input=given, outputs=made, mask=MASKS.get(graph, ""))
    codes = [plain, *(RUNTIME.format(tree=Path(tree).resolve()) for tree in trees)]
    names = [f"{graph}_plain", *(f"{graph}_{index}" for index in range(len(trees)))]
    for name, code in zip(names, codes, strict=True):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        graph_file = repository / f"{graph}.onnx"
        if not graph_file.exists():
            own.export(graph_file)
        (repository / name / "1" / "model.onnx").symlink_to(graph_file)
        # The plain model's batches have one shape, so its input is not ragged.
        tensors, parameters = own.tensors, own.parameters
        if code is plain:
            tensors, parameters = tensors.replace(" allow_ragged_batch: true", ""), {}
        entries = [
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
            for key, value in parameters.items()
        ]
        head = 'backend: "python"\nmax_batch_size: 32\ndynamic_batching { }'
        (repository / name / "config.pbtxt").write_text("\n".join([head, tensors, *entries]))
    return names


# -- the command


class Turn(NamedTuple):
    """Figures of one turn of one model. Times are microseconds."""

    per_second: float
    cpu: float
    p50: float


Key = tuple[str, str, int, str]
"""Server, graph, requests in flight, model."""


def measure(options: argparse.Namespace) -> Iterator[tuple[Key, Turn]]:
    """Measure all turns."""
    with client_process() as run:
        for name, graph in itertools.product(options.servers, options.graphs):
            print(f"{name}: {graph}", file=sys.stderr)
            rng = np.random.default_rng(5)
            arrays = [GRAPHS[graph].requests(rng) for _ in range(SENT)]
            given = GRAPHS[graph].names[0]
            with contextlib.ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="plain-")))
                models = fill(folder, graph, options.trees)
                server = stack.enter_context(starter(name)(folder, allow_metrics=False))
                loads = {
                    model: [grpc(model, {given: array})[0] for array in arrays] for model in models
                }
                for model in models:
                    run(closed_loop, server.grpc, Grpc(CALLS), loads[model], 8, options.seconds)
                for count, _, model in itertools.product(
                    options.in_flight, range(options.turns), models
                ):
                    before = cpu_us(server.process.pid)
                    load = (server.grpc, Grpc(CALLS), loads[model], count, options.seconds)
                    latencies = run(closed_loop, *load)
                    cpu = (cpu_us(server.process.pid) - before) / len(latencies)
                    rate = len(latencies) / options.seconds
                    yield (name, graph, count, model), Turn(rate, cpu, percentile_of(latencies, 50))


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    turns: dict[Key, list[Turn]] = {}
    for key, turn in measure(options):
        turns.setdefault(key, []).append(turn)
    medians = {
        key: Turn(*map(statistics.median, zip(*own, strict=True))) for key, own in turns.items()
    }
    print(f"medians of {options.turns} turns of {options.seconds:g} s")
    print_table(HEADINGS, [line(key, medians) for key in medians])


HEADINGS = ("server", "in flight", "model", "req/s", "CPU us", "p50 us", "req/s x", "CPU x", "bar")


def line(key: Key, medians: dict[Key, Turn]) -> list[object]:
    """Return a line of the table, with the ratios to the plain model."""
    name, graph, count, model = key
    own, plain = medians[key], medians[name, graph, count, f"{graph}_plain"]
    ratios = ["", "", ""]
    if own is not plain:
        bar = GRAPHS[graph].bars[0 if count < 8 else 1 if count < 32 else 2]
        ratios = [
            f"{own.per_second / plain.per_second:.2f}",
            f"{plain.cpu / own.cpu:.2f}",
            f"{bar:g}",
        ]
    return [name, count, model, f"{own.per_second:,.0f}", *(f"{n:,.0f}" for n in own[1:]), *ratios]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plain_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--servers", nargs="+", default=["triton", "reference"], metavar="SERVER", help="servers")
    add("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS), metavar="GRAPH", help="graphs")
    add("--in-flight", nargs="+", type=int, default=[1, 8, 32], metavar="N", help="(1 8 32)")
    add("--seconds", type=float, default=2.0, help="duration of each turn (2)")
    add("--turns", type=int, default=3, help="turns of each model (3)")
    add("--trees", nargs="+", default=[str(ROOT)], metavar="PATH", help="checkouts (this one)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
