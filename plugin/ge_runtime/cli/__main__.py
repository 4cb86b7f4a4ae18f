"""`python -m ge_runtime.cli`."""

import sys

from ge_runtime.cli import main

sys.exit(main())
