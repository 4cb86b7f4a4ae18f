"""Builds the wheel with the modules of `reference_server` that check repositories.

They are in a folder of the package `triton_check`, so that they do not replace the modules of an
installed server. The build reads the folders beside this one, so there is no source archive.
"""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

_SERVER = "../reference_server"
_SCHEMA = "../plugin/ge_runtime/cli/model_config.binpb"
_UNUSED = ("asgi", "autoscaling", "codecs", "frontends", "ray", "testing", "trying")
_MODULES = find_packages(
    "..", include=["reference_server*"], exclude=[f"*.{name}*" for name in _UNUSED]
)


class build_py_with_schema(build_py):
    """Copies the schema of config.pbtxt too."""

    def run(self) -> None:
        """Copy all files."""
        super().run()
        if not self.editable_mode:
            self.copy_file(_SCHEMA, str(Path(self.build_lib, "triton_check")))


setup(
    cmdclass={"build_py": build_py_with_schema},
    packages=["triton_check", *(f"triton_check.packages.{name}" for name in _MODULES)],
    package_dir={"triton_check.packages.reference_server": _SERVER},
    package_data={"triton_check.packages.reference_server": ["backends/shipped/*.py"]},
)
