"""Coverage-guided fuzzing of all that reads bytes of strangers, by Atheris (libFuzzer for Python).

    python -m campaign.fuzz                          a minute for each decoder
    python -m campaign.fuzz --only http --seconds 600
    python -m campaign.fuzz --only http --replay FILE

What was reached stays in .cache/fuzz and is where the next run begins. An input that makes a
decoder raise is reduced and written to tests/campaign/reduced/<decoder>, which the suite replays.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from campaign import ROOT
from campaign.reducing import keep, reduced

CORPUS = ROOT / ".cache" / "fuzz"
_SECONDS = 60
_HUNG_S = 10
"""One input; the slowest good one takes a few milliseconds."""
_MOST_MIB = 4_096
_DONE = re.compile(r"Done (\d+) runs")
_COVERED = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


def main() -> None:
    """Fuzz the decoders that are asked for, one process after another."""
    parser = argparse.ArgumentParser(
        prog="python -m campaign.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="DECODER", help="these decoders (all)")
    parser.add_argument("--seconds", type=int, default=_SECONDS, help=f"of each ({_SECONDS})")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer's dice (1)")
    parser.add_argument("--replay", type=Path, help="feed this file alone")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options, flags = parser.parse_known_args()
    if options.inside:
        _inside(options.inside, flags)
        return
    from campaign.decoders import TARGETS, seeds

    names = options.only or list(TARGETS)
    if options.replay:
        for name in names:
            TARGETS[name](options.replay.read_bytes())
        return
    print(f"{'decoder':<16}{'inputs':>10}{'edges':>8}{'kept':>7}  found")
    found = False
    for name in names:
        corpus = CORPUS / name
        corpus.mkdir(parents=True, exist_ok=True)
        for data in seeds(name):
            keep(name, data, CORPUS)
        failing = _fuzzed(name, corpus, options.seconds, options.seed)
        if failing is not None:
            found = True
            small = reduced(failing, _failing(TARGETS[name], failing))
            print(f"  {name}: {small!r}\n  kept as {keep(name, small).relative_to(ROOT)}")
    sys.exit(found)


def _fuzzed(name: str, corpus: Path, seconds: int, seed: int) -> bytes | None:
    """Fuzz one decoder in a process of its own, print its line; what made it fail, if any did."""
    crash = corpus.with_suffix(".crash")
    crash.unlink(missing_ok=True)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "campaign.fuzz", "--inside", name, str(corpus)),
            *(f"-max_total_time={seconds}", f"-seed={seed}", f"-exact_artifact_path={crash}"),
            *("-max_len=4096", f"-timeout={_HUNG_S}", f"-rss_limit_mb={_MOST_MIB}"),
            "-print_final_stats=1",
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    done, covered = _DONE.search(run.stderr), _COVERED.findall(run.stderr)
    failed = crash.exists()
    if not failed and done is None:
        story = "\n".join(line for line in run.stderr.splitlines() if not line.startswith("#"))
        raise SystemExit(f"{name}: the fuzzer ended with {run.returncode}\n{story[-3000:]}")
    edges, _, kept = covered[-1] if covered else ("?", "?", "?")
    runs = re.findall(r"stat::number_of_executed_units: (\d+)", run.stderr)
    count = int(runs[-1]) if runs else 0
    print(f"{name:<16}{count:>10,}{edges:>8}{kept:>7}  {'FAILS' if failed else '-'}", flush=True)
    return crash.read_bytes() if failed else None


def _failing(target: Callable[[bytes], None], failing: bytes) -> Callable[[bytes], bool]:
    """Whether an input makes it raise what `failing` did."""

    def raised(data: bytes) -> type[BaseException] | None:
        try:
            target(data)
        except Exception as error:
            return type(error)
        return None

    wanted = raised(failing)
    # One that only hangs, or only fails after others, is kept as it is.
    return lambda data: wanted is not None and raised(data) is wanted


def _inside(name: str, flags: list[str]) -> None:
    """Be the fuzzer of one decoder; does not return."""
    import atheris

    with atheris.instrument_imports(include=["reference_server", "ge_runtime", "hpack"]):
        from campaign.decoders import TARGETS
    atheris.Setup([sys.argv[0], *flags], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
