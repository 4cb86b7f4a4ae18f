"""What of the package is compiled where a C compiler is; all else is said in pyproject.toml.

That is each module with a .pxd beside it. Without a compiler, or where it fails, the build goes on:
the same files then run as Python.
"""

from pathlib import Path

from setuptools import Extension, setup

extensions = [
    Extension(
        ".".join(types.with_suffix("").parts),
        [str(types.with_suffix(".py"))],
        depends=[str(types)],
        optional=True,
        extra_compile_args=["-g0"],  # a fifth of the size
    )
    # None yet where an image installs what the project depends on before it has the code.
    for types in sorted(Path("reference_server").glob("*/*.pxd"))
]
for extension in extensions:
    extension.cython_c_in_temp = True  # beside the sources it would be taken for one of them

setup(ext_modules=extensions)
