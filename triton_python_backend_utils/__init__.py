"""`triton_python_backend_utils` for code outside of a server: tests, editors, type checkers.

The server gives each model instance its own module of this name. In Triton's model processes, this
package is found before Triton's own module, and loads that module instead.
"""

from __future__ import annotations

import sys

if "c_python_backend_utils" in sys.builtin_module_names:  # true in Triton's model processes only
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    _elsewhere = [path for path in sys.path if Path(path).resolve() != Path(__file__).parents[1]]
    _spec = PathFinder.find_spec(__name__, _elsewhere)
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[__name__] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
else:
    from reference_server.backends.python_host.triton_python_backend_utils import *  # noqa: F403 - the names of its __all__
    from reference_server.backends.python_host.triton_python_backend_utils import (
        __all__ as __all__,
    )
