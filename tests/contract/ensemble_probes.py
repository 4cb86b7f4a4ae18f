"""Ensembles whose steps send many, late, partial or no responses, and their models."""

from __future__ import annotations

from contract.probes import IDENTITY, Probe

FLOW = "Flow"
GIVEN = "Given"


def tensor(kind: str, name: str, of: str = "FP32", more: str = "", dims: str = "1") -> str:
    """Return an input or output."""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{of} dims: [{dims}] {more} }}\n'


def flow(decoupled: bool) -> str:
    """Return the config of a model that answers as its request demands."""
    policy = "model_transaction_policy { decoupled: true }" if decoupled else ""
    return (
        "max_batch_size: 4\n"
        + tensor("input", "what", "STRING")
        + tensor("output", "Y")
        + tensor("output", "Z")
        + policy
    )


def maps(kind: str, tensors: str) -> str:
    """Return the maps of `A=a B=b`: the model's tensor A is the ensemble's tensor a."""
    pairs = (pair.split("=") for pair in tensors.split())
    return " ".join(f'{kind} {{ key: "{key}" value: "{value}" }}' for key, value in pairs)


def step(model: str, inputs: str, outputs: str) -> str:
    """Return a step of an ensemble."""
    return (
        f'step {{ model_name: "{model}" model_version: -1 {maps("input_map", inputs)} '
        f"{maps('output_map', outputs)} }}\n"
    )


def ensemble(
    inputs: str, outputs: str, *steps: str, more: str = "", batch: int = 4, dims: str = "1"
) -> Probe:
    """Return an ensemble with tensors such as `what:STRING X?`: FP32 by default, `?` optional."""
    written = ""
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for word in tensors.split():
            name, _, of = word.rstrip("?").partition(":")
            optional = "optional: true" if "?" in word else ""
            written += tensor(kind, name, of or "FP32", optional, dims)
    return Probe(
        f'platform: "ensemble"\nmax_batch_size: {batch}\n{written}'
        f"ensemble_scheduling {{ {''.join(steps)} }}\n{more}",
        None,
    )


def laid_out(taken: str, given: str, model: str, batch: int = 4) -> Probe:
    """Return an ensemble of one step, with these dims and optional reshapes of its tensors."""
    return Probe(
        f'platform: "ensemble"\nmax_batch_size: {batch}\n'
        f'input {{ name: "X" data_type: TYPE_FP32 {taken} }}\n'
        f'output {{ name: "O" data_type: TYPE_FP32 {given} }}\n'
        f"ensemble_scheduling {{ {step(model, 'X=X', 'Y=O')} }}\n",
        None,
    )


SQUARE = "reshape { shape: [2, 2] }"
COLUMN = "reshape { shape: [-1, 1] }"
SOURCE = step("source", "what=what", "Y=a Z=b")
SOURCE_Y = step("source", "what=what", "Y=a")
PART = step("part", "what=what", "Y=a Z=b")
PART_Y = step("part", "what=what", "Y=a")

SAME = step("same", "X=X", "Y=O")
SINGLE = step("single", "X=X", "Y=O")

PROBES = {
    "source": Probe(flow(decoupled=True), FLOW),
    "part": Probe(flow(decoupled=False), FLOW),
    "same": Probe("max_batch_size: 4\n" + tensor("input", "X") + tensor("output", "Y"), IDENTITY),
    "given": Probe(
        "max_batch_size: 4\n"
        + tensor("input", "A")
        + tensor("input", "B", more="optional: true")
        + tensor("input", "C", more="optional: true")
        + tensor("output", "told", "STRING"),
        GIVEN,
    ),
    "single": Probe(tensor("input", "X") + tensor("output", "Y"), IDENTITY),
    # Decoupled sources.
    "just_source": ensemble("what:STRING", "a b", SOURCE),
    "one_of_source": ensemble("what:STRING", "a", SOURCE_Y),
    "through": ensemble("what:STRING", "O", SOURCE_Y, step("same", "X=a", "Y=O")),
    "both_ways": ensemble(
        "what:STRING",
        "told:STRING",
        SOURCE,
        step("same", "X=a", "Y=c"),
        step("same", "X=b", "Y=d"),
        step("given", "A=c B=d", "told=told"),
    ),
    "with_input": ensemble(
        "what:STRING X", "told:STRING", SOURCE_Y, step("given", "A=a B=X", "told=told")
    ),
    "with_ordinary": ensemble(
        "what:STRING X",
        "told:STRING",
        SOURCE_Y,
        step("same", "X=X", "Y=c"),
        step("given", "A=a B=c", "told=told"),
    ),
    "beside": ensemble("what:STRING X", "a O", SOURCE_Y, step("same", "X=X", "Y=O")),
    "input_too": ensemble("what:STRING", "a what:STRING", SOURCE_Y),
    "raw_and_made": ensemble("what:STRING", "a O", SOURCE_Y, step("same", "X=a", "Y=O")),
    "two_branches": ensemble(
        "what:STRING", "O P", SOURCE, step("same", "X=a", "Y=O"), step("same", "X=b", "Y=P")
    ),
    "two_sources": ensemble(
        "what:STRING other:STRING",
        "a c",
        SOURCE_Y,
        step("source", "what=other", "Y=c"),
    ),
    "in_a_row": ensemble(
        "what:STRING",
        "O",
        SOURCE_Y,
        step("words", "A=a", "told=w"),
        step("source", "what=w", "Y=O"),
    ),
    "words": Probe(
        "max_batch_size: 4\n" + tensor("input", "A") + tensor("output", "told", "STRING"),
        "Repeats",
    ),
    "outer": ensemble(
        "what:STRING", "O", step("through", "what=what", "O=m"), step("same", "X=m", "Y=O")
    ),
    "faulty_branch": ensemble(
        "what:STRING other:STRING",
        "O told:STRING",
        SOURCE_Y,
        step("part", "what=other", "Y=q"),
        step("same", "X=a", "Y=O"),
        step("given", "A=q", "told=told"),
    ),
    "meeting": ensemble(
        "what:STRING other:STRING",
        "told:STRING",
        SOURCE_Y,
        step("source", "what=other", "Y=c"),
        step("given", "A=a B=c", "told=told"),
    ),
    "meeting_within": ensemble(
        "what:STRING other:STRING",
        "O",
        SOURCE_Y,
        step("source", "what=other", "Y=c"),
        step("given", "A=a B=c", "told=t"),
        step("source", "what=t", "Y=O"),
    ),
    # Steps that omit outputs.
    "parted": ensemble("what:STRING", "a b", PART),
    "parted_on": ensemble("what:STRING", "O", PART_Y, step("same", "X=a", "Y=O")),
    "parted_optional": ensemble(
        "what:STRING X", "told:STRING", PART, step("given", "A=X B=a C=b", "told=told")
    ),
    "parted_beside": ensemble(
        "what:STRING X", "O P", PART_Y, step("same", "X=a", "Y=O"), step("same", "X=X", "Y=P")
    ),
    "parted_join": ensemble(
        "what:STRING", "told:STRING", PART, step("given", "A=a B=b", "told=told")
    ),
    "parted_deep": ensemble(
        "what:STRING",
        "told:STRING",
        PART,
        step("same", "X=b", "Y=d"),
        step("given", "A=a B=d", "told=told"),
    ),
    # Optional inputs.
    "may_miss": ensemble("A B?", "told:STRING", step("given", "A=A B=B", "told=told")),
    "must_have": ensemble("A? B", "told:STRING", step("given", "A=A B=B", "told=told")),
    "unmapped": ensemble("A", "told:STRING", step("given", "A=A", "told=told")),
    "may_miss_outer": ensemble("A B?", "told:STRING", step("may_miss", "A=A B=B", "told=told")),
    "miss_all": ensemble("A? B", "O P", step("same", "X=A", "Y=O"), step("same", "X=B", "Y=P")),
    # Failures.
    "first_of_two": ensemble("what:STRING", "O a", PART, step("same", "X=b", "Y=O")),
    "outer_parted": ensemble("what:STRING", "O", step("parted_on", "what=what", "O=O")),
    # Ensembles that batch with models that do not, and the reverse.
    "too_wide": ensemble("X", "O", SINGLE),
    "unbatched": ensemble("X", "O", SINGLE, batch=0),
    "unbatched_over_batched": ensemble("X", "O", SAME, batch=0, dims="-1, 1"),
    "unbatched_fixed": ensemble("X", "O", SAME, batch=0, dims="2, 1"),
    "wide": Probe(
        tensor("input", "X", dims="-1, 2") + tensor("output", "Y", dims="-1, 2"), IDENTITY
    ),
    "free": Probe(tensor("input", "X", dims="-1") + tensor("output", "Y", dims="-1"), IDENTITY),
    "pairs": Probe("max_batch_size: 2\n" + tensor("input", "X") + tensor("output", "Y"), IDENTITY),
    "nobatch_same": ensemble("X", "O", SAME, batch=0),
    "nobatch_single_same": ensemble(
        "X", "O", step("single", "X=X", "Y=m"), step("same", "X=m", "Y=O"), batch=0
    ),
    "nobatch_same_single": ensemble(
        "X", "O", step("same", "X=X", "Y=m"), step("single", "X=m", "Y=O"), batch=0
    ),
    "batch_same_single": ensemble(
        "X", "O", step("same", "X=X", "Y=m"), step("single", "X=m", "Y=O")
    ),
    "batch_single_same": ensemble(
        "X", "O", step("single", "X=X", "Y=m"), step("same", "X=m", "Y=O")
    ),
    "batch_wide": ensemble("X", "O", step("wide", "X=X", "Y=O"), dims="2"),
    "batch_free": ensemble("X", "O", step("free", "X=X", "Y=O"), dims="-1"),
    "batch_pairs": ensemble("X", "O", step("pairs", "X=X", "Y=O")),
    "bad_shape": ensemble("X", "O", SAME, dims="3"),
    "bad_shape_single": ensemble("X", "O", SINGLE, dims="3"),
    "grand_meeting": ensemble(
        "what:STRING",
        "told:STRING",
        SOURCE_Y,
        step("words", "A=a", "told=w"),
        step("source", "what=w", "Y=c"),
        step("given", "A=a B=c", "told=told"),
    ),
    "claims_decoupled": ensemble(
        "X", "O", step("same", "X=X", "Y=O"), more="model_transaction_policy { decoupled: true }"
    ),
    "no_outputs": ensemble("X", "", step("same", "X=X", "Y=O")),
    "no_inputs": ensemble("", "", SAME, batch=0),
    "dangling": ensemble(
        "X", "O", step("given", "A=X B=nowhere", "told=t"), step("same", "X=X", "Y=O")
    ),
    "dangling2": ensemble("X", "O", step("given", "A=X", "told=t"), step("same", "X=X", "Y=O")),
    # Different layouts.
    "grid": Probe(
        "max_batch_size: 4\n"
        + tensor("input", "X", dims="-1, -1")
        + tensor("output", "Y", dims="-1, -1"),
        IDENTITY,
    ),
    "square_in": laid_out(f"dims: [4] {SQUARE}", "dims: [-1, 2]", "grid"),
    "square": laid_out(f"dims: [4] {SQUARE}", f"dims: [4] {SQUARE}", "grid"),
    "square_out": laid_out("dims: [-1, -1]", f"dims: [4] {SQUARE}", "grid"),
    "column": laid_out(f"dims: [-1] {COLUMN}", f"dims: [-1] {COLUMN}", "grid"),
    "column_out": laid_out("dims: [-1, -1]", f"dims: [-1] {COLUMN}", "grid"),
    "column_unbatched": laid_out(f"dims: [-1] {COLUMN}", f"dims: [-1] {COLUMN}", "wide_grid", 0),
    "wide_grid": Probe(
        tensor("input", "X", dims="-1, -1") + tensor("output", "Y", dims="-1, -1"), IDENTITY
    ),
    "bad_layout": laid_out(f"dims: [4] {SQUARE}", "dims: [2, 2]", "free", 0),
    "bad_layout_out": laid_out("dims: [-1]", f"dims: [4] {SQUARE}", "free", 0),
    "sends": Probe(flow(decoupled=False), "Sends"),
    "sent": ensemble("what:STRING", "a b", step("sends", "what=what", "Y=a Z=b")),
    "sent_on": ensemble(
        "what:STRING", "O", step("sends", "what=what", "Y=a"), step("same", "X=a", "Y=O")
    ),
}

_MIXED = "in ensemble {0}, step of model '{0}' receives inputs originated from different"
_MIXED_WITHIN = "in ensemble {0}, step of model '{1}' receives inputs originated from different"
_UNUSED = "ensemble tensor '{1}' is unused in ensemble '{0}'"

#: Models that are not loaded, with the text in both servers' logs.
REFUSED = {
    **{
        name: _MIXED.format(name)
        for name in (
            *("beside", "faulty_branch", "grand_meeting", "input_too", "meeting", "two_sources"),
            *("with_input", "with_ordinary"),
        )
    },
    **{
        name: _UNUSED.format(name, tensor)
        for name, tensor in {
            "dangling": "nowhere",
            "dangling2": "t",
            "no_outputs": "O",
        }.items()
    },
    "meeting_within": _MIXED_WITHIN.format("meeting_within", "given"),
    "no_inputs": "is unused in ensemble 'no_inputs'",
    "bad_shape": "ensemble tensor X: inconsistent shape: [-1,3] is inferred from model bad_shape "
    "while [-1,1] is inferred from model same",
    "bad_shape_single": "ensemble tensor X: inconsistent shape: [-1,3] is inferred from model "
    "bad_shape_single while [1] is inferred from model single",
    "bad_layout": "ensemble tensor X: inconsistent shape: [2,2] is inferred from model bad_layout "
    "while [-1] is inferred from model free",
    "bad_layout_out": "ensemble tensor O: inconsistent shape: [2,2] is inferred from model "
    "bad_layout_out while [-1] is inferred from model free",
    "batch_pairs": "ensemble batch_pairs allows maximum batch size 4, but it contains model pairs "
    "which only allows maximum batch size to be 2",
}
