"""The memory of the machine around the GPUs, per node and phase, and what is written to its disk."""
