"""The models of an exported folder.

They are a step before the graph, the graph, a step after it, and the ensemble that connects them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ge_runtime.discovery.configuration import Configuration, Parameter, Question, Tensor
from ge_runtime.discovery.export import IDS, PREPROCESSOR, TOKENIZER, Export, Kind
from ge_runtime.discovery.labels import Labels
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import DType
from ge_runtime.steps.answers import LENGTHS, VALUES
from ge_runtime.steps.texts import read_tokenizer

MODEL: Final = '''"""{title}"""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import {function}
from ge_runtime.steps.{module} import {step}


class TritonPythonModel:
    def initialize(self, args):
        self._step = {step}.open(args)

    def execute(self, requests):
        return {function}(pb_utils, requests, self._step)
'''
_BEFORE: Final = {
    Kind.TEXT: ("Convert texts to token ids.", "answer_batch", "texts", "TextStep"),
    Kind.IMAGE: ("Convert image files to pixels.", "answer_each", "pictures", "PictureStep"),
    Kind.AUDIO: ("Convert PCM samples for the graph.", "answer_each", "samples", "SampleStep"),
}
_AFTER: Final = ("Convert the graph's values to an answer.", "answer_each", "answers", "AnswerStep")
BEFORE: Final = "_input"
GRAPH: Final = "_graph"
AFTER: Final = "_output"
SUFFIXES: Final = ("", BEFORE, GRAPH, AFTER)
"""Suffixes of the models' names, which begin with the name of the ensemble."""
_NO_LIMIT: Final = 10**6
"""From this value on, model_max_length is not a limit."""


@dataclass(slots=True)
class Step:
    """A model of the ensemble."""

    name: str
    configuration: Configuration
    inputs: dict[str, str] = field(default_factory=dict)
    """The ensemble's tensor for each input of the model."""
    outputs: dict[str, str] = field(default_factory=dict)
    """The ensemble's tensor for each output of the model."""
    model: tuple[str, str, str, str] | None = None
    """Title, function, module and class of model.py; None for the graph."""
    files: list[Path] = field(default_factory=list)
    """Files to copy beside model.py."""


@dataclass(slots=True)
class Pipeline:
    """The models of an export. `steps` are in the order of execution.

    Raises ArtifactFault if the export and the configuration of its graph do not match.
    """

    export: Export
    name: str
    graph: Configuration
    labels: Labels | None
    single: str = ""
    """Why requests have one row only; empty if they may have more."""
    rows: int = field(init=False)
    inputs: list[Tensor] = field(init=False)
    outputs: list[Tensor] = field(init=False)
    notes: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    steps: list[Step] = field(init=False)

    def __post_init__(self) -> None:
        """Decide on the steps."""
        if self.graph.max_batch_size < 1:
            raise ArtifactFault(
                "found a graph without rows, expected inputs whose first dim is rows"
            )
        own = self.graph
        self.graph = replace(own, inputs=[*own.inputs], parameters=[*own.parameters])
        self.rows = 1 if self.single else own.max_batch_size
        if self.single:
            self.notes.append(f"One row in a request: {self.single}")
        kind = self.export.kind
        before = Step(self.name + BEFORE, Configuration(self.rows), model=_BEFORE[kind])
        executed = Step(self.name + GRAPH, self.graph)
        self.steps = [before, executed]
        if kind is Kind.TEXT:
            self._texts(before)
        else:
            self._media(before)
        after = Step(self.name + AFTER, Configuration(self.rows), model=_AFTER)
        source = self._answer(after)
        if source is None:
            executed.outputs = {own.name: own.name for own in self.graph.outputs}
            self.outputs = list(self.graph.outputs)
        else:
            self._connect(after, source)
            self.outputs = list(after.configuration.outputs)
        if any(own.name == "token" for own in before.configuration.outputs):
            self.outputs.insert(0, Tensor("token", DType.BYTES, (-1,)))
        for step in (before, executed):
            step.inputs = {one.name: one.name for one in step.configuration.inputs}
        before.outputs = {one.name: one.name for one in before.configuration.outputs}

    def _texts(self, before: Step) -> None:
        """Add the inputs and outputs of the tokenizer step."""
        found, step = self.graph, before.configuration
        known = ("input_ids", "attention_mask", "token_type_ids")
        for tensor in found.inputs:
            if tensor.name not in known:
                raise ArtifactFault(
                    f"input '{tensor.name}': found an input that no tokenizer computes, expected "
                    f"{', '.join(known)}"
                )
            if tensor.dims != (-1,):
                raise ArtifactFault(
                    f"input '{tensor.name}': found dims {list(tensor.dims)}, expected one free "
                    "dim; export the graph with dynamic axes"
                )
            step.outputs.append(replace(tensor, ragged=False, optional=False))
        own = {parameter.key: parameter for parameter in found.parameters}
        axis = own[f"axes.{IDS}"].value
        self._check_vocabulary(own.get(f"range.{IDS}"))
        step.outputs.append(Tensor(LENGTHS, DType.INT32, (1,)))
        if not self.single:
            found.inputs.append(Tensor(LENGTHS, DType.INT32, (1,)))
            why = "The tokenizer step pads the texts of a request to one length."
            found.add(f"axis_length.{axis}", LENGTHS, why)
        step.inputs.append(Tensor(Kind.TEXT.value, DType.BYTES, (1,)))
        if self._is_of_pairs():
            step.inputs.append(Tensor("text_pair", DType.BYTES, (1,)))
        self.inputs = list(step.inputs)
        limit = own[f"limit.{axis}"]
        tokens, why = self._max_tokens(int(limit.value))
        multiple = int(own[f"align.{axis}"].value) if f"align.{axis}" in own else 1
        if tokens < int(limit.value) and tokens % multiple == 0:
            reason = f"Texts are truncated to it; {limit.evidence[0].lower()}{limit.evidence[1:]}"
            lower = replace(limit, value=str(tokens), evidence=reason)
            found.parameters[found.parameters.index(limit)] = lower
        step.parameters = [Parameter("max_tokens", str(tokens), why), *self._cleaning()]
        truncation = self.export.fields(TOKENIZER).get("truncation") or {}
        side = self.export.fields("tokenizer_config.json").get(
            "truncation_side", str(truncation.get("direction", "right")).lower()
        )
        if side != "right":
            step.add("truncation", side, "From the tokenizer's files.")
        before.files = [self.export.folder / TOKENIZER]

    def _check_vocabulary(self, accepted: Parameter | None) -> None:
        vocabulary = read_tokenizer(self.export.folder / TOKENIZER).get_vocab(True)
        largest = max(vocabulary.values(), default=0)
        if accepted and largest > int(accepted.value.rpartition("..")[2]):
            raise ArtifactFault(
                f"{TOKENIZER}: found the id {largest}, expected at most "
                f"{accepted.value.rpartition('..')[2]}, the largest that the graph accepts; the "
                "tokenizer belongs to another model"
            )

    def _max_tokens(self, limit: int) -> tuple[int, str]:
        """Return the number of tokens at which texts are truncated, and why."""
        truncation = self.export.fields(TOKENIZER).get("truncation") or {}
        sentences = self.export.fields("sentence_bert_config.json")
        limits = {
            "max_seq_length": sentences.get("max_seq_length"),
            "model_max_length": self.export.fields("tokenizer_config.json").get("model_max_length"),
            "truncation in tokenizer.json": truncation.get("max_length"),
        }
        for source, tokens in limits.items():
            if tokens and tokens < _NO_LIMIT:
                return min(int(tokens), limit), f"{source}; the graph's limit is {limit}."
        return limit, "The graph's limit."

    def _cleaning(self) -> list[Parameter]:
        """Return the changes that sentence-transformers makes to texts before tokenization."""
        found = []
        prompts = self.export.fields("config_sentence_transformers.json")
        named = prompts.get("default_prompt_name")
        if named and prompts.get("prompts", {}).get(named):
            why = f"The default prompt '{named}' in config_sentence_transformers.json."
            found.append(Parameter("prompt", prompts["prompts"][named], why))
        if (self.export.folder / "modules.json").is_file():
            lower = self.export.fields("sentence_bert_config.json").get("do_lower_case")
            clean = "strip, lower" if lower else "strip"
            found.append(Parameter("clean", clean, "As sentence-transformers does."))
        return found

    def _is_of_pairs(self) -> bool:
        """Return whether the model compares two texts; add a question if this is a guess."""
        if not self.export.is_for("SequenceClassification"):
            return False
        if self.labels and any("entail" in name.lower() for name in self.labels.names):
            return True
        if not any(own.dims == (1,) for own in self.graph.outputs):
            return False
        keys = ("sentence_transformers", "sbert_ce_default_activation_function")
        if not any(key in self.export.config for key in keys):
            self.questions.append(
                Question(
                    "is the score that of a pair of texts, or of one text?",
                    "a pair, as in rerankers",
                    f"one text: delete text_pair here and in {self.name}{BEFORE}",
                )
            )
        return True

    def _media(self, before: Step) -> None:
        """Add the inputs and outputs of a step for images or samples."""
        kind, step = self.export.kind, before.configuration
        if len(self.graph.inputs) != 1:
            found = ", ".join(own.name for own in self.graph.inputs)
            raise ArtifactFault(f"found inputs {found}, expected one input of data")
        (target,) = self.graph.inputs
        before.files = [self.export.folder / PREPROCESSOR]
        if kind is Kind.IMAGE:
            step.inputs = [Tensor(kind.value, DType.BYTES, (1,))]
        else:
            step.inputs = [Tensor(kind.value, DType.FP32, target.dims, ragged=target.ragged)]
            step.questions.append(
                Question(
                    "which samples do clients send?",
                    "FP32 from -1 to 1",
                    f"INT16: replace TYPE_FP32 by TYPE_INT16 in this input, and in {self.name}",
                )
            )
        step.outputs = [replace(target, ragged=False)]
        self.inputs = [replace(own, ragged=False) for own in step.inputs]

    def _answer(self, after: Step) -> Tensor | None:
        """Add the outputs of the last step; return the graph's output that this step reads.

        Returns None if the graph's own outputs are the answer.
        """
        step, outputs = after.configuration, self.graph.outputs
        count = len(self.labels.names) if self.labels else 0
        named = next((own for own in outputs if own.label_filename), None)
        whole = [own for own in outputs if len(own.dims) == 1 and own.dims[0] != -1]
        if named or (self.export.is_for("Classification") and whole):
            source = named or whole[0]
            label = Tensor("label", DType.BYTES, (1,))
            step.outputs = [label] if named and source.dims != (1,) else []
            step.outputs.append(replace(source, name="score"))
            step.parameters.append(self._scores(source.dims[0]))
            return source
        each = [own for own in outputs if len(own.dims) == 2 and own.dims[0] == -1]
        if self.export.kind is Kind.AUDIO and self.export.is_for("CTC") and each:
            return self._characters(after, each[0])
        if self.export.kind is not Kind.TEXT:
            return None
        named_each = [own for own in each if own.dims[1] == count]
        if self.export.is_for("TokenClassification") and named_each:
            step.outputs = [
                Tensor("label", DType.BYTES, (-1,)),
                replace(named_each[0], name="score", dims=(-1,)),
            ]
            step.parameters.append(self._scores(count))
            self.steps[0].configuration.outputs.append(Tensor("token", DType.BYTES, (-1,)))
            return named_each[0]
        if self.export.is_for("") and not (self.export.folder / "modules.json").is_file():
            self.notes.append("The outputs are those of the graph: no rule is known for its task.")
            return None
        return self._embedding(step, whole, each)

    def _scores(self, count: int | str) -> Parameter:
        config = self.export.config
        problem = config.get("problem_type")
        activation = str(
            (config.get("sentence_transformers") or {}).get("activation_fn")
            or config.get("sbert_ce_default_activation_function")
            or ""
        )
        if activation.endswith(("Identity", "Sigmoid")):
            score = "none" if activation.endswith("Identity") else "sigmoid"
            return Parameter("scores", score, "The activation in config.json.")
        if problem == "regression":
            return Parameter("scores", "none", "problem_type in config.json.")
        is_sigmoid = problem == "multi_label_classification" or count == 1
        score = "sigmoid" if is_sigmoid else "softmax"
        return Parameter("scores", score, "As the pipelines of transformers do.")

    def _characters(self, after: Step, source: Tensor) -> Tensor | None:
        vocabulary = self.export.fields("vocab.json")
        if not vocabulary:
            return None
        if len(vocabulary) > int(source.dims[1]):
            raise ArtifactFault(
                f"vocab.json: found {len(vocabulary)} characters, expected at most "
                f"{source.dims[1]}, the size of output '{source.name}'"
            )
        fields = self.export.fields("tokenizer_config.json")
        blank = fields.get("pad_token") or "<pad>"
        blank = blank["content"] if isinstance(blank, Mapping) else blank
        if blank not in vocabulary or not all(type(own) is int for own in vocabulary.values()):
            raise ArtifactFault(
                f"vocab.json: found no number for '{blank}', the blank; expected one"
            )
        why = "From tokenizer_config.json, or the default of transformers."
        after.configuration.parameters = [
            Parameter("blank", blank, why),
            Parameter("delimiter", fields.get("word_delimiter_token") or "|", why),
        ]
        if fields.get("do_lower_case"):
            after.configuration.add("clean", "lower", why)
        after.configuration.outputs = [Tensor("text", DType.BYTES, (1,))]
        after.files = [self.export.folder / "vocab.json"]
        return source

    def _embedding(
        self, step: Configuration, whole: Sequence[Tensor], each: Sequence[Tensor]
    ) -> Tensor:
        pooling, normalize = self.export.pooling()
        # sentence-transformers does not compute pooler_output.
        pooled = [own for own in whole if own.name != "pooler_output" or not (each or pooling)]
        source = next((own for own in pooled if own.name == "sentence_embedding"), None)
        if source is None and pooled and not (each and pooling):
            source = pooled[0]
        if source is not None:
            step.notes.append(f"Output '{source.name}' of the graph has one vector for each text.")
        elif not each:
            raise ArtifactFault(
                f"found outputs {', '.join(own.name for own in self.graph.outputs)}, expected one "
                "with a vector for each text or token"
            )
        else:
            source = each[0]
            why = "From the configuration of the module Pooling."
            if not pooling:
                why = "A choice: no file describes the pooling."
                step.questions.append(
                    Question(
                        "how are the vectors of the tokens combined?",
                        "their mean",
                        "the vector of the first token",
                        (Parameter("pooling", "cls", ""),),
                    )
                )
            step.add("pooling", pooling or "mean", why)
        step.outputs = [replace(source, name="embedding", dims=source.dims[-1:])]
        if normalize:
            step.add("normalize", "true", "From modules.json.")
        return source

    def _connect(self, after: Step, source: Tensor) -> None:
        """Connect the last step with an output of the graph."""
        ragged = -1 in source.dims
        step = after.configuration
        step.inputs = [Tensor(VALUES, source.dtype, source.dims, ragged=ragged)]
        after.inputs[VALUES] = source.name
        if ragged and self.export.kind is Kind.TEXT:
            step.inputs.append(Tensor(LENGTHS, DType.INT32, (1,)))
            after.inputs[LENGTHS] = LENGTHS
        self.steps[1].outputs = {source.name: source.name}
        after.outputs = {own.name: own.name for own in step.outputs}
        self.steps.append(after)

    def write(self, repository: Path) -> dict[str, str]:
        """Write all models; return the text of each config.pbtxt by the name of its model.

        The graph and its model.py are in their folder already.
        """
        source = self.export.folder.resolve().name
        texts = {self.name: self._text()}
        for step in self.steps:
            texts[step.name] = step.configuration.text(source)
            version = repository / step.name / "1"
            version.mkdir(parents=True, exist_ok=True)
            if step.model:
                fields = zip(("title", "function", "module", "step"), step.model, strict=True)
                (version / "model.py").write_text(MODEL.format(**dict(fields)), encoding="utf-8")
            for file in step.files:
                shutil.copyfile(file, version / file.name)
        (repository / self.name / "1").mkdir(parents=True, exist_ok=True)
        outputs = {step.name: step.configuration.outputs for step in self.steps}
        for name, own in {self.name: self.outputs, **outputs}.items():
            if self.labels and any(one.label_filename or one.name == "label" for one in own):
                self.labels.write(repository / name)
        for name, text in texts.items():
            (repository / name / "config.pbtxt").write_text(text, encoding="utf-8")
        return texts

    def _text(self) -> str:
        own = Configuration(
            self.rows, self.inputs, self.outputs, notes=self.notes, questions=self.questions
        )
        text = own.text(self.export.folder.resolve().name).replace("dynamic_batching { }\n", "")
        lines = text.replace('backend: "python"', 'platform: "ensemble"').splitlines()
        lines += ["ensemble_scheduling {", "  step ["]
        for at, step in enumerate(self.steps):
            lines += ["    {", f'      model_name: "{step.name}"', "      model_version: -1"]
            for key, names in (("input_map", step.inputs), ("output_map", step.outputs)):
                lines += [
                    f'      {key} {{ key: "{name}" value: "{tensor}" }}'
                    for name, tensor in names.items()
                ]
            lines.append("    }" if at + 1 == len(self.steps) else "    },")
        return "\n".join([*lines, "  ]", "}"]) + "\n"
