"""A reader for each framework: what its settings are in a job. Its defaults are in the YAML file beside it."""
