"""Small folders as optimum, transformers and sentence-transformers export them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "where", "is", "my", "parcel", "a", "word", "?", "it")
WIDTH = 8
LIMIT = 32
LABELS = ("contradiction", "entailment", "neutral")
CHARACTERS = ("<pad>", "|", "a", "b", "c", "d")
PIXELS = {
    "do_resize": True,
    "size": {"height": 24, "width": 32},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "image_processor_type": "ViTImageProcessor",
}
SAMPLES = {
    "do_normalize": True,
    "feature_extractor_type": "Wav2Vec2FeatureExtractor",
    "feature_size": 1,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
    "sampling_rate": 16000,
}


def random(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(0, 0.5, shape).astype(np.float32)


def tokenizer(words=WORDS) -> Tokenizer:
    found = Tokenizer(
        models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    )
    found.normalizer = normalizers.BertNormalizer()
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    # As published files have it: both are replaced by the files of the model.
    found.enable_truncation(6)
    found.enable_padding(length=6)
    return found


def encoder(output="last_hidden_state", classes=0, *, masked=True) -> onnx.ModelProto:
    """Return vectors of tokens that see each other, or logits of a text or of each token."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["words"]),
        node("Gather", ["types", "token_type_ids"], ["kinds"]),
        node("Shape", ["input_ids"], ["length"], start=1),
        node("Slice", ["positions", "zero", "length"], ["places"]),
        node("Add", ["words", "kinds"], ["typed"]),
        node("Add", ["typed", "places"], ["vectors"]),
        node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
        node("Unsqueeze", ["mask", "two"], ["column"]),
        node("Mul", ["vectors", "column"], ["kept"]),
        node("ReduceSum", ["kept" if masked else "vectors", "one"], ["sum"], keepdims=1),
        node("ReduceSum", ["column", "one"], ["count"], keepdims=1),
        node("Div", ["sum", "count"], ["mean"]),
        node("Add", ["vectors", "mean"], ["seen"]),
        node("Tanh", ["seen"], ["last_hidden_state"]),
        node("Squeeze", ["mean", "one"], ["pooled"]),
    ]
    dims = ["batch", "tokens", WIDTH]
    if output == "logits":
        nodes.append(node("MatMul", ["pooled", "head"], ["logits"]))
        dims = ["batch", classes]
    elif output == "token_logits":
        nodes.append(node("MatMul", ["last_hidden_state", "head"], [output]))
        dims = ["batch", "tokens", classes]
    elif output == "sentence_embedding":
        nodes.append(node("Identity", ["pooled"], [output]))
        dims = ["batch", WIDTH]
    ids = ("input_ids", "attention_mask", "token_type_ids")
    return onnx_model(
        nodes,
        [(name, INT64, ["batch", "tokens"]) for name in ids],
        [(output, FLOAT, dims)],
        {
            "table": random(len(WORDS), WIDTH),
            "types": random(2, WIDTH),
            "positions": random(LIMIT, WIDTH),
            "head": random(WIDTH, max(classes, 1)) * 4,
            "zero": np.array([0]),
            "one": np.array([1]),
            "two": np.array([2]),
        },
    )


def patches(name="pixel_values", *, last=False, classes=3) -> onnx.ModelProto:
    """Return logits of 24 x 32 images.

    All dims are free, as optimum exports them; if channels are `last`, their number is fixed.
    """
    node = helper.make_node
    order = [0, 3, 1, 2] if last else [0, 1, 2, 3]
    sides = ["height", "width", 3] if last else ["channels", "height", "width"]
    return onnx_model(
        [
            node("Transpose", [name], ["first"], perm=order),
            node("Conv", ["first", "kernel"], ["patches"], strides=[8, 8]),
            node("Tanh", ["patches"], ["bent"]),
            node("Flatten", ["bent"], ["flat"]),
            node("MatMul", ["flat", "head"], ["logits"]),
        ],
        [(name, FLOAT, ["batch", *sides])],
        [("logits", FLOAT, ["batch", classes])],
        {"kernel": random(4, 3, 8, 8) / 8, "head": random(4 * 3 * 4, classes)},
    )


def waves(classes: int = len(CHARACTERS)) -> onnx.ModelProto:
    """Return logits of characters, one for each 20 samples, from neighbouring samples only."""
    node = helper.make_node
    return onnx_model(
        [
            node("Unsqueeze", ["input_values", "one"], ["line"]),
            node("Conv", ["line", "kernel"], ["low"], strides=[5]),
            node("Tanh", ["low"], ["bent"]),
            node("Conv", ["bent", "second"], ["frames"], strides=[4]),
            node("Transpose", ["frames"], ["logits"], perm=[0, 2, 1]),
        ],
        [("input_values", FLOAT, ["batch", "samples"])],
        [("logits", FLOAT, ["batch", "frames", classes])],
        {"kernel": random(4, 1, 10), "second": random(classes, 4, 4), "one": np.array([1])},
    )


def write(folder: Path, graph: onnx.ModelProto, files, *, nested=False) -> Path:
    """Write a folder: its graph, and files of JSON by name; a Tokenizer is its own file."""
    path = folder / ("onnx/model.onnx" if nested else "model.onnx")
    path.parent.mkdir(parents=True)
    onnx.save(graph, path)
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        if isinstance(content, Tokenizer):
            content.save(str(file))
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def sentences(folder: Path, changed=None) -> Path:
    """Write a folder as sentence-transformers has it; `changed` files replace its own."""
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    prefix = "sentence_transformers.models."
    files = {
        "tokenizer.json": tokenizer(),
        "config.json": {"architectures": ["BertModel"], "hidden_size": WIDTH},
        "tokenizer_config.json": {"model_max_length": 512},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
        "modules.json": [
            {"idx": at, "path": path, "type": prefix + kind}
            for at, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": WIDTH,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
        },
    }
    files.update(changed or {})
    kept = {name: own for name, own in files.items() if own is not None}
    return write(folder, encoder(), kept, nested=True)


def classifier(folder: Path, architecture="BertForSequenceClassification", **config) -> Path:
    """Write a classifier of texts as optimum exports it."""
    labels = config.pop("labels", LABELS)
    fields = {"architectures": [architecture], **config}
    if labels:
        fields["id2label"] = {str(at): label for at, label in enumerate(labels)}
    output = "token_logits" if "Token" in architecture else "logits"
    graph = encoder(output, max(len(labels), 1))
    return write(folder, graph, {"tokenizer.json": tokenizer(), "config.json": fields})


def images(folder: Path, processor=PIXELS, *, labels=("cat", "dog", "tit")) -> Path:
    """Write a classifier of images."""
    config = {"architectures": ["ViTForImageClassification"]}
    if labels:
        config["id2label"] = dict(enumerate(labels))
    files = {"config.json": config, "preprocessor_config.json": processor}
    return write(folder, patches(), files)


def speech(folder: Path, extractor=SAMPLES, *, vocabulary=CHARACTERS) -> Path:
    """Write a recognizer of speech."""
    files = {
        "config.json": {"architectures": ["Wav2Vec2ForCTC"]},
        "preprocessor_config.json": extractor,
    }
    if vocabulary:
        files["vocab.json"] = {one: at for at, one in enumerate(vocabulary)}
    return write(folder, waves(), files)
