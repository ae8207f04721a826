"""llama-server's arguments. llama.cpp's documentation of 2026-11: tools/server/README.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from estimator.contract.errors import InvalidValue
from estimator.contract.job.serving import CacheType, GgufKind
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import WORDS, Configuration
from estimator.exchange.frameworks import vllm
from estimator.specs.stored import USUAL

SHORT = {
    "-m": "model",
    "-hf": "hf_repo",
    "-hfr": "hf_repo",
    "-c": "ctx_size",
    "-ngl": "n_gpu_layers",
    "-b": "batch_size",
    "-ub": "ubatch_size",
    "-np": "parallel",
    "-fa": "flash_attn",
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-ot": "override_tensor",
    "-sm": "split_mode",
    "-ts": "tensor_split",
    "-mg": "main_gpu",
    "-md": "model_draft",
    "-hfd": "hf_repo_draft",
    "-ngld": "n_gpu_layers_draft",
    "-t": "threads",
    "-tb": "threads_batch",
    "-n": "n_predict",
    "-p": "prompt",
    "-a": "alias",
    "-ncmoe": "n_cpu_moe",
    "-cmoe": "cpu_moe",
    "-nkvo": "no_kv_offload",
    "-fit": "fit",
    "-fitt": "fit_target",
    "-dev": "device",
    "-v": "verbose",
    "-cnv": "conversation",
}
_KIND = re.compile(
    rf"[-.:_]({'|'.join(sorted(get_args(GgufKind), key=len, reverse=True))}|f16|bf16|f32)(?=$|[-.])", re.IGNORECASE
)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
ALL = 999
"""Layers that people write for all."""


def read(conf: Configuration) -> None:
    """The serving job that arguments are."""
    conf.skip(WORDS)
    conf.put("task", "serve")
    conf.put("serving.engine", "llama.cpp")
    _model(conf)
    tokens, slots = conf.whole("ctx_size"), conf.whole("parallel") or 1
    if tokens:
        conf.put("serving.context", max(1, tokens // max(1, slots)))
        if slots > 1:
            conf.put("serving.concurrency", slots)
            conf.assume("parallel", slots, f"the context of {tokens} tokens is shared by {slots} slots")
    else:
        conf.given.pop("ctx_size", None)
        vllm.context(conf, "ctx_size")
    layers = str(conf.take("n_gpu_layers")).lower()
    if layers.lstrip("-").isdigit() and 0 <= int(layers) < ALL - 900:
        conf.put("serving.gpu_layers", int(layers))
    elif layers == "auto":
        conf.assume("n_gpu_layers", "all", "auto: as many as fit; the answer says whether all do")
    _placed(conf)
    _draft(conf)
    conf.put("serving.ubatch", conf.whole("ubatch_size"))
    flash = str(conf.take("flash_attn") if conf.has("flash_attn") else "auto").lower()
    if flash in ("off", "false", "0"):
        conf.put("serving.flash_attention", False)
    _cache(conf)
    spreading.hardware(conf)
    if shares := conf.get("serving.tensor_split"):
        conf.put("hardware.gpus", len(shares))


def _draft(conf: Configuration) -> None:
    """The smaller model that guesses ahead, by the name of its file or repository."""
    given = conf.text("model_draft") or conf.text("hf_repo_draft")
    if not given:
        return
    bare, kind = named_kind(Path(given).name.removesuffix(".gguf") if given.endswith(".gguf") else given)
    conf.put("serving.model_draft", bare)
    if kind:
        conf.put("serving.weights_draft", conf.facts.tables["kinds"].get(kind, kind))
    layers = str(conf.take("n_gpu_layers_draft")).lower()
    if layers.isdigit() and int(layers) < ALL - 900:
        conf.put("serving.gpu_layers_draft", int(layers))
    for name in ("spec_draft_n_max", "draft_max", "draft"):
        if most := conf.whole(name):
            conf.put("serving.spec_draft_n_max", most)


def _placed(conf: Configuration) -> None:
    """Where tensors lie: experts in the host's memory, tensors by their names, layers among GPUs."""
    if conf.whole("n_cpu_moe"):
        conf.put("serving.n_cpu_moe", conf.whole("n_cpu_moe"))
    for name in ("cpu_moe", "swa_full"):
        if conf.has(name) and conf.yes(name):
            conf.put(f"serving.{name}", True)
    if patterns := conf.names("override_tensor"):
        conf.put("serving.override_tensor", patterns)
    if shares := conf.names("tensor_split"):
        if not all(re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", share) for share in shares):
            raise InvalidValue("write each GPU's share as a number: 3,1", conf.where("tensor_split"))
        conf.put("serving.tensor_split", [float(share) for share in shares])


def _cache(conf: Configuration) -> None:
    for key, ours in (("cache_type_k", "kv_cache"), ("cache_type_v", "values_cache")):
        given = (conf.text(key) or "f16").lower()
        kind = conf.facts.tables["kinds"].get(given, given)
        if kind not in get_args(CacheType):
            raise InvalidValue(f"{given[:40]!r} is no type of llama.cpp's cache", conf.where(key))
        if conf.has(key):
            conf.put(f"serving.{ours}", kind)


def _model(conf: Configuration) -> None:
    """A file that is there, or else the model and its kind by the name of a file or a repository."""
    path = conf.text("model")
    given = path or conf.text("hf_repo")
    if not given:
        raise InvalidValue("the command names no model: -m or -hf", "llama.cpp model")
    if path and conf.around.allow_files and Path(path).is_file():
        conf.put("model", path)
        return
    name = Path(given).name.removesuffix(".gguf") if path else given
    bare, kind = named_kind(name)
    found = kind or USUAL
    conf.put("model", bare)
    conf.put("serving.weights", conf.facts.tables["kinds"].get(found, found))
    conf.assume(
        "model",
        bare,
        f"{given}, by its name" + ("" if kind else f", and {USUAL}, llama.cpp's own choice of a repository's files"),
    )


def named_kind(name: str) -> tuple[str, str]:
    """The model and the kind, or nothing, that the name of a file or a repository says."""
    kind = _KIND.search(_SHARD.sub("", name))
    bare = _KIND.sub("", _SHARD.sub("", name)).partition(":")[0]
    bare = re.sub(r"-GGUF$", "", bare, flags=re.IGNORECASE)
    return bare.rpartition("/")[2], kind[1].lower() if kind else ""  # without whoever packed the file
