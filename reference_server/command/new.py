"""`reference-server new NAME` writes a model and its test; `demo` serves such a model."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

_REPOSITORY = "model_repository"
#: Names that need no quotes in a shell, in Python and in a URL.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def main(arguments: Sequence[str]) -> int:
    """Write a model. Exits with code 2 if the name is invalid or the model exists."""
    parser = argparse.ArgumentParser(
        prog="reference-server new",
        description=f"Write a Python model to {_REPOSITORY}/NAME, and its test to test_NAME.py.",
    )
    parser.add_argument("name", metavar="NAME", help="the name of the model")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="DIR", help="the project's folder (.)"
    )
    given = parser.parse_args(arguments)
    try:
        files = write(given.name, given.into)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print("Wrote", ", ".join(str(file) for file in files))
    print(f"Test:   pytest {files[-1]}")
    print(f"Serve:  reference-server --model-repository={given.into / _REPOSITORY}")
    print(f"Ask:    {request(given.name)}")
    return 0


def demo(arguments: Sequence[str]) -> int:
    """Serve the model `squares` on 127.0.0.1, with further options of the server."""
    from reference_server.command import cli

    if {"-h", "--help"} & set(arguments):
        print(
            "usage: reference-server demo [OPTIONS]\n\n"
            "Serve a small model from a temporary folder on the address 127.0.0.1. OPTIONS are "
            "those of reference-server."
        )
        return 0
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        write("squares", Path(folder))
        print(f"Ask:    {request('squares')}", flush=True)
        addresses = [f"--{port}-address=127.0.0.1" for port in ("http", "grpc", "metrics")]
        repository = f"--model-repository={folder}/{_REPOSITORY}"
        return cli.main([repository, *addresses, *arguments])


def write(name: str, folder: Path) -> tuple[Path, ...]:
    """Write the files of the model `name` below `folder`. Return their paths, the test last.

    Raises:
        ValueError: The name has characters that would need quotes.
        FileExistsError: One of the files exists; nothing was written.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"model name {name!r}: expected letters, digits, '_', '.' and '-', and a letter or '_' "
            "at the beginning"
        )
    model = folder / _REPOSITORY / name
    test = folder / f"test_{re.sub('[.-]', '_', name)}.py"
    targets = {
        "config.pbtxt": model / "config.pbtxt",
        "model.py": model / "1" / "model.py",
        "test_model.py": test,
    }
    for target in targets.values():
        if target.exists():
            raise FileExistsError(f"{target} exists; choose another name, or remove the file")
    for source, target in targets.items():
        text = resources.files(__package__).joinpath("starter", source).read_text("utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("NAME", name), encoding="utf-8")
    return tuple(targets.values())


def request(name: str) -> str:
    """Return a curl command that sends a request to the model `name`."""
    return f"""curl -s localhost:8000/v2/models/{name}/generate -d '{{"X": [1, 2, 3]}}'"""
