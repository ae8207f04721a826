"""How long it takes: measured kernels, exchanges, pipelines, loading, and the steps and hours of a whole run."""
