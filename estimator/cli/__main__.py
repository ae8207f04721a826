"""`python -m estimator.cli` is the command `willitfit`."""

import sys

from estimator.cli.main import main

sys.exit(main())
