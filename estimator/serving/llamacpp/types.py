"""What llama.cpp calls the types that have no blocks."""

NAMES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
