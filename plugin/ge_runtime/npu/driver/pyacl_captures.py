"""Profiles and dumps by pyACL: acl.prof, and the dump of acl.mdl."""

from __future__ import annotations

from typing import Final

from ge_runtime.npu.driver.pyacl_description import Acl
from ge_runtime.npu.driver.return_codes import DriverFault, ReturnCodeChecker

_DATA: Final = 0x1 | 0x2 | 0x4
"""ACL_PROF_ACL_API, TASK_TIME and AICORE_METRICS: without the last, metrics do not count."""


class PyAclCaptures:
    """Captures by the functions of one `acl` module, each answer checked."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        """acl: the module, or one that keeps its contract; an old one may lack `acl.prof`."""
        self._prof: Acl = getattr(acl, "prof", None)
        self._mdl = acl.mdl
        self._status = checker.status
        self._handle = checker.handle

    def init_profile(self, folder: str) -> None:
        self._status("acl.prof.init", self._prof.init(folder))

    def start_profile(self, device: int, metrics: int) -> int:
        # Events of AI Core are reserved: 0.
        config = self._prof.create_config([device], metrics, 0, _DATA)
        config = self._handle("acl.prof.create_config", config)
        try:
            self._status("acl.prof.start", self._prof.start(config))
        except DriverFault:
            self._prof.destroy_config(config)
            raise
        return config

    def stop_profile(self, config: int) -> None:
        try:
            self._status("acl.prof.stop", self._prof.stop(config))
        finally:
            code = self._prof.destroy_config(config)
        self._status("acl.prof.destroy_config", code)

    def finalize_profile(self) -> None:
        self._status("acl.prof.finalize", self._prof.finalize())

    def start_dump(self, config: str) -> None:
        self._status("acl.mdl.init_dump", self._mdl.init_dump())
        try:
            self._status("acl.mdl.set_dump", self._mdl.set_dump(config))
        except DriverFault:
            self._mdl.finalize_dump()
            raise

    def stop_dump(self) -> None:
        self._status("acl.mdl.finalize_dump", self._mdl.finalize_dump())
