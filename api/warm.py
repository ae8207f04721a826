"""Imported once, in the process that workers are forked from: all facts are read, so that no first question waits for them."""

import gc

from estimator.megatron import plan  # noqa: F401  what a job in Megatron-Core loads
from estimator.planner.headline import fit
from estimator.serving.llamacpp import hybrids  # noqa: F401  what a hybrid that llama.cpp serves loads
from estimator.views import listing

from . import worker  # noqa: F401  what a process runs, with all that it answers

for rows in (listing.models, listing.gpus, listing.nodes, listing.offers):
    rows()
fit("llama-2-13b", "2x24GB")
gc.collect()
gc.freeze()  # what is here is never looked at again, so that the forked processes go on sharing its pages
