"""Bytes that move for a request: the ensemble text_pipeline, and text_pipeline_fused.

    python -m benchmarks.pipelines

For every request of benchmarks/data/text_pipeline.json: the tensors that pass between the server
and its models, which the ensemble does at each of its three steps, and what ge_runtime copies to
make batches and to take answers apart. Requests go one by one. Latency and throughput of the two:
`python -m benchmarks.perf --models text_pipeline text_pipeline_fused`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping

import numpy as np
from tokenizers import Tokenizer

from benchmarks.instruments import ROOT, open_runtime, print_table, read_config
from ge_runtime.runtime import Runtime

MODELS = ROOT / "model_repository"
OPENED = ("text_encoder", "text_classifier", "text_pipeline_fused")


def main() -> None:
    data = json.loads((ROOT / "benchmarks" / "data" / "text_pipeline.json").read_text())["data"]
    requests = [request["text"]["content"] for request in data]
    tokenizer = Tokenizer.from_file(str(MODELS / "tokenizer" / "1" / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    labels = (MODELS / "text_classifier" / "labels.txt").read_bytes().splitlines()
    runtimes = {name: open_model(name) for name in OPENED}
    rows: dict[str, list[tuple[int, int]]] = {"ensemble": [], "fused": []}
    for texts in requests:
        text = np.array([text.encode() for text in texts], object)
        tokens = pad([encoding.ids for encoding in tokenizer.encode_batch(texts)])
        embedding, encoder_copies = infer(runtimes["text_encoder"], tokens)
        logits, head_copies = infer(runtimes["text_classifier"], embedding)
        _, fused_copies = infer(runtimes["text_pipeline_fused"], tokens)
        label = np.array([labels[best] for best in logits["logits"].argmax(axis=1)], object)
        ends = [text, *logits.values(), label]
        between = [*tokens.values(), *embedding.values()]
        passed = nbytes(ends)
        # What lies between two steps leaves one model and enters the next.
        rows["ensemble"].append((passed + 2 * nbytes(between), encoder_copies + head_copies))
        rows["fused"].append((passed, fused_copies))
    for runtime in runtimes.values():
        runtime.close()
    print(f"{len(requests)} requests of 1 to {max(map(len, requests))} texts, means for one")
    means = {
        way: [statistics.mean(each) for each in zip(*moved, strict=True)]
        for way, moved in rows.items()
    }
    print_table(
        ["bytes", "between server and models", "copied by ge_runtime", "together"],
        [
            [way, f"{passed:,.0f}", f"{copied:,.0f}", f"{passed + copied:,.0f}"]
            for way, (passed, copied) in means.items()
        ],
    )
    print("the real server copies what passes between it and a model four times on the way")


def open_model(name: str) -> Runtime:
    derived = [] if name == "text_encoder" else ["label"]
    return open_runtime(MODELS / name / "1", read_config(MODELS / name), derived=derived)


def pad(tokens: list[list[int]]) -> dict[str, np.ndarray]:
    """Ids [n, longest] and lengths [n, 1], as the tokenizer's model gives them."""
    lengths = np.array([len(row) for row in tokens], np.int32)[:, None]
    ids = np.zeros((len(tokens), lengths.max()), np.int64)
    for row, known in zip(ids, tokens, strict=True):
        row[: len(known)] = known
    return {"input_ids": ids, "lengths": lengths}


def infer(runtime: Runtime, request: Mapping[str, np.ndarray]) -> tuple[dict, int]:
    """The answer, and the bytes that were copied for it."""
    before = runtime.counts().copied_bytes
    (answer,) = runtime.infer([request])
    if isinstance(answer, Exception):
        raise answer
    return answer, runtime.counts().copied_bytes - before


def nbytes(arrays: Iterable[np.ndarray]) -> int:
    """As they are sent: an element of text has four bytes for its length."""
    return sum(
        sum(4 + len(element) for element in array) if array.dtype == object else array.nbytes
        for array in arrays
    )


if __name__ == "__main__":
    main()
