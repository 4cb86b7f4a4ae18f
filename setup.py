"""What of the package is compiled where a C compiler is; all else is said in pyproject.toml.

Without a compiler, or where it fails, the build goes on: the same files then run as Python.
"""

from pathlib import Path

from setuptools import Extension, setup

COMPILED = [
    "reference_server/codecs/grisu.py",
    "reference_server/codecs/json_strings.py",
    "reference_server/codecs/number_reader.py",
    "reference_server/codecs/proto_fields.py",
    "reference_server/core/string_packing.py",
]

extensions = [
    Extension(
        path.removesuffix(".py").replace("/", "."),
        [path],
        depends=[path.replace(".py", ".pxd")],
        optional=True,
        extra_compile_args=["-g0"],  # a fifth of the size
    )
    for path in COMPILED
    if Path(path).exists()  # an image installs what the project depends on before it has the code
]
for extension in extensions:
    extension.cython_c_in_temp = True  # beside the sources it would be taken for one of them

setup(ext_modules=extensions)
