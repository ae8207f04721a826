"""A job's real model on fake tensors: what torch itself would allocate.

Needs the extra `torch`, and uses none of the tape's arithmetic.
"""
