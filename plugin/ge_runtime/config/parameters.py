"""The parameters of a model: how they are declared, looked up and shown.

`parameter_table` declares each parameter once, with its reader, default and help. From this table
come the values, the errors for unknown parameters, and the tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ge_runtime.config.readers import Reader
from ge_runtime.config.values import ConfigErrors, did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A parameter of the whole model."""

    key: str
    read: Reader[T]
    default: T
    help: str
    """The meaning of the value, in Markdown."""
    shown: str = ""
    """The default, in Markdown."""


@dataclass(frozen=True)
class Family(Generic[T]):
    """Parameters `<name>.<target>`, each about one tensor, axis or option."""

    pattern: str
    """The key as documentation shows it, e.g. "limit.<axis>"."""
    read: Reader[T]
    help: str
    shown: str = ""

    @property
    def name(self) -> str:
        """The part of the key before the first dot."""
        return self.pattern.partition(".")[0]


class Parameters:
    """The parameters of one model. For one thread."""

    def __init__(
        self,
        settings: Mapping[str, str],
        families: Mapping[str, Mapping[str, str]],
        errors: ConfigErrors,
    ) -> None:
        """Keep parameters as text.

        Args:
            settings: Key to text.
            families: Name of a family to its targets and their texts.
            errors: Receives the errors in values when they are read.
        """
        self._settings = settings
        self._families = families
        self.errors = errors

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        settings: Sequence[Setting[Any]],
        families: Sequence[Family[Any]],
        errors: ConfigErrors,
    ) -> Parameters:
        """Read the parameters in Triton's JSON form, all of which the tables must declare.

        Unknown keys and values that are not strings become errors.
        """
        keys = {setting.key for setting in settings}
        given: dict[str, str] = {}
        found: dict[str, dict[str, str]] = {family.name: {} for family in families}
        entries = model_config.get("parameters") or {}
        if not isinstance(entries, Mapping):
            errors.add("parameters", repr(entries), "keys with string values")
            entries = {}
        # Sorted, because Triton passes them in the order of a hash table: neither errors nor
        # anything else may change from one start to the next.
        for key, entry in sorted(entries.items()):
            if str(key).isupper():  # the server's own, e.g. EXECUTION_ENV_PATH
                continue
            family, _, target = str(key).partition(".")
            value = entry.get("string_value") if isinstance(entry, Mapping) else None
            if key not in keys and not (family in found and target):
                known = ", ".join((*(own.key for own in settings), *(o.pattern for o in families)))
                hint = did_you_mean(family, _suggestions(settings, families, target))
                errors.add(f"parameter '{key}'", "no such parameter", f"one of: {known}{hint}")
            elif not isinstance(value, str):
                errors.add(f"parameter '{key}'", repr(entry), 'value { string_value: "..." }')
            elif key in keys:
                given[key] = value.strip()
            else:
                found[family][target] = value.strip()
        return cls(given, found, errors)

    def text(self, setting: Setting[Any]) -> str | None:
        """Return the text of a setting, or None if it is not given."""
        return self._settings.get(setting.key)

    def get(self, setting: Setting[T]) -> T:
        """Read a setting; its default if it is not given. Call once, as errors are added."""
        given = self._settings.get(setting.key)
        if given is None:
            return setting.default
        return setting.read(f"parameter '{setting.key}'", given, self.errors)

    def texts(self, family: Family[Any]) -> Mapping[str, str]:
        """Return the targets of a family with their texts."""
        return self._families[family.name]

    def entries(
        self, family: Family[T], kind: str = "", known: Collection[str] | None = None
    ) -> Iterator[tuple[str, str, T]]:
        """Read a family. Call once, as errors are added.

        Args:
            family: The family.
            kind: What its targets are, e.g. "axis".
            known: All possible targets; an error is added for any other, which is skipped. None
                accepts every target.

        Yields:
            The name of the parameter for errors, its target and its value.
        """
        for target, given in self._families[family.name].items():
            field = f"parameter '{family.name}.{target}'"
            if known is not None and target not in known:
                self.errors.add_unknown(field, kind, target, known)
            else:
                yield field, target, family.read(field, given, self.errors)


def _suggestions(
    settings: Iterable[Setting[Any]], families: Iterable[Family[Any]], target: str
) -> dict[str, str]:
    """Return what to suggest for each known first part of a key with this target."""
    suggestions = {setting.key: setting.key for setting in settings}
    for family in families:
        suggestions[family.name] = f"{family.name}.{target}" if target else family.pattern
    return suggestions


def markdown_table(entries: Iterable[Setting[Any] | Family[Any]]) -> str:
    """Render parameters as a Markdown table of key, value and default."""
    lines = ["| Key | Value | Default |", "| --- | --- | --- |"]
    for entry in entries:
        key = entry.key if isinstance(entry, Setting) else entry.pattern
        lines.append(f"| `{key}` | {entry.help} | {entry.shown} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"
