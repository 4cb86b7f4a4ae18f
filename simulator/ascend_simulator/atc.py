r"""The command `atc`: compiles an ONNX file to a simulated .om, with ATC's flags, limits and codes.

    atc --framework=5 --model=m.onnx --output=m --soc_version=AscendSimulator \
        --input_format=ND --input_shape="ids:-1,-1" --dynamic_dims="1,64;8,64;8,128"

The file is written atomically. The exit status is 0 on success, 1 if compiling fails (stderr then
has a line `CODE: error`), and 2 if the settings of the simulator are invalid.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ascend_simulator import settings
from ascend_simulator.compiler import flags
from ascend_simulator.compiler.build import compile_model
from ascend_simulator.compiler.flags import CompileFault
from ascend_simulator.compiler.single_operators import compile_operators


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    if set(arguments) & {"--help", "-h"}:
        print(flags.usage())
        return 0
    print("ATC start working now, please wait for a moment. (Ascend simulator)", flush=True)
    try:
        given = flags.split(arguments)
        targets = compile_operators(given) if given.get("singleop") else [run(arguments)]
    except CompileFault as fault:
        print("ATC run failed (Ascend simulator); try atc --help", file=sys.stderr)
        print(f"{fault.code}: {fault}", file=sys.stderr)
        return 1
    except ValueError as error:  # the simulator's settings are invalid
        print(f"ascend_simulator: {error}", file=sys.stderr)
        return 2
    for target in targets:
        print(f"{target}: simulated model, {target.stat().st_size:,} bytes")
    print("ATC run success, welcome to the next use.")
    return 0


def run(arguments: Sequence[str]) -> Path:
    """Compile with these command-line arguments; return the path of the written file.

    Raises CompileFault, and ValueError for invalid settings in the environment.
    """
    simulated = settings.from_environment()
    options = flags.read(arguments, simulated.soc)
    target = Path(options.output + ".om")
    if not target.parent.is_dir():
        raise CompileFault(
            "E10001", f"--output={options.output}: folder {target.parent} does not exist"
        )
    data = compile_model(options)
    time.sleep(simulated.compile_ms / 1000)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_bytes(data)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CompileFault("E10001", f"--output={options.output}: {error}") from error
    return target


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
