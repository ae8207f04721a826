"""`python -m estimator.cli` is the command `willitfit`."""

import sys

from estimator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
