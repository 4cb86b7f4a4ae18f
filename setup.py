"""The modules that Cython compiles: each one with a .pxd file beside it. See pyproject.toml.

Without a C compiler, or if it fails, the build continues, and the same files run interpreted.
"""

from pathlib import Path

from setuptools import Extension, setup

extensions = [
    Extension(
        ".".join(types.with_suffix("").parts),
        [str(types.with_suffix(".py"))],
        depends=[str(types)],
        optional=True,
        extra_compile_args=["-g0"],  # no debug symbols: a fifth of the size
    )
    # The list is empty while an image installs the dependencies before it copies the code.
    for types in sorted(Path("reference_server").glob("*/*.pxd"))
]
for extension in extensions:
    extension.cython_c_in_temp = True  # else the .c files lie among the sources

setup(ext_modules=extensions)
