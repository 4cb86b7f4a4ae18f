"""Counters of ensembles and of their models that requests to ensembles change.

A failure counts twice, unless at that moment another step is in progress, or a decoupled step that
has sent an error and has not ended. Gates keep steps in progress.
"""

from __future__ import annotations

import textwrap

from contract.count_play import Play
from contract.count_scripts import (
    ENDS,
    ERROR,
    FAILS_LAST,
    MISS,
    RAISES,
    SAYS,
    SENDS,
    Act,
    Script,
    answered,
    ask,
    broke,
    calls,
    executed,
    failed,
    hit,
    ran,
    source,
    stream,
    waiting,
)


def then(script: str) -> str:
    """Return a script whose response is the script of the second step."""
    return f"answer = say({script!r})"


def by_model(plain: str, other: str) -> str:
    """Return a script for an ensemble that passes it to two models."""
    return (
        "if '/other/' in pb_utils.get_model_dir():\n"
        f"{textwrap.indent(other, '  ')}\nelse:\n{textwrap.indent(plain, '  ')}\n"
    )


def one_fails(model: str, bad: str, rest: str = SAYS) -> Act:
    """Make one of two steps fail while the other runs, which later continues with `rest`."""

    def act(play: Play) -> None:
        play.send(model, by_model(play.gate("p") + rest, play.gate("o") + bad), "t")
        play.begun("p")
        play.begun("o")
        play.go("o")
        play.answered("t")
        play.go("p")

    return act


def twins_of_one(bad: str, good: str = SAYS) -> Act:
    """Execute both steps on one instance, so that the second step waits for the first."""

    def act(play: Play) -> None:
        play.send("twins_of_one", play.in_turn(play.gate("t") + bad, good), "t")
        play.begun("t")
        play.waits("plain", 1)
        play.go("t")
        play.answered("t")

    return act


def cancelled_chain(play: Play) -> None:
    play.send("chain", play.gate("c") + then(SAYS), "c")
    play.begun("c")
    play.cancel("c")
    play.go("c")


def cancelled_step(play: Play) -> None:
    play.send("over_batches", SAYS, "c", rows=1)
    play.waits("batches", 1)
    play.cancel("c")


def goes_on(model: str, *more: str) -> Act:
    """Make a step fail before its source ends; the source continues after the client's error."""

    def act(play: Play) -> None:
        play.stream(model, source(ERROR, end=play.gate("s") + source(*more)), "t")
        play.answered("t")
        play.go("s")

    return act


def source_fails(end: str) -> Act:
    """Make a source end with an error while the step after it runs."""

    def act(play: Play) -> None:
        held = play.gate("f") + SAYS
        play.stream("many_chain", source(held, end=play.gate("s") + end), "t")
        play.begun("f")
        play.begun("s")
        play.go("s")
        play.answered("t")
        play.go("f")

    return act


ROWS_OF_THREE = (
    "answer = pb_utils.InferenceResponse([pb_utils.Tensor('said', "
    "np.array([[b'x']] * 3, dtype=object))])"
)
# If steps end at the same moment as their source, the real server may never end the request.
LAST = f"sender.send(say({SAYS!r}), flags=FINAL)"
ONCE, TWICE = failed("OTHER"), failed("OTHER", 2)
BOTH_RAN = {"plain": ran(), "other": ran()}

CANCELLED = (
    "here the steps of a cancelled request are cancelled, too; the real server runs them to the end"
)
CHECKED_FIRST = (
    "the real server checks all steps that begin together before it sends any; here each is sent "
    "when it has been checked, so those before the refused one run"
)
FREED = (
    "the real server lets go of a request when its ensemble has failed, and reads the inputs of "
    "steps that have not begun from the memory that was freed"
)
OF_ITS_OWN = (
    "here each ensemble of a nest goes by its own steps; the real server counts a failure once in "
    "all of them if a step of the innermost is on its way"
)

SCRIPTS = [
    Script("a chain", ask("chain", then(SAYS)), {"chain": ran(), **BOTH_RAN}),
    Script(
        "a chain in a chain", ask("outer", then(SAYS)), {"outer": ran(), "chain": ran(), **BOTH_RAN}
    ),
    Script("side by side", ask("twins", SAYS), {"twins": ran(), **BOTH_RAN}),
    Script(
        "rows of an ensemble",
        ask("over_rows", ROWS_OF_THREE, rows=3),
        {"over_rows": ran(1, 3), "rows": ran(1, 3)},
    ),
    Script(
        "an ensemble over a cached model",
        ask("over_cached", f"{SAYS}#", f"{SAYS}#"),
        {"over_cached": ran(2), "cached": ran() + MISS + hit()},
    ),
    Script(
        "a model calls an ensemble",
        ask("other", calls("over_cached", f"{SAYS}##")),
        {"other": ran(), "over_cached": ran(), "cached": ran() + MISS},
    ),
    # One step after the other.
    Script("the first step errs", ask("chain", ERROR), {"chain": TWICE, "plain": ran()}),
    Script("the first step raises", ask("chain", RAISES), {"chain": TWICE, "plain": broke()}),
    Script("the second step errs", ask("chain", then(ERROR)), {"chain": TWICE, **BOTH_RAN}),
    Script(
        "the second step raises",
        ask("chain", then(RAISES)),
        {"chain": TWICE, "plain": ran(), "other": broke()},
    ),
    Script(
        "the second step is refused",
        ask("chain", "answer = say('x', 'y')"),
        {"chain": TWICE, "plain": ran()},
    ),
    Script(
        "the first step leaves out what the second needs",
        ask("chain", "answer = pb_utils.InferenceResponse([])"),
        {"chain": TWICE, "plain": ran()},
    ),
    Script(
        "a nest raises", ask("outer", RAISES), {"outer": TWICE, "chain": TWICE, "plain": broke()}
    ),
    Script(
        "a nest errs at last",
        ask("outer", then(ERROR)),
        {"outer": TWICE, "chain": TWICE, **BOTH_RAN},
    ),
    Script(
        "a model calls an ensemble that fails",
        ask("other", calls("chain", RAISES)),
        {"other": ran(), "chain": TWICE, "plain": broke()},
    ),
    # Queues.
    Script(
        "a step finds a full queue",
        waiting("batches", *[(SAYS, 1)] * 4, then=ask("over_batches", SAYS, rows=1)),
        {"over_batches": TWICE, "batches": ran() + answered(4) + executed(4)},
    ),
    Script(
        "a step waits for too long",
        waiting("batches", then=ask("over_batches", SAYS, rows=1, timeout=1)),
        {"over_batches": TWICE, "batches": ran() + failed("REJECTED")},
    ),
    Script(
        "cancelled while a step waits",
        waiting("batches", then=cancelled_step),
        {"over_batches": ran(), "batches": ran(2)},
        CANCELLED,
        {"over_batches": failed("CANCELED"), "batches": ran() + failed("CANCELED")},
    ),
    Script(
        "cancelled while a step runs",
        cancelled_chain,
        {"chain": ran(), **BOTH_RAN},
        CANCELLED,
        {"chain": failed("CANCELED"), "plain": ran()},
    ),
    # Steps side by side.
    Script("one errs while the other runs", one_fails("twins", ERROR), {"twins": ONCE, **BOTH_RAN}),
    Script(
        "one raises while the other runs",
        one_fails("twins", RAISES),
        {"twins": ONCE, "plain": ran(), "other": broke()},
    ),
    Script(
        "both raise",
        one_fails("twins", RAISES, RAISES),
        {"twins": ONCE, "plain": broke(), "other": broke()},
    ),
    Script(
        "one errs, the other waits for its instance",
        twins_of_one(ERROR),
        {"twins_of_one": ONCE, "plain": ran(2)},
        unsafe=FREED,
    ),
    Script(
        "one raises, the other waits for its instance",
        twins_of_one(RAISES),
        {"twins_of_one": ONCE, "plain": broke() + ran()},
        unsafe=FREED,
    ),
    Script(
        "the last of two errs",
        twins_of_one(SAYS, ERROR),
        {"twins_of_one": TWICE, "plain": ran(2)},
    ),
    Script(
        "the last of two raises",
        twins_of_one(SAYS, RAISES),
        {"twins_of_one": TWICE, "plain": ran() + broke()},
    ),
    Script("the first of two is refused", ask("pair_first", SAYS), {"pair_first": TWICE}),
    Script(
        "the second of two is refused",
        ask("pair_second", SAYS),
        {"pair_second": TWICE},
        CHECKED_FIRST,
        {"pair_second": ONCE, "other": ran()},
    ),
    Script(
        "one errs within a nest",
        one_fails("over_twins", ERROR),
        {"over_twins": ONCE, "twins": ONCE, **BOTH_RAN},
        OF_ITS_OWN,
        {"over_twins": TWICE, "twins": ONCE, **BOTH_RAN},
    ),
    # Decoupled steps.
    Script("no answer", stream("over_many", ENDS), {"over_many": ran(), "many": ran()}),
    Script(
        "three answers",
        stream("over_many", source("", "", "")),
        {"over_many": ran(), "many": ran()},
    ),
    Script(
        "the last is marked",
        stream("over_many", source("", end=SENDS)),
        {"over_many": ran(), "many": ran()},
    ),
    Script(
        "an error among answers",
        stream("over_many", source("", None, "", None)),
        {"over_many": ONCE, "many": ran()},
    ),
    Script(
        "an error ends all", stream("over_many", FAILS_LAST), {"over_many": TWICE, "many": ran()}
    ),
    Script("a source raises", stream("over_many", RAISES), {"over_many": TWICE, "many": broke()}),
    Script(
        "an answer goes through the next step",
        stream("many_chain", LAST),
        {"many_chain": ran(), "many": ran(), "other": ran()},
    ),
    Script(
        "no answer for the next step",
        stream("many_chain", ENDS),
        {"many_chain": ran(), "many": ran()},
    ),
    Script(
        "a nest of decoupled ones",
        stream("many_outer", LAST),
        {"many_outer": ran(), "many_chain": ran(), "many": ran(), "other": ran()},
    ),
    Script(
        "a step errs, its source goes on",
        goes_on("many_chain", SAYS),
        {"many_chain": ONCE, "many": ran(), "other": ran()},
    ),
    Script(
        "a step errs, its source has ended",
        stream("many_chain", source(end=f"sender.send(say({ERROR!r}), flags=FINAL)")),
        {"many_chain": TWICE, "many": ran(), "other": ran()},
    ),
    Script(
        "a step is refused, its source has ended",
        stream("many_chain", "sender.send(say('a', 'b'), flags=FINAL)"),
        {"many_chain": TWICE, "many": ran()},
    ),
    Script(
        "a source errs while a step runs",
        source_fails(source(None)),
        {"many_chain": ONCE, "many": ran(), "other": ran()},
    ),
    Script(
        "a source ends in an error while a step runs",
        source_fails(FAILS_LAST),
        {"many_chain": ONCE, "many": ran(), "other": ran()},
    ),
    Script(
        "a source within a nest raises",
        stream("many_outer", RAISES),
        {"many_outer": TWICE, "many_chain": TWICE, "many": broke()},
    ),
    Script(
        "a source within a nest ends in an error",
        stream("many_outer", FAILS_LAST),
        {"many_outer": TWICE, "many_chain": TWICE, "many": ran()},
    ),
    Script(
        "a source within a nest goes on",
        goes_on("many_outer"),
        {"many_outer": ONCE, "many_chain": ONCE, "many": ran(), "other": ran()},
        OF_ITS_OWN,
        {"many_outer": TWICE, "many_chain": ONCE, "many": ran(), "other": ran()},
    ),
]
