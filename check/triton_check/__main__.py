"""`python -m triton_check`."""

import sys

from triton_check import main

if __name__ == "__main__":
    sys.exit(main())
