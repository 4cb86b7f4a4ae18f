"""Exported folders: which models are written for them, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support import exports
from runtime.support.graphs import onnx_text

from ge_runtime import cli
from ge_runtime.cli import serve
from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.discovery.configuration import Configuration, Parameter, Tensor
from ge_runtime.discovery.export import Export
from ge_runtime.discovery.labels import Labels, find_labels
from ge_runtime.discovery.pipeline import Pipeline
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import DType
from ge_runtime.steps.answers import POOLINGS

REPOSITORY = Path(__file__).parents[3] / "model_repository"
FLOAT = TensorProto.FLOAT

IDS = Tensor("input_ids", DType.INT64, (-1,), ragged=True)
VECTORS = Tensor("last_hidden_state", DType.FP32, (-1, exports.WIDTH))


@pytest.fixture
def init(tmp_path, capfd):
    """Return a function that runs `init` for a folder: exit code, repository, what was printed."""

    def run(folder, *arguments):
        into = tmp_path / "repository"
        # In this process: another one takes a second to start.
        code = cli.main(["init", str(folder), "--into", str(into), "--in-process", *arguments])
        return code, into, capfd.readouterr()

    return run


def parameters(folder):
    config = read_model_config(folder)
    return {key: own["string_value"] for key, own in config.get("parameters", {}).items()}


def tensors(folder, kind):
    return {
        own["name"]: [int(dim) for dim in own["dims"]] for own in read_model_config(folder)[kind]
    }


def pipeline(folder, *outputs, labels=(), limit=32, **changed):
    """Return the models of a folder whose graph has a configuration that needs no experiment."""
    own = Configuration(
        changed.get("rows", 16),
        changed.get("inputs", [IDS]),
        [*outputs],
        [
            Parameter("axes.input_ids", "tokens", ""),
            Parameter("limit.tokens", str(limit), "The graph fails above it."),
            Parameter("range.input_ids", f"0..{changed.get('most', 11)}", ""),
        ],
    )
    if "align" in changed:
        own.parameters.append(Parameter("align.tokens", str(changed["align"]), ""))
    named = Labels(tuple(labels), "a test") if labels else None
    if named:
        named.attach(own)
    return Pipeline(Export.read(folder), "model", own, named)


def test_sentences_are_pooled_and_normalized(init, tmp_path):
    code, into, printed = init(exports.sentences(tmp_path / "minilm"))
    assert code == 0
    assert tensors(into / "minilm", "output") == {"embedding": [exports.WIDTH]}
    assert parameters(into / "minilm_input") == {"max_tokens": "16", "clean": "strip"}
    assert parameters(into / "minilm_output") == {"pooling": "mean", "normalize": "true"}
    graph = parameters(into / "minilm_graph")
    assert graph["limit.tokens"] == "16"
    assert graph["axis_length.tokens"] == "lengths"
    assert graph["mask.attention_mask"] == "tokens"
    assert graph["range.token_type_ids"] == "0..1"
    assert "Proven: 11 requests" in printed.out


@pytest.mark.brute_force
def test_pairs_have_labels_in_label_files(init, tmp_path):
    code, into, _ = init(exports.classifier(tmp_path / "nli"))
    assert code == 0
    assert list(tensors(into / "nli", "input")) == ["text", "text_pair"]
    assert not (into / "nli_input" / "labels.txt").exists()
    for name in ("nli", "nli_graph", "nli_output"):
        (output,) = (
            own for own in read_model_config(into / name)["output"] if own.get("label_filename")
        )
        lines = (into / name / output["label_filename"]).read_text().splitlines()
        assert tuple(lines) == exports.LABELS


@pytest.mark.brute_force
def test_a_step_that_computes_something_else_is_not_written(init, tmp_path, monkeypatch):
    monkeypatch.setitem(POOLINGS, "mean", lambda vectors, mask: vectors[:, 0])
    code, _, printed = init(exports.sentences(tmp_path / "minilm"))
    assert code == 1
    assert "differs from the plain computation: output 'embedding': found" in printed.err


@pytest.mark.brute_force
def test_each_token_has_a_label(init, tmp_path):
    folder = exports.classifier(tmp_path / "ner", "BertForTokenClassification", labels=("O", "B"))
    code, into, _ = init(folder)
    assert code == 0
    assert tensors(into / "ner", "output") == {"token": [-1], "label": [-1], "score": [-1]}


def test_images_have_the_size_of_the_image_processor(init, tmp_path):
    code, into, _ = init(exports.images(tmp_path / "vit"), "--name", "cats")
    assert code == 0
    assert tensors(into / "cats_graph", "input") == {"pixel_values": [3, 24, 32]}
    assert tensors(into / "cats", "output") == {"label": [1], "score": [3]}


def test_channels_may_be_last_and_the_input_may_have_any_name(init, tmp_path):
    folder = exports.images(tmp_path / "keras", labels=())
    onnx.save(exports.patches("x", last=True), folder / "model.onnx")
    code, into, _ = init(folder)
    assert code == 0
    assert tensors(into / "keras_input", "output") == {"x": [24, 32, 3]}
    assert tensors(into / "keras", "output") == {"score": [3]}


@pytest.mark.slow
def test_speech_becomes_text(init, tmp_path):
    code, into, printed = init(exports.speech(tmp_path / "speech"))
    assert code == 0
    assert tensors(into / "speech", "output") == {"text": [1]}
    assert parameters(into / "speech_output") == {"blank": "<pad>", "delimiter": "|"}
    assert "# Question: which samples do clients send?" in printed.out


@pytest.mark.brute_force
def test_a_mask_without_effect_leaves_one_text_in_a_request(init, tmp_path):
    folder = exports.sentences(tmp_path / "leaks")
    onnx.save(exports.encoder(masked=False), folder / "onnx" / "model.onnx")
    code, into, printed = init(folder)
    assert code == 0
    assert "# One row in a request: " in printed.out
    assert read_model_config(into / "leaks")["max_batch_size"] == 1
    assert tensors(into / "leaks_input", "output")["attention_mask"] == [-1]
    assert "lengths" not in tensors(into / "leaks_graph", "input")


def test_serve_shows_requests_for_each_kind_of_input(tmp_path):
    ports = {"http": 8000, "grpc": 8001, "metrics": 8002}
    shown = {}
    for kind, dims in (("text", [1]), ("image", [1]), ("audio", [-1])):
        data_type = "TYPE_FP32" if kind == "audio" else "TYPE_STRING"
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.pbtxt").write_text(
            f'platform: "ensemble" max_batch_size: 4 '
            f'input [ {{ name: "{kind}" data_type: {data_type} dims: {dims} }} ] '
            f'output [ {{ name: "label" data_type: TYPE_STRING dims: [ 1 ] }} ]'
        )
        shown[kind] = "\n".join(serve._usage(tmp_path, [kind], ports))
        program = shown[kind].partition("import numpy")[2].partition("Ctrl-C")[0]
        compile("import numpy" + program, "shown", "exec")
    assert """/text/generate -d '{"text": "Where is my parcel?"}'""" in shown["text"]
    assert "np.array([['Where is my parcel?'.encode()]], object)" in shown["text"]
    assert 'np.array([[open("image.jpg", "rb").read()]], object)' in shown["image"]
    assert "np.ones([1, 16000], np.float32)" in shown["audio"]
    assert all('.as_numpy("label")' in own for own in shown.values())


SENTENCE, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"


@pytest.mark.parametrize(
    ("changed", "tokens", "side"),
    [
        ({}, "16", None),
        ({SENTENCE: {"max_seq_length": 40}}, "32", None),
        ({SENTENCE: None, TOKENIZER: {"model_max_length": 20}}, "20", None),
        ({SENTENCE: None}, "32", None),
        # This number means that there is no limit.
        ({SENTENCE: None, TOKENIZER: {"model_max_length": 10**30}}, "6", None),
        ({TOKENIZER: {"truncation_side": "left"}}, "16", "left"),
    ],
    ids=str,
)
def test_where_texts_are_truncated(tmp_path, changed, tokens, side):
    folder = exports.sentences(tmp_path / "own", changed)
    found = pipeline(folder, VECTORS)
    before = {own.key: own.value for own in found.steps[0].configuration.parameters}
    assert before["max_tokens"] == tokens
    assert before.get("truncation") == side
    assert {own.key: own.value for own in found.graph.parameters}["limit.tokens"] == tokens


def test_a_limit_of_the_files_that_is_no_multiple_leaves_that_of_the_graph(tmp_path):
    found = pipeline(
        exports.sentences(tmp_path / "own", {SENTENCE: {"max_seq_length": 15}}), VECTORS, align=4
    )
    assert {own.key: own.value for own in found.graph.parameters}["limit.tokens"] == "32"


def test_prompts_and_lower_case_of_sentence_transformers(tmp_path):
    changed = {
        SENTENCE: {"max_seq_length": 16, "do_lower_case": True},
        "config_sentence_transformers.json": {
            "default_prompt_name": "query",
            "prompts": {"query": "query: "},
        },
    }
    found = pipeline(exports.sentences(tmp_path / "own", changed), VECTORS)
    before = {own.key: own.value for own in found.steps[0].configuration.parameters}
    assert before["prompt"] == "query: "
    assert before["clean"] == "strip, lower"


POOLING = "1_Pooling/config.json"


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
    ids=str,
)
def test_modes_of_pooling(tmp_path, fields, mode):
    after = pipeline(exports.sentences(tmp_path / "own", {POOLING: fields}), VECTORS).steps[2]
    assert {own.key: own.value for own in after.configuration.parameters} == {
        "pooling": mode,
        "normalize": "true",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"pooling_mode_mean_sqrt_len_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": "attention"},
        {},
    ],
    ids=str,
)
def test_another_mode_of_pooling_is_refused(tmp_path, fields):
    folder = exports.sentences(tmp_path / "own", {POOLING: fields})
    with pytest.raises(ArtifactFault, match=r"config\.json: found pooling mode .*, expected one"):
        Export.read(folder)


def test_pooling_that_no_file_describes_is_a_question(tmp_path):
    folder = exports.sentences(tmp_path / "own", {"modules.json": None, POOLING: None})
    text = pipeline(folder, VECTORS).steps[2].configuration.text("own")
    assert "# Question: how are the vectors of the tokens combined?" in text
    line = 'parameters { key: "pooling" value { string_value: "MODE" } }\n'
    assert "\n" + line.replace("MODE", "mean") in text
    assert "\n# " + line.replace("MODE", "cls") in text


@pytest.mark.parametrize(
    ("outputs", "source"),
    [
        (["last_hidden_state", "pooler_output"], "last_hidden_state"),
        (["token_embeddings", "sentence_embedding"], "sentence_embedding"),
        (["embedding"], "embedding"),
    ],
)
def test_which_output_is_the_embedding(tmp_path, outputs, source):
    both = [
        replace(VECTORS, name=name)
        if name in ("last_hidden_state", "token_embeddings")
        else Tensor(name, DType.FP32, (exports.WIDTH,))
        for name in outputs
    ]
    found = pipeline(exports.sentences(tmp_path / "own"), *both)
    assert found.steps[2].inputs["values"] == source
    assert ("lengths" in found.steps[2].inputs) is (source == "last_hidden_state")


def test_the_output_of_the_pooler_is_an_embedding_only_without_a_described_pooling(tmp_path):
    pooler = Tensor("pooler_output", DType.FP32, (exports.WIDTH,))
    with pytest.raises(ArtifactFault, match="found outputs pooler_output, expected one with a vec"):
        pipeline(exports.sentences(tmp_path / "described"), pooler)
    folder = exports.sentences(tmp_path / "own", {"modules.json": None, POOLING: None})
    assert pipeline(folder, pooler).steps[2].inputs["values"] == "pooler_output"


@pytest.mark.parametrize(
    ("config", "labels", "scores"),
    [
        ({}, ("a", "b"), "softmax"),
        ({"problem_type": "multi_label_classification"}, ("a", "b"), "sigmoid"),
        ({"problem_type": "regression"}, (), "none"),
        ({}, (), "sigmoid"),
        ({"num_labels": 4}, (), "softmax"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, (), "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, ("a", "b"), "sigmoid"),
    ],
    ids=str,
)
def test_scores_of_classifiers(tmp_path, config, labels, scores):
    folder = exports.classifier(tmp_path / "own", labels=labels, **config)
    count = config.get("num_labels", len(labels) or 1)
    found = pipeline(folder, Tensor("logits", DType.FP32, (count,)), labels=labels)
    (rule,) = found.steps[2].configuration.parameters
    assert (rule.key, rule.value) == ("scores", scores)
    assert [own.name for own in found.outputs] == (["label", "score"] if labels else ["score"])
    # One score is that of a pair.
    assert len(found.inputs) == (2 if count == 1 else 1)
    asked = any("the score that of a pair" in own.text for own in found.questions)
    assert asked is (count == 1 and "sentence_transformers" not in config)


def test_outputs_of_another_task_are_those_of_the_graph(tmp_path):
    folder = exports.classifier(tmp_path / "own", "BertForMaskedLM", labels=())
    found = pipeline(folder, Tensor("logits", DType.FP32, (-1, 12)))
    assert [own.name for own in found.outputs] == ["logits"]
    assert len(found.steps) == 2


@pytest.mark.parametrize(
    ("files", "metadata", "names"),
    [
        ({"config.json": '{"id2label": {"1": "b", "0": "a"}}', "labels.txt": "c"}, {}, ("a", "b")),
        ({"config.json": "{}", "labels.txt": "x y\nz\n"}, {"names": "['a', 'b']"}, ("x y", "z")),
        ({}, {"names": "{0: 'person', 1: 'car'}", "task": "classify"}, ("person", "car")),
        ({}, {"classes": "a, b"}, ("a", "b")),
        ({}, {"names": "[", "labels": '["a", "b"]'}, ("a", "b")),
        ({}, {"names": "one text"}, None),
        ({}, {}, None),
    ],
    ids=str,
)
def test_where_labels_are_found(tmp_path, files, metadata, names):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    graph = exports.patches()
    helper.set_model_props(graph, metadata)
    onnx.save(graph, tmp_path / "model.onnx")
    found = find_labels(tmp_path, tmp_path / "model.onnx")
    assert (found and found.names) == names


@pytest.mark.parametrize("named", ['{"0": "a", "2": "b"}', '"a"'])
def test_labels_without_numbers_in_order_are_refused(tmp_path, named):
    (tmp_path / "config.json").write_text(f'{{"id2label": {named}}}')
    with pytest.raises(ArtifactFault, match=r"config\.json: found id2label .*, expected a name"):
        find_labels(tmp_path, tmp_path)


@pytest.mark.parametrize(("names", "used"), [("a\nb\nc\n", True), ("a\nb\n", False)])
def test_a_graph_gets_the_labels_beside_it(tmp_path, capfd, names, used):
    model = onnx_text(
        "(float[batch, 4] x) => (float[batch, 3] y) { y = MatMul (x, w) }", w=exports.random(4, 3)
    )
    onnx.save(model, tmp_path / "graph.onnx")
    (tmp_path / "labels.txt").write_text(names)
    arguments = ["init", str(tmp_path / "graph.onnx"), "--into", str(tmp_path / "r")]
    assert cli.main([*arguments, "--in-process"]) == 0
    folder = tmp_path / "r" / "graph"
    (output,) = read_model_config(folder)["output"]
    assert output.get("label_filename", "") == ("labels.txt" if used else "")
    assert (folder / "labels.txt").is_file() is used
    assert "labels.txt" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"tokenizer.json": "{"}, r"tokenizer\.json: found no tokenizer"),
        ({"tokenizer.json": None}, r"found no tokenizer\.json, expected one; write it with"),
        ({"config.json": "[]"}, r"config\.json: found list, expected a JSON object"),
        ({"modules.json": "{}"}, r"modules\.json: found no list of modules"),
        ({"modules.json": "{"}, r"modules\.json: found no JSON"),
        ({"modules.json": [{"type": "x.Dense"}]}, "found the module 'Dense', expected only"),
        ({"preprocessor_config.json": exports.PIXELS}, "texts and images together"),
    ],
    ids=str,
)
def test_bad_files_exit_with_2_and_leave_nothing(init, tmp_path, changed, found):
    code, into, printed = init(exports.sentences(tmp_path / "own", changed))
    assert code == 2
    assert len(printed.err.splitlines()) == 1
    assert re.search(found, printed.err)
    assert not into.exists()


def test_several_graphs_are_refused(tmp_path):
    folder = exports.sentences(tmp_path / "own")
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "encoder_model.onnx")
    with pytest.raises(ArtifactFault, match=r"found encoder_model\.onnx, expected one graph"):
        Export.read(folder)


def test_a_folder_without_files_of_an_export_is_none(tmp_path):
    (tmp_path / "model.onnx").touch()
    assert Export.read(tmp_path) is None


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"most": 10}, "found the id 11, expected at most 10, the largest that the graph accepts"),
        ({"inputs": [IDS, Tensor("bbox", DType.INT64, (-1, 4))]}, "input 'bbox': found an input"),
        ({"inputs": [replace(IDS, dims=(128,))]}, "expected one free dim"),
        ({"rows": 0}, "found a graph without rows"),
        ({"outputs": []}, "found outputs , expected one with a vector"),
    ],
    ids=str,
)
def test_a_graph_that_does_not_match_its_files_is_refused(tmp_path, changed, found):
    outputs = changed.pop("outputs", [VECTORS])
    with pytest.raises(ArtifactFault, match=found):
        pipeline(exports.sentences(tmp_path / "own"), *outputs, **changed)


def test_images_of_another_size_are_refused(init, tmp_path):
    folder = exports.images(tmp_path / "vit")
    model = onnx.load(folder / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 48
    onnx.save(model, folder / "model.onnx")
    code, _, printed = init(folder)
    assert code == 1
    expected = "expected one with ['batch', 3, 24, 32], as preprocessor_config.json describes"
    assert expected in printed.err


def test_a_vocabulary_without_the_blank_is_refused(tmp_path):
    folder = exports.speech(tmp_path / "speech", vocabulary=exports.CHARACTERS[1:])
    values = Tensor("input_values", DType.FP32, (-1,), ragged=True)
    with pytest.raises(ArtifactFault, match=r"vocab\.json: found no number for '<pad>'"):
        pipeline(folder, Tensor("logits", DType.FP32, (-1, 6)), inputs=[values])
    with pytest.raises(ArtifactFault, match=r"vocab\.json: found 5 characters, expected at most 4"):
        pipeline(folder, Tensor("logits", DType.FP32, (-1, 4)), inputs=[values])


def test_a_folder_of_a_model_that_exists_is_kept(tmp_path, capfd):
    folder = exports.images(tmp_path / "vit")
    (tmp_path / "r" / "vit_input").mkdir(parents=True)
    assert cli.main(["init", str(folder), "--into", str(tmp_path / "r")]) == 2
    assert "vit_input: found a folder, expected none" in capfd.readouterr().err
