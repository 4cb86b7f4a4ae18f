"""Every call of pyACL goes through here: a return code becomes an error that tells all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ge_runtime.ascend.codes import SUCCESS, Kind, kind_of, name_of
from ge_runtime.errors import RuntimeFault

Value = TypeVar("Value")

_CURES: Final = {
    100039: "LD_LIBRARY_PATH has CANN's `stub` folder before the driver's libraries: "
    "`source set_env.sh` of CANN anew",
    107001: "`npu-smi info` and ASCEND_RT_VISIBLE_DEVICES say which devices this process has",
    148049: "install the operators of this chip: the package Ascend-cann-<soc>-ops",
    207004: "pass the device into the container, e.g. `--device /dev/davinci0`",
    207006: "add the user to the group HwHiAiUser",
    507008: "the file is for another chip, or the driver and CANN do not fit together: `npu-smi "
    "info`, `cat $ASCEND_HOME_PATH/version.cfg`",
    507033: "the device is in use by another process, or its driver failed: `npu-smi info`",
    507899: "often a driver that CANN does not fit: `npu-smi info`, `cat "
    "$ASCEND_HOME_PATH/version.cfg`",
}
"""Code: what a person can do about it."""


class DriverFault(RuntimeFault):
    """A call of the driver failed."""

    def __init__(self, function: str, code: int, message: str = "") -> None:
        """function: e.g. "acl.rt.malloc". message: the library's own words, if it had any."""
        self.function = function
        self.code = code
        self.kind: Kind = kind_of(code)
        self.path: Path | None = None
        """The file that was loaded or executed, for those who know which of several it was."""
        told = f": {message}" if message else ""
        cure = f"; {_CURES[code]}" if code in _CURES else ""
        super().__init__(f"{function}: {name_of(code)}, {self.kind.value}{told}{cure}")


class Checker:
    """Calls functions of one `acl` module. From any thread."""

    def __init__(self, recent_message: Callable[[], str]) -> None:
        """recent_message: acl.get_recent_err_msg, whose text is that of the calling thread."""
        self._recent_message = recent_message

    def status(self, function: str, code: int, *fine: int) -> int:
        """The code, if it is SUCCESS or one of `fine`; raises DriverFault otherwise."""
        if code != SUCCESS and code not in fine:
            # Reading the message clears it: that of a later failure is its own.
            raise DriverFault(function, code, " ".join(self._recent_message().split()))
        return code

    def value(self, function: str, answer: tuple[Value, int], *fine: int) -> Value:
        """The value of `(value, ret)`; raises as `status`."""
        value, code = answer
        self.status(function, code, *fine)
        return value

    def handle(self, function: str, handle: int) -> int:
        """A handle that comes without a code, where 0 is the failure."""
        return self._bare(function, handle, _NO_HANDLE)

    def told(self, function: str, value: Value) -> Value:
        """What a getter tells that has no code, where 0 and "" are the failure."""
        return self._bare(function, value, _NOT_TOLD)

    def _bare(self, function: str, value: Value, code: int) -> Value:
        if not value:
            raise DriverFault(function, code, " ".join(self._recent_message().split()))
        return value


_NO_HANDLE: Final = 200000
"""BAD_ALLOC: what a creator without a return code fails of, as it takes host memory only."""
_NOT_TOLD: Final = 100000
"""INVALID_PARAM: what a getter without a return code fails of."""
