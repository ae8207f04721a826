"""Record what llama.cpp allocates for a model: llama.cpp itself, on the CPU, with a file that has no numbers.

    pip install xllamacpp==2026.10.11549
    python -m tests.judge.llamacpp [NAMEPART]

writes tests/data/llamacpp.json, a record for each case of tests/cases/llamacpp.yaml: the buffers that llama.cpp's log names as it
loads. The file has the model's metadata and tensors, and a hole where their bytes would be.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from estimator.families.spec import RotaryDecoderSpec
from estimator.quantization.gguf_mixtures import facts, type_of
from estimator.quantization.gguf_tensors import file_tensors
from estimator.specs.resolve import resolve
from estimator.weights.dtypes import ggml_types
from tests.jobs import cases, job_of

FILE = Path(__file__).parents[1] / "data" / "llamacpp.json"
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
NORMS = {
    "pre_feedforward_layernorm_norm": "ffn_norm",
    "post_feedforward_layernorm_norm": "post_ffw_norm",
    "input_layernorm_norm": "attn_norm",
    "post_attention_layernorm_norm": "ffn_norm",
    "self_attn_q_norm": "attn_q_norm",
    "self_attn_k_norm": "attn_k_norm",
}
"""Names that llama.cpp looks for, by those that do where only sizes matter."""
STRING, NUMBER, FLOAT = 8, 4, 6
"""Types of metadata."""
LINES = {
    "weights": re.compile(r"CPU\S* model buffer size = +([\d.]+) MiB"),
    "kv_cache": re.compile(r"CPU KV buffer size = +([\d.]+) MiB"),
    "compute": re.compile(r"sched_reserve: +CPU compute buffer size = +([\d.]+) MiB"),
    "logits": re.compile(r"CPU +output buffer size = +([\d.]+) MiB"),
}


def write(spec: RotaryDecoderSpec, kind: str, path: Path) -> None:
    """A GGUF file of a model."""
    prefix = ARCHITECTURES[spec.model_type]
    sizes: dict[str, Any] = {
        "block_count": spec.num_hidden_layers,
        "context_length": 2**17,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_attention_heads,
        "attention.head_count_kv": spec.num_key_value_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "rope.dimension_count": spec.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": spec.vocab_size,
    }
    if spec.model_type == "gemma3_text":
        sizes["attention.sliding_window"] = spec.config()["sliding_window"]
    said = {"general.architecture": prefix, **{f"{prefix}.{k}": v for k, v in sizes.items()}, "tokenizer.ggml.model": "no_vocab"}
    tensors, numbers = file_tensors(spec), {found.name: number for number, found in ggml_types().items()}
    model, offset, infos = facts(spec, tensors), 0, b""
    for tensor in tensors:
        chosen = type_of(kind.upper(), tensor, model)
        name = "output_norm.weight" if tensor.name.startswith("norm") else tensor.name
        if spec.model_type == "gemma3_text":
            name = name.replace("post_attention_layernorm_norm", "post_attention_norm")
        for ours, theirs in NORMS.items():
            name = name.replace(ours, theirs)
        shape = [tensor.columns] if tensor.dimensions == 1 else [tensor.columns, tensor.elements // tensor.columns]
        infos += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", numbers[chosen.name], offset)
        offset += -(-tensor.elements // chosen.elements * chosen.nbytes // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(said)) + b"".join(_pair(*pair) for pair in said.items()) + infos
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        file.truncate(file.tell() + offset)


def _pair(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", STRING) + _string(value)
    form = ("<If", FLOAT) if isinstance(value, float) else ("<II", NUMBER)
    return _string(key) + struct.pack(*form, value)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def load(path: str, serving: dict[str, Any]) -> None:
    """Load a file as a server would, which logs what it allocates. (In a process of its own: it may end it.)"""
    import xllamacpp  # type: ignore[import-not-found, unused-ignore]

    asked, kinds = xllamacpp.CommonParams(), xllamacpp.llama_flash_attn_type
    asked.model.path, asked.warmup, asked.fit_params, asked.no_extra_bufts = path, False, False, True
    asked.n_parallel, asked.kv_unified, asked.verbosity, asked.port = serving.get("concurrency", 1), False, 5, 0
    asked.n_ctx, asked.n_ubatch = serving["context"] * asked.n_parallel, serving.get("ubatch", 512)
    flash = serving.get("flash_attention", True)
    asked.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    cache = serving.get("kv_cache", "f16").upper()
    asked.cache_type_k = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{cache}")
    asked.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{serving.get('values_cache', cache).upper()}")
    xllamacpp.Server(asked)


def asked(case: dict[str, Any]) -> dict[str, float]:
    """The buffers that llama.cpp names for a case, in MiB as it prints them."""
    spec, serving = resolve(job_of(case)["model"]).spec, case["serving"]
    assert isinstance(spec, RotaryDecoderSpec)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(spec, serving["weights"], path)
        call = [sys.executable, "-m", "tests.judge.llamacpp", "--load", str(path), json.dumps(serving)]
        with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as server:
            assert server.stdout is not None
            said = dict.fromkeys(LINES, 0.0)
            for text in server.stdout:
                for name, line in LINES.items():
                    found = line.search(text)
                    said[name] = round(said[name] + float(found[1]) if found else said[name], 2)  # a model may have two caches
                if said["compute"]:  # the last of them; it would serve from now on
                    server.kill()
                    break
    return said


def main(parts: list[str]) -> None:
    """Write the record of every case, or of those with one of `parts` in their names and those that have none."""
    if parts[:1] == ["--load"]:
        load(parts[1], json.loads(parts[2]))
        return
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() and parts else {}
    said = {}
    for case in cases("llamacpp"):
        name = case["name"]
        said[name] = found[name] if name in found and not any(part in name for part in parts) else asked(case)
    rows = (f"{json.dumps(name)}: {json.dumps(sizes)}" for name, sizes in said.items())
    FILE.write_text("{" + ",\n".join(rows) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
