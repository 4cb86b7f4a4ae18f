"""Builds the wheel so that NVIDIA's packages of the same names are found first.

The modules are in a folder of their own, which a .pth file appends to `sys.path`.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_FOLDER = "reference_server_in_process"


class build_py_in_folder(build_py):
    """Copies the modules into the folder. An editable installation comes last anyway."""

    def run(self) -> None:
        """Copy the modules, and write the .pth file."""
        if not self.editable_mode:
            top = Path(self.build_lib)
            self.build_lib = str(top / _FOLDER)
            top.mkdir(parents=True, exist_ok=True)
            (top / f"{_FOLDER}.pth").write_text(f"{_FOLDER}\n", encoding="utf-8")
        super().run()


setup(cmdclass={"build_py": build_py_in_folder})
