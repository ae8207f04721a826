"""Record what llama.cpp allocates for a model: llama.cpp itself, on the CPU, with a file that has no numbers.

    pip install xllamacpp==2026.10.11549
    python -m tests.judge.llamacpp [NAMEPART]

writes tests/data/llamacpp.json, a record for each case of tests/cases/llamacpp.yaml: the buffers that llama.cpp's log names as it
loads. The file has the model's metadata and tensors, and a hole where their bytes would be.
"""

from __future__ import annotations

import ctypes as c
import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_mixtures import facts, type_of
from estimator.quantization.gguf_names import BARE
from estimator.quantization.gguf_tensors import FileTensor, file_tensors
from estimator.serving.llamacpp.devices import EXPERTS
from estimator.serving.llamacpp.latents import indexer_of, latent_of
from estimator.serving.llamacpp.mixers import mixers_of, rotary_of, state_of
from estimator.serving.llamacpp.models import (
    clips,
    experts_of,
    fed_width,
    heads_of,
    sharing_of,
    sliding,
    thinned_of,
    value_head,
    vocabulary,
    whole_keys,
    window,
)
from estimator.serving.llamacpp.types import NAMES
from estimator.specs.resolve import resolve
from estimator.weights.dtypes import ggml_types
from tests.jobs import cases, job_of
from tests.judge.llamacpp_gpus import register
from tests.judge.llamacpp_metadata import ARCHITECTURES, GROUPED, MORE, SCALED

FILE = Path(__file__).parents[1] / "data" / "llamacpp.json"
STRING, NUMBER, FLOAT, TRUTH, ARRAY = 8, 4, 6, 7, 9
"""Types of metadata."""
LINES = {
    "weights": re.compile(r"(CUDA\d+|CPU)\S* model buffer size = +([\d.]+) MiB"),
    "kv_cache": re.compile(r"(CUDA\d+|CPU)\S* (?:KV|RS) buffer size = +([\d.]+) MiB"),
    "compute": re.compile(r"sched_reserve: +(CUDA\d+|CPU)\S* compute buffer size = +([\d.]+) MiB"),
    "logits": re.compile(r"(CPU) +output buffer size = +([\d.]+) MiB"),
}


def _sizes(spec: ModelSpec) -> dict[str, Any]:
    """What a file's metadata says of a model, without its architecture's prefix."""
    asked, (heads, keys, head) = spec.config(), heads_of(spec)
    sizes: dict[str, Any] = {
        "block_count": spec.num_hidden_layers,
        "context_length": 2**17 if not spec.learned_positions else spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": fed_width(spec),
        "attention.head_count": heads,
        "attention.head_count_kv": keys,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "vocab_size": vocabulary(spec),
    }
    if asked.get("sliding_window") and any(sliding(spec)):
        sizes["attention.sliding_window"] = asked["sliding_window"]
    if experts := experts_of(spec):
        sizes |= {
            "expert_count": experts.count,
            "expert_used_count": experts.used,
            "expert_feed_forward_length": experts.wide,
        }
        if spec.model_type.startswith(("qwen", "granitemoe", "nemotron_h")):
            sizes["expert_shared_feed_forward_length"] = experts.shared
        if experts.latent:
            sizes["moe_latent_size"] = experts.latent
    if spec.encodes:
        sizes |= {"attention.causal": False, "pooling_type": 1, "context_length": spec.longest_sequence}
    if spec.encodes and asked.get("local_attention"):
        sizes["attention.sliding_window"] = asked["local_attention"]
    if "use_parallel_residual" in asked:
        sizes["use_parallel_residual"] = asked["use_parallel_residual"]
    if spec.model_type == "mpt":
        sizes["attention.max_alibi_bias"] = 8.0
    if clips(spec):
        sizes["attention.clamp_kqv"] = 8.0
    sizes |= _states(spec) | MORE.get(spec.model_type, {})
    if spec.model_type == "ernie4_5_moe":
        sizes["expert_shared_feed_forward_length"] = asked["moe_num_shared_experts"] * asked["moe_intermediate_size"]
    if spec.model_type in GROUPED:
        shared = asked.get("n_shared_experts") or asked.get("num_shared_experts", 0)
        dense = asked.get("first_k_dense_replace", asked.get("num_dense_layers", 0))
        sizes |= {"expert_shared_count": shared, "leading_dense_block_count": dense}
        sizes |= {
            "expert_weights_scale": asked.get("routed_scaling_factor", 2.5 if spec.model_type in SCALED else 1.0),
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        }
    if sharing := sharing_of(spec):
        slides = list(sliding(spec))
        sizes |= {
            "attention.head_count_kv": [keys if own else sharing.key_heads for own in slides],
            "attention.sliding_window_pattern": slides,
            "attention.key_length": sharing.head,
            "attention.value_length": sharing.head,
            "attention.key_length_swa": head,
            "attention.value_length_swa": head,
            "rope.dimension_count": sharing.head,
            "rope.dimension_count_swa": head,
            "embedding_length_per_layer_input": asked["hidden_size_per_layer_input"],
            "final_logit_softcapping": 30.0,
            "attention.shared_kv_layers": asked["num_kv_shared_layers"],
            "feed_forward_length": list(sharing.wide),
        }
    if thinned := thinned_of(spec):
        sizes |= {
            "attention.head_count": [heads * attends for attends, _ in thinned],
            "attention.head_count_kv": [keys * attends for attends, _ in thinned],
            "feed_forward_length": [wide for _, wide in thinned],
        }
    if spec.model_type == "minicpm3":
        sizes |= {
            "attention.value_length": value_head(spec),
            "rope.dimension_count": asked["qk_rope_head_dim"],
            "attention.q_lora_rank": asked["q_lora_rank"],
            "attention.kv_lora_rank": asked["kv_lora_rank"],
        }
    if fewer := whole_keys(spec):
        slides = list(sliding(spec))
        sizes |= {
            "attention.head_count_kv": [keys if own else fewer for own in slides],
            "attention.sliding_window_pattern": slides,
            "attention.sliding_window": window(spec),
            "attention.value_length": value_head(spec),
            "attention.value_scale": 0.707,
        }
    if spec.model_type in ("granitemoeshared", "granitemoe_swa"):
        sizes["feed_forward_length"] = asked["intermediate_size"]
    if spec.model_type.endswith("_swa"):
        sizes["attention.sliding_window_pattern"] = list(sliding(spec))
    if spec.model_type.startswith("granite"):
        sizes |= {"logit_scale": 8.0, "attention.scale": 0.1, "embedding_scale": 12.0, "residual_scale": 0.2}
    if latent := latent_of(spec):
        sizes |= {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": latent.rank,
            "attention.key_length": latent.rank + latent.rotary,
            "attention.value_length": latent.rank,
            "attention.key_length_mla": latent.plain + latent.rotary,
            "attention.value_length_mla": asked["v_head_dim"],
            "rope.dimension_count": latent.rotary,
            "leading_dense_block_count": asked.get("first_k_dense_replace", spec.num_hidden_layers),
            "expert_shared_count": asked.get("n_shared_experts", 0),
            "expert_weights_scale": 2.5,
        }
        if latent.queries:
            sizes["attention.q_lora_rank"] = latent.queries
        if indexer := indexer_of(spec):
            sizes |= {
                "attention.indexer.head_count": indexer.heads,
                "attention.indexer.key_length": indexer.size,
                "attention.indexer.top_k": indexer.picked,
                "attention.indexer.types": list(indexer.layers),
            }
        if mixers_of(spec):
            sizes["attention.head_count_kv"] = [int(mixer == "attention") for mixer in mixers_of(spec)]
            sizes["kda.head_dim"] = asked["linear_head_dim"]
        if spec.model_type in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_linear"):
            sizes |= {"expert_gating_func": 2, "expert_weights_norm": True}
            if asked.get("n_group", 1) > 1:
                sizes |= {"expert_group_count": asked["n_group"], "expert_group_used_count": asked["topk_group"]}
    return sizes


def _states(spec: ModelSpec) -> dict[str, Any]:
    """What it says of layers that keep a state in place of tokens."""
    state, mixers = state_of(spec), mixers_of(spec)
    if state is None:
        return {}
    keys = heads_of(spec)[1]
    heads = [keys if mixer in ("attention", "both") else 0 for mixer in mixers]
    if not state.inner:
        return {"shortconv.l_cache": state.kernel, "attention.head_count_kv": heads, "feed_forward_length": fed_width(spec)}
    said: dict[str, Any] = {
        "ssm.conv_kernel": state.kernel,
        "ssm.inner_size": state.inner,
        "ssm.state_size": state.size,
        "ssm.time_step_rank": state.rank or state.heads,
        "ssm.group_count": 0 if state.rank else state.groups,
    }
    if "delta net" in mixers:
        return said | {"attention.recurrent_layers": [mixer == "delta net" for mixer in mixers]}
    if "both" not in mixers:
        said["attention.head_count_kv"] = heads
    wide = fed_width(spec)
    if spec.model_type == "nemotron_h":
        said["feed_forward_length"] = [wide if mixer == "none" else 0 for mixer in mixers]
    elif spec.model_type == "granitemoehybrid" and experts_of(spec) is None:
        said["feed_forward_length"] = fed_width(spec)
    if spec.can.graph == "granite":
        said["rope.scaling.finetuned"] = rotary_of(spec)
    return said


def _shape(tensor: FileTensor, spec: ModelSpec) -> list[int]:
    if "_exps" in tensor.name and not tensor.name.endswith(".scale"):
        found = experts_of(spec)
        assert found is not None
        count = found.count
        if tensor.name.endswith(".bias"):
            return [tensor.elements // count, count]
        return [tensor.columns, tensor.elements // tensor.columns // count, count]
    name = tensor.name.split(".", 2)[-1]
    if (state := state_of(spec)) and "delta net" not in mixers_of(spec) and not state.rank:
        if name in BARE:
            return [1, tensor.elements]
        if name == "ssm_norm.weight":
            return [tensor.elements // state.groups, state.groups]
    if "ssm_conv1d_" in name:
        return [tensor.columns, 1, tensor.elements // tensor.columns]
    if tensor.name.startswith("altup_"):
        return [tensor.columns, tensor.columns, tensor.elements // tensor.columns**2]
    if tensor.dimensions == 3:
        return [tensor.columns, tensor.elements // tensor.columns // heads_of(spec)[0], heads_of(spec)[0]]
    if tensor.dimensions == 2 and "_norm" in tensor.name:
        return [tensor.columns, tensor.elements // tensor.columns]
    if tensor.dimensions == 1 or tensor.elements == tensor.columns:
        return [tensor.elements]
    return [tensor.columns, tensor.elements // tensor.columns]


def write(spec: ModelSpec, kind: str, path: Path) -> None:
    """A GGUF file of a model."""
    prefix = ARCHITECTURES[spec.model_type]
    if spec.model_type == "granitemoehybrid" and state_of(spec) is None:
        prefix = "granite"
    if spec.model_type == "nemotron_h" and experts_of(spec):
        prefix = "nemotron_h_moe"
    if spec.model_type == "gemma3_text" and spec.encodes:
        prefix = "gemma-embedding"
    said = {f"{prefix}.{key}": value for key, value in _sizes(spec).items()}
    if spec.encodes:
        said["tokenizer.ggml.token_type_count"] = _token_types(spec)
    said = {"general.architecture": prefix, **said, "tokenizer.ggml.model": "no_vocab"}
    if spec.model_type == "apertus":
        said |= {f"xielu.{name}": 0.8 for name in ("alpha_n", "alpha_p", "beta", "eps")}
    tensors, numbers = file_tensors(spec), {found.name: number for number, found in ggml_types().items()}
    model, offset, infos = facts(spec, tensors), 0, b""
    for tensor in tensors:
        chosen, shape = type_of(NAMES.get(kind, kind.upper()), tensor, model), _shape(tensor, spec)
        infos += _string(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", numbers[chosen.name], offset)
        offset += -(-tensor.elements // chosen.elements * chosen.nbytes // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(said)) + b"".join(_pair(*pair) for pair in said.items()) + infos
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        file.truncate(file.tell() + offset)


def _token_types(spec: ModelSpec) -> int:
    """Types of tokens that its embeddings tell apart."""
    return int(spec.config().get("type_vocab_size", 1))


def _pair(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", STRING) + _string(value)
    if isinstance(value, bool):
        return _string(key) + struct.pack("<I?", TRUTH, value)
    if isinstance(value, list):
        kind, letter = (TRUTH, "?") if isinstance(value[0], bool) else (NUMBER, "I")
        return _string(key) + struct.pack(f"<IIQ{len(value)}{letter}", ARRAY, kind, len(value), *value)
    form = ("<If", FLOAT) if isinstance(value, float) else ("<II", NUMBER)
    return _string(key) + struct.pack(*form, value)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


class ModelParams(c.Structure):
    """llama_model_params (include/llama.h)."""

    _fields_ = [
        *[(name, c.c_void_p) for name in ("devices", "overrides")],
        *[(name, c.c_int32) for name in ("gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")],
        *[(name, c.c_void_p) for name in ("tensor_split", "progress", "progress_data", "kv_overrides")],
        *[(name, c.c_bool) for name in ("vocab_only", "check", "extra_buffers", "no_host", "no_alloc", "load_mtp")],
    ]


class ContextParams(c.Structure):
    """llama_context_params (include/llama.h)."""

    _fields_ = [
        *[(name, c.c_uint32) for name in ("context", "batch", "ubatch", "sequences", "snapshots", "outputs", "outputs_each")],
        *[(name, c.c_int32) for name in ("threads", "threads_batch", "kind", "rope", "pooling", "attention", "flash")],
        ("rope_and_yarn", c.c_float * 6),
        ("yarn_context", c.c_uint32),
        ("defrag", c.c_float),
        *[(name, c.c_void_p) for name in ("callback", "callback_data")],
        *[(name, c.c_int32) for name in ("type_k", "type_v")],
        *[(name, c.c_void_p) for name in ("abort", "abort_data", "newer")],
        *[(name, c.c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")],
        *[(name, c.c_void_p) for name in ("samplers", "count", "other")],
    ]


class Override(c.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = [("pattern", c.c_char_p), ("kind", c.c_void_p)]


def load(path: str, gpus: int, serving: dict[str, Any]) -> None:
    """Load a file with what a server would ask for, which logs what it allocates. (In a process of its own: it may end it.)"""
    import xllamacpp  # type: ignore[import-not-found, unused-ignore]

    library = str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")))
    llama = c.CDLL(library)
    llama.llama_model_default_params.restype, llama.llama_context_default_params.restype = ModelParams, ContextParams
    llama.llama_model_load_from_file.argtypes = [c.c_char_p, ModelParams]
    llama.llama_init_from_model.argtypes = [c.c_void_p, ContextParams]
    llama.llama_model_load_from_file.restype = llama.ggml_backend_cpu_buffer_type.restype = c.c_void_p
    if gpus:
        register(gpus, library)
    model, context = llama.llama_model_default_params(), llama.llama_context_default_params()
    model.gpu_layers, model.extra_buffers = serving.get("gpu_layers", 999), False
    if "tensor_split" in serving:
        shares = (c.c_float * 128)(*serving["tensor_split"])
        model.tensor_split = c.addressof(shares)
    rules = [text.rpartition("=")[0] for text in serving.get("override_tensor", [])]
    rules += [EXPERTS] if serving.get("cpu_moe") else []
    rules += [rf"blk\.{layer}{EXPERTS}" for layer in range(serving.get("n_cpu_moe", 0))]
    host = llama.ggml_backend_cpu_buffer_type()
    overrides = (Override * (len(rules) + 1))(*[Override(rule.encode(), host) for rule in rules])
    model.overrides = c.addressof(overrides) if rules else None
    sequences = serving.get("concurrency", 1)
    context.context, context.ubatch, context.sequences = serving["context"] * sequences, serving.get("ubatch", 512), sequences
    context.batch = max(2048, context.ubatch)
    context.outputs, context.flash = sequences, int(serving.get("flash_attention", True))
    if serving.get("embeddings"):
        context.outputs, context.embeddings = 0, True
    context.kv_unified, context.swa_full = serving.get("kv_unified", False), serving.get("swa_full", False)
    numbers = {found.name: number for number, found in ggml_types().items()}
    keys = serving.get("kv_cache", "f16").upper()
    context.type_k, context.type_v = numbers[keys], numbers[serving.get("values_cache", keys).upper()]
    llama.llama_init_from_model(llama.llama_model_load_from_file(path.encode(), model), context)


def asked(case: dict[str, Any]) -> dict[str, Any]:
    """The buffers that llama.cpp names for a case, in MiB as it prints them, by device."""
    spec, serving = resolve(job_of(case)["model"]).spec, case["serving"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(spec, serving["weights"], path)
        call = [
            sys.executable,
            "-m",
            "tests.judge.llamacpp",
            "--load",
            str(path),
            str(case.get("gpus", 0)),
            json.dumps(serving | {"embeddings": spec.encodes}),
        ]
        with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as server:
            assert server.stdout is not None
            said: dict[str, dict[str, float]] = {name: {} for name in LINES}
            for text in server.stdout:
                if "--verbose" in sys.argv:
                    print(text, end="")
                for name, line in LINES.items():
                    if found := line.search(text):  # a model may have two caches
                        said[name][found[1]] = round(said[name].get(found[1], 0) + float(found[2]), 2)
    if case.get("gpus"):
        said["weights"].pop("CPU", None)  # what is mapped of the file: from its first to its last tensor of the host
    return said


def main(parts: list[str]) -> None:
    """Write the record of every case, or of those with one of `parts` in their names and those that have none."""
    if parts[:1] == ["--load"]:
        load(parts[1], int(parts[2]), json.loads(parts[3]))
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
