"""Version, requirements and distributions of the six packages.

python -m tools.release version            print the version, if all files agree
python -m tools.release version 0.2.0      write a version to all files, the date to CHANGELOG.md
python -m tools.release table              print the requirements as a table for CONTRIBUTING.md
python -m tools.release build              wheels and source archives in dist/, checked by twine
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
#: The folders of the distributions, in the order in which they are built.
PROJECTS = (
    ROOT,
    *(ROOT / name for name in ("plugin", "simulator", "replay", "in_process", "check")),
)
#: The project without a source archive: its build reads folders of other projects.
_WHEEL_ONLY = "check"
CHANGELOG = ROOT / "CHANGELOG.md"
#: Files with the version, and a pattern: the first group precedes the version.
_PLACES = (
    *(
        (project / "pyproject.toml", re.compile(r'^(version = ")([^"]+)', re.M))
        for project in PROJECTS
    ),
    (ROOT / "in_process" / "pyproject.toml", re.compile(r'("triton-reference-server==)([^"]+)')),
    (ROOT / "reference_server" / "__init__.py", re.compile(r'^(__version__ = ")([^"]+)', re.M)),
    (
        ROOT / "deploy" / "kubernetes" / "reference" / "kustomization.yaml",
        re.compile(r'(newTag: ")([^"]+)'),
    ),
    (ROOT / "docs" / "deployment.md", re.compile(r"(--tag reference-server:)(\S+)")),
    (CHANGELOG, re.compile(r"^(## )(\S+)", re.M)),
)
_UNRELEASED = re.compile(r"^## (\S+) - \S+$", re.M)
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
#: Files that are not shipped: caches and results of builds.
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "*.egg-info", "*.so", "build", "dist", "__pycache__", "model_repository"
)


def versions() -> dict[Path, str]:
    """Return the version in each file. Raises ValueError if a file has none."""
    found = {}
    for file, pattern in _PLACES:
        match = pattern.search(file.read_text(encoding="utf-8"))
        if match is None:
            raise ValueError(f"{file}: found no version, expected {pattern.pattern}")
        found[file] = match[2]
    return found


def set_version(new: str, day: datetime.date) -> None:
    """Write version `new` to all files, and `day` to the newest entry of the changelog."""
    if not _VERSION.fullmatch(new):
        raise ValueError(f"found version '{new}', expected a version such as 0.2.0 or 0.2.0rc1")
    for file, pattern in _PLACES:
        text = pattern.sub(lambda match: match[1] + new, file.read_text(encoding="utf-8"), count=1)
        if file == CHANGELOG:
            text = _UNRELEASED.sub(f"## {new} - {day.isoformat()}", text, count=1)
        file.write_text(text, encoding="utf-8")


def table() -> str:
    """Return a Markdown table of the requirements that each pyproject.toml declares."""
    lines = ["| Distribution | Python | Needs | Extras |", "| --- | --- | --- | --- |"]
    for project in PROJECTS:
        declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        needs = ", ".join(f"`{_plain(need)}`" for need in declared["dependencies"])
        extras = ", ".join(f"`{name}`" for name in declared.get("optional-dependencies", {}))
        row = (f"`{declared['name']}`", declared["requires-python"], needs, extras or "none")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _plain(need: str) -> str:
    return need.partition(";")[0].strip()


def build(target: Path, scratch: Path) -> list[Path]:
    """Build all distributions into `target`, from a copy in `scratch`, and check them with twine.

    Raises CalledProcessError.
    """
    for project in copied(scratch):
        kinds = ["--wheel"] if project.name == _WHEEL_ONLY else []
        _run("build", *kinds, "--outdir", str(target), str(project))
    made = sorted(target.iterdir())
    _run("twine", "check", "--strict", *map(str, made))
    return made


def copied(target: Path) -> list[Path]:
    """Copy the sources to `target`, and return the projects in the copy.

    setuptools leaves a folder build/ beside the sources, and the next wheel would include its
    files, even of deleted modules.
    """
    shutil.copytree(ROOT, target, ignore=_LEFT_OUT)
    return [target / project.relative_to(ROOT) for project in PROJECTS]


def _run(module: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], check=True)


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    version = commands.add_parser("version", help="show the version, or write a new version")
    version.add_argument("new", nargs="?")
    commands.add_parser("table", help="show what each distribution needs")
    commands.add_parser("build", help="build all distributions into dist/")
    given = parser.parse_args()
    if given.command == "table":
        sys.stdout.write(table())
    elif given.command == "build":
        return _build()
    elif given.new:
        try:
            set_version(given.new, datetime.date.today())
        except ValueError as error:
            parser.error(str(error))
    else:
        found = versions()
        for file, said in found.items():
            print(f"{said:12} {file.relative_to(ROOT)}")
        return int(len(set(found.values())) != 1)
    return 0


def _build() -> int:
    target, scratch = ROOT / "dist", ROOT / "build" / "release"
    for folder in (target, scratch):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        made = build(target, scratch)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    for file in made:
        print(f"{file.stat().st_size:>10,}  {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
