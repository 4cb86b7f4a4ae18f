"""Replaces the placeholders of configuration templates with values from options and scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from reference_server.checking.layout import entries

#: `${name}`, `$NAME` and `{{ name }}`; the last form only if no letter, digit or brace precedes it.
PLACEHOLDER = re.compile(
    r"\$\{(?P<dollar>\w+)[^}\n]*\}|(?<!\$)\$(?P<bare>[A-Z][A-Z0-9_]+)"
    r"|(?<![{\w])\{\{\s*(?P<braces>\w+)\s*\}\}(?!\})"
)
_FIELD = re.compile(r"(\w+)\s*:\s*[\[\s\"'\d,-]*$")
_FILL = re.compile(r"fill_template\.py\s+(?:-\w+\s+|--[\w-]+\s+)*(?P<file>\S+)\s+(?P<pairs>\S+)")
_ASSIGNED = re.compile(r"^\s*(?:export\s+|ENV\s+|ARG\s+)?([A-Za-z_]\w*)=[\"']?([^\s\"'$]+)", re.M)
_VARIABLE = re.compile(r"\$\{?(\w+)")
_SCRIPTS = (".sh", ".md", ".py", ".yml", ".yaml", ".bash", ".env", ".json")
_LARGEST_SCRIPT = 1 << 20
#: Proposed values, by field of the configuration.
_PROPOSALS = {
    "max_batch_size": "8",
    "count": "1",
    "kind": "KIND_CPU",
    "data_type": "TYPE_FP32",
    "dims": "-1",
    "decoupled": "false",
    "platform": "tensorrt_plan",
    "name": "model",
}


class Values:
    """The values of placeholders: given by `--set`, found in scripts, or proposed."""

    def __init__(self, clone: Path, given: Mapping[str, str]) -> None:
        """Read the scripts of `clone`."""
        self._given = given
        self._found: dict[tuple[str, str], tuple[str, str]] = {}
        self._proposed: dict[str, str] = {}
        self._variables: dict[str, tuple[str, str]] = {}
        for file in scripts(clone):
            text = file.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
            variables = dict(_ASSIGNED.findall(text))
            for name, value in variables.items():
                self._variables.setdefault(name, (value, file.name))
            for match in _FILL.finditer(text):
                model = Path(match["file"]).parent.name
                for pair in match["pairs"].strip("\"'").split(","):
                    name, _, value = pair.partition(":")
                    for variable in _VARIABLE.findall(value):
                        if variable in variables:
                            value = value.replace(f"${{{variable}}}", variables[variable])
                            value = value.replace(f"${variable}", variables[variable])
                    if value and "$" not in value:
                        self._found.setdefault((model, name), (value, file.name))

    def fill(self, text: str, model: str) -> tuple[str, list[str]]:
        """Return a configuration with values for its placeholders, and a note for each value."""
        notes: dict[str, None] = {}

        def value(match: re.Match[str]) -> str:
            name = match["dollar"] or match["bare"] or match["braces"]
            if name in self._given:
                found, source = self._given[name], "--set"
            elif (model, name) in self._found:
                found, source = self._found[model, name]
            elif name in self._variables and not match["braces"]:  # as envsubst does
                found, source = self._variables[name]
            else:
                found = self._proposed.get(name, "")
                if not found:
                    field = _FIELD.search(text[: match.start()])
                    found = _proposal(name, field[1] if field else "", text, match)
                    self._proposed[name] = found
                source = f"proposal; --set {name}=VALUE changes it"
            notes[f"placeholder {name}: '{found}' ({source})"] = None
            return found

        return PLACEHOLDER.sub(value, text), list(notes)


def _proposal(name: str, field: str, text: str, match: re.Match[str]) -> str:
    if field == "backend":
        return "tensorrtllm" if "triton" in name else "python"
    if field in _PROPOSALS:
        return _PROPOSALS[field]
    if text[: match.start()].count('"') % 2:  # within a string
        return "1" if re.search("size|count|num|max|length|port", name) else ""
    return "false" if re.search("enable|mode|is_|use_|decoupled", name + field) else "1"


def scripts(clone: Path) -> Iterator[Path]:
    """Yield the scripts and texts of a clone, at most three folders deep."""
    level = [clone]
    for _ in range(4):
        files = [path for folder in level for path in entries(folder)]
        for path in files:
            is_script = path.suffix in _SCRIPTS or path.name.startswith(("Makefile", "Dockerfile"))
            if is_script and path.is_file() and path.stat().st_size <= _LARGEST_SCRIPT:
                yield path
        level = [path for path in files if path.is_dir() and not path.name.startswith(".")]
