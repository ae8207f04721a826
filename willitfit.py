"""The name that people install: `import willitfit` is `import estimator`."""

import sys

import estimator

sys.modules[__name__] = estimator
