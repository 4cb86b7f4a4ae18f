"""Coverage-guided fuzzing of all decoders with Atheris (libFuzzer for Python).

    python -m benchmarks.attack.fuzz                          a minute for each decoder
    python -m benchmarks.attack.fuzz --only http --seconds 600
    python -m benchmarks.attack.fuzz --only http --replay FILE

The corpus stays in .cache/fuzz for the next run. An input that makes a decoder fail is reduced
and saved in tests/campaign/reduced/<decoder>, which the tests replay.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.attack import ROOT, keep, reduced

CORPUS = ROOT / ".cache" / "fuzz"
_SECONDS = 60
_HUNG_S = 10
"""Time limit of one input; the slowest valid input takes a few milliseconds."""
_MOST_MIB = 4_096
_DONE = re.compile(r"Done (\d+) runs")
_COVERED = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


def main() -> None:
    """Run the command: fuzz the decoders one after another."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    seconds = f"time for each decoder ({_SECONDS})"
    parser.add_argument("--only", nargs="+", metavar="DECODER", help="decoders to fuzz (all)")
    parser.add_argument("--seconds", type=int, default=_SECONDS, help=seconds)
    parser.add_argument("--seed", type=int, default=1, help="seed of libFuzzer (1)")
    parser.add_argument("--replay", type=Path, help="run the decoders on this file only")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options, flags = parser.parse_known_args()
    if options.inside:
        _inside(options.inside, flags)
        return
    from benchmarks.attack.decoders import TARGETS, seeds

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
    """Fuzz one decoder in a separate process; return the input that made it fail, or None."""
    crash = corpus.with_suffix(".crash")
    crash.unlink(missing_ok=True)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.attack.fuzz",
            "--inside",
            name,
            str(corpus),
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-exact_artifact_path={crash}",
            "-max_len=4096",
            f"-timeout={_HUNG_S}",
            f"-rss_limit_mb={_MOST_MIB}",
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
        raise SystemExit(f"{name}: the fuzzer exited with {run.returncode}\n{story[-3000:]}")
    edges, _, kept = covered[-1] if covered else ("?", "?", "?")
    runs = re.findall(r"stat::number_of_executed_units: (\d+)", run.stderr)
    count = int(runs[-1]) if runs else 0
    print(f"{name:<16}{count:>10,}{edges:>8}{kept:>7}  {'FAILS' if failed else '-'}", flush=True)
    return crash.read_bytes() if failed else None


def _failing(target: Callable[[bytes], None], failing: bytes) -> Callable[[bytes], bool]:
    """Return a check whether an input raises the same exception type as `failing`."""

    def raised(data: bytes) -> type[BaseException] | None:
        try:
            target(data)
        except Exception as error:
            return type(error)
        return None

    wanted = raised(failing)
    # An input that hangs, or fails only after other inputs, is not reduced.
    return lambda data: wanted is not None and raised(data) is wanted


def _inside(name: str, flags: list[str]) -> None:
    """Run the fuzzer in this process. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["reference_server", "ge_runtime", "hpack"]):
        from benchmarks.attack.decoders import TARGETS
    atheris.Setup([sys.argv[0], *flags], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
