"""`python -m benchmarks.sweep`: the same as `fusion bench --sweep`."""

import sys

from benchmarks.sweep.run import main

if __name__ == "__main__":
    sys.exit(main())
