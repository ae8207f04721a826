"""The name that people install: `import willitfit` is `import estimator`, and `python -m willitfit` the command."""

import sys

import estimator

if __name__ == "__main__":
    from estimator.cli.main import main

    sys.exit(main())

sys.modules[__name__] = estimator
