"""Architectures drawn from transformers' own: how many are answered exactly, counted by torch, or refused, and why.

    python -m tests.architectures --number 1000 --seed 1 --minutes 60 --after 531

Every type that transformers has a causal language model, a masked one or a classifier of sequences for is drawn in turn, of its
own config class with sizes cut down, each time with other ones. Each is asked as a config.json would be: to be trained, on no GPU
in particular. Anything but an answer or a refusal is a crash, and makes the script fail.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

from estimator import estimate
from estimator.contract.errors import WillItFitError
from estimator.families import FAMILIES, heads

SIZES: dict[str, list[int]] = {
    "hidden_size": [64],
    "intermediate_size": [128, 160],
    "moe_intermediate_size": [32, 64],
    "num_hidden_layers": [2, 3],
    "num_attention_heads": [4],
    "num_key_value_heads": [2, 4],
    "head_dim": [16],
    "vocab_size": [256, 500],
    "max_position_embeddings": [128],
    "num_experts": [4, 8],
    "num_local_experts": [4, 8],
    "n_routed_experts": [4, 8],
    "num_experts_per_tok": [1, 2],
    "n_shared_experts": [1],
    "n_group": [1],
    "topk_group": [1],
    "rotary_dim": [8],
    "num_key_heads": [4],
    "mamba_n_heads": [8],
    "mamba_d_head": [16],
    "mamba_num_heads": [8],
    "mamba_head_dim": [16],
    "linear_num_key_heads": [2],
    "linear_num_value_heads": [4],
    "kv_lora_rank": [16],
    "q_lora_rank": [32],
    "qk_rope_head_dim": [16],
    "qk_nope_head_dim": [16],
    "v_head_dim": [16],
    "embedding_size": [32],
    "decoder_layers": [2],
    "encoder_layers": [2],
    "d_model": [64],
    "n_embd": [64],
    "n_layer": [2, 3],
    "n_head": [4],
    "encoder_attention_heads": [4],
    "decoder_attention_heads": [4],
    "encoder_ffn_dim": [128],
    "decoder_ffn_dim": [128],
    "ffn_dim": [128],
    "d_kv": [16],
    "d_ff": [128],
}
"""What is cut down, where a config has it, to one of these."""
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "norm_topk_prob")
"""What is drawn either way, where a config has it."""
UNSAID = ("n_routed_experts", "num_experts_per_tok", "n_shared_experts")
"""What config classes leave out that models need."""
TOKENS = 32


def types() -> dict[str, str]:
    """Every `model_type` that is drawn, with the head that it is asked with."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, str] = {}
    for head, names in (
        ("masked-lm", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("causal-lm", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("sequence-classification", auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    ):
        for kind in names:
            found.setdefault(kind, head)
    return dict(sorted(found.items()))


def config(kind: str, draw: random.Random) -> dict[str, Any] | None:
    """A small config of a type as its config.json would be; None where transformers' class takes none of these sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    chosen = {name: draw.choice(values) for name, values in SIZES.items()} | {name: draw.random() < 0.5 for name in FLAGS}
    for kept in (chosen, {name: value for name, value in chosen.items() if name not in FLAGS}):
        try:
            plain = CONFIG_MAPPING[kind]()
            made = CONFIG_MAPPING[kind](**_had(plain, kept))
            found: dict[str, Any] = made.to_dict()
        except Exception:
            continue
        return found | {"model_type": kind}
    return None


def _had(plain: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """The sizes that a config has, and its parts'."""
    known = plain.to_dict()
    named = {name: value for name, value in chosen.items() if name in known and (known[name] is not None or name in UNSAID)}
    layers = known.get("num_hidden_layers")
    for name, value in known.items():  # what is said of each layer
        if isinstance(value, list) and "num_hidden_layers" in named and len(value) == layers:
            named[name] = value[-named["num_hidden_layers"] :]
    for part in getattr(plain, "sub_configs", {}):
        inner = getattr(plain, part, None)
        if inner is not None:
            named[part] = {**inner.to_dict(), **_had(inner, chosen)}
    return named


def drawn(number: int, seed: int) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """So many configs, each type in turn, with the head that each is asked with."""
    every, draw = types(), random.Random(seed)
    kinds = list(every)
    draw.shuffle(kinds)
    for i in range(number):
        kind = kinds[i % len(kinds)]
        yield kind, every[kind], config(kind, draw)


def asked(kind: str, head: str, given: dict[str, Any] | None) -> tuple[str, str]:
    """What comes of one: its outcome, and the reason of a refusal."""
    if given is None:
        return "no config", "transformers' class takes none of these sizes"
    training = {"sequence_length": TOKENS, "activation_checkpointing": "none"} | (
        {"head": head} if kind not in FAMILIES or head in heads(kind) else {}
    )
    job = {"model": given, "training": training}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = estimate(job)
    except WillItFitError as error:
        return f"refused ({error.code})", error.message
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}"
    by_torch = any(note.slug == "counted-by-torch" for note in answer.notes)
    return ("counted" if by_torch else "exact"), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", help="this type alone")
    parser.add_argument("--after", type=int, default=0, help="how many of them were asked before and are left out")
    options = parser.parse_args()
    os.environ["WILLITFIT_CACHE"] = ""
    stop = time.monotonic() + 60 * options.minutes
    outcomes: Counter[str] = Counter()
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for kind, head, given in islice(drawn(options.number, options.seed), options.after, None):
        if options.only and kind != options.only:
            continue
        if time.monotonic() > stop:
            break
        outcome, why = asked(kind, head, given)
        outcomes[outcome] += 1
        if why:
            reasons[f"{outcome}: {why[:230]}"].append(kind)
        print(f"{kind:32} {outcome:28} {why[:150]}", flush=True)
    print(f"\n{sum(outcomes.values())} asked: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    for why, kinds in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(kinds):4} {why} ({', '.join(sorted(set(kinds))[:6])})")
    return 1 if outcomes["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
