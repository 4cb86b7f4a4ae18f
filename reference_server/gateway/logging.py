"""What is logged, as clients read and change it while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from reference_server.core.errors import invalid_arg, unsupported
from reference_server.options import LogOptions

Value = bool | int | str
#: How a flag is changed, by the name of the setting.
_FLAGS: dict[str, Callable[[LogOptions, bool], LogOptions]] = {
    "log_info": lambda options, value: replace(options, info=value),
    "log_warning": lambda options, value: replace(options, warning=value),
    "log_error": lambda options, value: replace(options, error=value),
}
_FORMATS = {"default": False, "ISO8601": True}


class LogSettings:
    """The settings of the log. Used by one thread.

    `apply` makes the log follow them.
    """

    def __init__(self, options: LogOptions, apply: Callable[[LogOptions], None]) -> None:
        self._options = options
        self._apply = apply

    def read(self) -> Mapping[str, Value]:
        """All settings, in Triton's order."""
        options = self._options
        return {
            "log_file": options.file,
            "log_info": options.info,
            "log_warning": options.warning,
            "log_error": options.error,
            "log_verbose_level": options.verbose_level,
            "log_format": "ISO8601" if options.iso8601 else "default",
        }

    def update(
        self, changes: Mapping[str, Value] | Iterable[tuple[str, Value]]
    ) -> Mapping[str, Value]:
        """Apply one change after the other; returns all settings. Unknown names are ignored.

        Raises ServerError at the first change that cannot be; those before it stay.
        """
        for name, value in changes.items() if isinstance(changes, Mapping) else changes:
            changed = self._changed(name, value)
            if changed != self._options:
                self._options = changed
                self._apply(changed)
        return self.read()

    def _changed(self, name: str, value: Value) -> LogOptions:
        options = self._options
        if name == "log_file":
            raise unsupported("log file location can not be updated through network protocol")
        if name in _FLAGS:
            if type(value) is not bool:
                raise invalid_arg(f"expect boolean for '{name}'")
            return _FLAGS[name](options, value)
        if name == "log_verbose_level":
            if type(value) is not int:
                raise invalid_arg(f"expect int32 for '{name}'")
            return replace(options, verbose_level=_verbose_level(value))
        if name == "log_format":
            if type(value) is not str:
                raise invalid_arg(f"expect string for '{name}'")
            if value not in _FORMATS:
                raise invalid_arg(f"invalid argument for log_format, got: {value}")
            return replace(options, iso8601=_FORMATS[value])
        return options


def _verbose_level(value: int) -> int:
    """`value` as Triton keeps it: its low 32 bits as a signed number; a negative one is 0."""
    low = value % 2**32
    return low if low < 2**31 else 0
