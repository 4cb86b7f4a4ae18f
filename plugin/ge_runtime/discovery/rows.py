"""Experiments that find the dims that count the rows of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ge_runtime.discovery.states import named_pairs
from ge_runtime.discovery.study import Rows, Study, Undecided, first_sizes


def find_rows(study: Study) -> tuple[dict[str, int], Rows]:
    """Find sizes at which the graph executes, and the dims that count rows.

    Raises:
        Undecided: The graph failed at all sizes that were tried.
    """
    first: tuple[dict[str, int], Rows] | None = None
    for guessed in _row_symbols(study):
        sizes = first_sizes(study, guessed)
        if sizes is None:
            continue
        rows = _find_row_dims(study, sizes, guessed) if guessed else _fixed_rows(study, sizes)
        # If outputs do not depend on these rows, other symbols are tried first.
        if first is None or (rows.batched and not first[1].batched):
            first = sizes, rows
        if rows.batched and None not in rows.outputs.values():
            return sizes, rows
    if first is not None:
        return first
    failed = study.graph.last_error
    sizes = first_sizes(study, ())
    if sizes is None:
        raise Undecided(
            "found no sizes at which the graph executes with invented inputs; "
            f"{study.graph.engine}'s text: {failed}. If it needs meaningful values, give "
            "an example with --sample FILE"
        )
    return sizes, Rows(evidence=f"Rows: none; the graph fails with one row: {failed}")


def _row_symbols(study: Study) -> list[tuple[str, ...]]:
    """Return the symbols that may count rows, the likeliest first.

    The likeliest are the first dims of the inputs. Next, the only symbols of inputs that begin with
    a fixed size are added. Then follows each symbol that all inputs have, at any place.
    """
    ports = [port for port in study.graph.inputs if port.symbols]
    firsts = (port.dims[0] for port in ports)
    likeliest = tuple(dict.fromkeys(dim for dim in firsts if isinstance(dim, str)))
    inner = (
        port.symbols[0]
        for port in ports
        if not isinstance(port.dims[0], str) and len(port.symbols) == 1
    )
    common = [
        (symbol,)
        for port in ports[:1]
        for symbol in port.symbols
        if all(symbol in other.symbols for other in ports)
    ]
    found = [likeliest, tuple(dict.fromkeys((*likeliest, *inner))), *common]
    return list(dict.fromkeys(found)) if likeliest else [()]


def _find_row_dims(study: Study, sizes: Mapping[str, int], guessed: Sequence[str]) -> Rows:
    """Find by executions with more rows which dims of the outputs count the rows."""
    inputs = {
        port.name: next((at for at, dim in enumerate(port.dims) if dim in guessed), None)
        for port in study.graph.inputs
        if port.name not in study.constants
    }
    if len(guessed) > 1 and study.works(
        {**sizes, **{symbol: 2 + at for at, symbol in enumerate(guessed)}}
    ):
        names = ", ".join(guessed)
        return Rows(evidence=f"Rows: none; the first dims ({names}) may differ from each other.")
    one = study.output_shapes(sizes) or {}
    for count in (2, 3):
        more = study.output_shapes({**sizes, **dict.fromkeys(guessed, count)})
        if more is None:
            continue
        outputs = {name: _multiplied(one[name], more[name], count) for name in one}
        if all(at is None for at in outputs.values()):
            return Rows(
                evidence="Rows: none; no dim of an output depends on the inputs' first dims."
            )
        shared = [
            (state, result)
            for state, result in named_pairs(study.graph)
            if inputs.get(state) is None or outputs[result] is None
        ]
        if shared:
            state, result = shared[0]
            return Rows(
                evidence=f"Rows: none; '{state}' and '{result}' have one value for all rows."
            )
        evidence = f"Rows: with {count} rows in inputs, outputs have {count} times as many."
        return Rows(tuple(guessed), inputs, outputs, evidence=evidence)
    if any(shape[:1] != (1,) for shape in one.values()):
        return Rows(evidence="Rows: none; the graph fails with 2 rows and with 3.")
    return Rows(
        tuple(guessed),
        inputs,
        dict.fromkeys(one, 0),
        fixed=1,
        evidence="Rows: the graph fails with 2 rows and with 3; each is executed alone. "
        f"{study.graph.engine}'s text: {study.graph.last_error}",
    )


def _fixed_rows(study: Study, sizes: Mapping[str, int]) -> Rows:
    """Return the rows of a graph whose inputs begin with fixed sizes."""
    ports = [port for port in study.graph.inputs if port.name not in study.constants]
    one = study.output_shapes(sizes) or {}
    firsts = {port.dims[0] for port in ports if port.dims}
    results = {shape[0] if shape else 0 for shape in one.values()}
    if len(firsts) == 1 and firsts == results and all(port.dims for port in ports):
        (count,) = firsts
        return Rows(
            (),
            {port.name: 0 for port in ports},
            dict.fromkeys(one, 0),
            fixed=int(count),
            evidence=f"Rows: the graph has a fixed batch of {count}.",
        )
    return Rows(evidence="Rows: none; the first dims are not one batch.")


def _multiplied(few: Sequence[int], many: Sequence[int], count: int) -> int | None:
    """Return the dim that is `count` times as large in the second shape."""
    sizes = zip(few, many, strict=False)
    return next((at for at, (one, more) in enumerate(sizes) if more == count * one), None)
