"""A job on a tape: its phases, its ranks, where the peak is and of what."""
