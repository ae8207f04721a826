"""Files that nobody wrote, read by every reader: `python -m tests.exchange.fuzz FOLDER --seconds 120`.

Files of a folder, and the restated ones of tests/cases, with a few characters, lines or values put in, taken out, doubled, or
exchanged with another file's. Whatever is read must be answered, or refused in words; within seconds of processor time, and
within an amount of memory.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from estimator.contract.errors import WillItFitError
from estimator.contract.job import Hardware
from estimator.exchange import READ, Surroundings, read
from estimator.exchange.configuration import framework
from tests.exchange.answered import files
from tests.jobs import TESTS, content

MOST_SECONDS, MOST_BYTES, LONGEST = 2.0, 200 * 10**6, 1 << 20
PIECES = [
    *(
        "$",
        "(",
        ")",
        "'",
        '"',
        "\\",
        "\n",
        "=",
        "[",
        "{",
        "}",
        "]",
        "&a ",
        "*a",
        "--",
        ": ",
        "- ",
        "0",
        "-1",
        "1e9",
        "nan",
        "\0",
        "é",
    ),
    *(
        "null",
        "true",
        "[]",
        "{}",
        "auto",
        "1" * 40,
        "1e308",
        "-0",
        "${a.b}",
        "${x}",
        "$(",
        "$((1/0))",
        "<<EOF\n",
        "!!python/object:os ",
        "|",
        ">-",
    ),
    *(
        "\t",
        "    ",
        "#",
        ",",
        ";",
        "&&",
        "../../etc/passwd",
        "/dev/zero",
        "@",
        "%",
        "a.b=c ",
        "x" * 300,
        "[" * 50,
        "(" * 50,
        "${a:-" * 20,
    ),
]


VALUES = [
    *("-1", "0", "1e400", "9" * 400, "0x7fffffffffffffff", ".inf", "1_000_000", "18446744073709551616", "3.5", "1e-320"),
    *(
        "[1, 2, [3]]",
        "{a: {b: c}}",
        "'true '",
        "2026-11-26",
        "~",
        "''",
        '"\\ud800"',
        "\u202e128",
        "１２８",
        "١٢",
        "🦙" * 40,
        "\ufeff8",
    ),
    *("a.b.c", "..", "*x", "&x [*x]", "<<: *x", "? a", "!!binary aGk=", "!!int x", "!!set {a}", "%YAML 9.9"),
]
"""What a value may be that none is: numbers that are too large, other types, other alphabets, YAML's rarer forms."""


LEGAL = [
    *("float16", "bfloat16", "float32", "none", "auto", "int8", "8", "4", "2", "1", "true", "false", "fp4", "nf4", "fp8", "int4"),
    *("lora", "full", "dora", "adalora", "vera", "boft", "ia3", "hqq", "eetq", "gptq", "awq", "sft", "dpo", "kto", "orpo", "rm"),
    *(
        "grpo",
        "ppo",
        "gkd",
        "seq_cls",
        "flash_attn",
        "eager",
        "sdpa",
        "zero1",
        "zero3",
        "zero2_offload",
        "fsdp",
        "fsdp2",
        "liger",
    ),
    *("adamw", "sgd", "muon", "lion", "adafactor", "all-linear", "q_proj,v_proj", "1.5", "0.0"),
]
"""Words that some setting of some framework has, each of which is given to all."""
SMALLEST = {
    "axolotl": "base_model: gpt2\nadapter: lora\nsequence_len: 256\n",
    "llama-factory": "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: lora\ncutoff_len: 256\n",
    "llama-factory-v1": "model: gpt2\nmodel_class: llm\nmicro_batch_size: 1\npeft_config: {name: lora}\n",
    "ms-swift": "model: gpt2\ntuner_type: lora\nmax_length: 256\n",
    "trl": "model_name_or_path: gpt2\nuse_peft: true\nmax_length: 256\n",
    "litgpt": "checkpoint_dir: checkpoints/gpt2\nlora_r: 8\ntrain: {max_seq_length: 256}\n",
    "torchtune": "model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b}\ntokenizer: {max_seq_len: 256}\n",
    "nemo-automodel": "recipe: x\nmodel: {pretrained_model_name_or_path: gpt2}\npeft: {dim: 8}\n",
    "oumi": "model: {model_name: gpt2}\ntraining: {use_peft: true}\n",
    "openrlhf": "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path gpt2",
    "ms-swift-megatron": "megatron sft --model Qwen/Qwen2.5-0.5B --max_length 256",
    "verl": "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=gpt2",
    "vllm": "vllm serve gpt2",
    "sglang": "python -m sglang.launch_server --model-path gpt2",
    "llama.cpp": "llama-server -m gpt2",
}


def each_value() -> Iterator[str]:
    """The smallest file of each framework with one more of its settings, of each word that is some setting's."""
    for whose, text in SMALLEST.items():
        data = framework(whose)
        written = {key for one in data.edits.values() for key in ([one] if isinstance(one, str) else [])}
        for key in sorted({*data.defaults, *data.aliases, *data.left, *written, *MORE}):
            for value in LEGAL:
                if "\n" not in text:
                    yield f"{text} {key}={value}" if whose == "verl" else f"{text} --{key} {value}"
                    continue
                section, _, inner = key.partition(".")
                yield text + (f"{section}: {{{inner}: '{value}'}}\n" if inner else f"{section}: '{value}'\n")


MORE = (
    *("quantization", "quantization_bit", "load_in_4bit", "load_in_8bit", "dtype", "torch_dtype", "lora_dtype", "quant_method"),
    *("quant_bits", "bf16", "fp16", "optim", "optimizer", "deepspeed", "fsdp", "attn_implementation", "attn_impl", "packing"),
)
"""Settings that have no default, of several frameworks."""


def _bomb(rng: random.Random) -> str:
    """Settings that stand for far more than they say, or lie deep within each other."""
    depth = rng.choice([3, 9, 40, 300, 3000])
    return rng.choice(
        [
            "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, min(depth, 60))),
            "deep: " + "[" * depth + "]" * depth + "\n",
            "deep: " + '{"a":' * depth + "1" + "}" * depth + "\n",
            ".".join(["a"] * depth) + " = 1\n",
            "".join(f"{'  ' * i}a{i}:\n" for i in range(min(depth, 300))),
            "--a" + ".b" * depth + "=1 ",
            "".join(f"k{i}: {i}\n" for i in range(depth)),
        ]
    )


def mutated(rng: random.Random, texts: list[str]) -> str:
    """One of the texts, otherwise."""
    text = rng.choice(texts)
    coarse = rng.randrange(8)
    if coarse == 0:
        text = text[: rng.randrange(len(text) + 1)]
    elif coarse == 1:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + "\n" * rng.randrange(2) + _bomb(rng) + text[at:]
    elif coarse == 2:
        lines = text.split("\n")
        for _ in range(rng.choice([1, 3, 10])):
            at = rng.randrange(len(lines))
            key, separator, _value = lines[at].partition(rng.choice([": ", "=", " "]))
            lines[at] = key + separator + rng.choice(VALUES)
        text = "\n".join(lines)
    if coarse < 2 and rng.randrange(2):
        return text[:LONGEST]
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        lines = text.split("\n")
        at, place = rng.randrange(len(lines)), rng.randrange(len(text) + 1)
        kind = rng.randrange(7)
        if kind == 0:
            text = text[:place] + rng.choice(PIECES) + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + rng.randrange(1, 30) :]
        elif kind == 2:
            lines.insert(at, lines[rng.randrange(len(lines))])
            text = "\n".join(lines)
        elif kind == 3:
            key, separator, _ = lines[at].partition(rng.choice([":", "=", " "]))
            lines[at] = key + separator + " " * (separator == ":") + rng.choice(PIECES)
            text = "\n".join(lines)
        elif kind == 4:
            other = rng.choice(texts).split("\n")
            text = "\n".join([*lines[:at], *rng.sample(other, min(len(other), 3)), *lines[at:]])
        elif kind == 5:
            lines[at] = rng.choice(["  ", "    ", ""]) + lines[at].lstrip()
            text = "\n".join(lines)
        else:
            times = rng.choice([2, 5, 50])
            text = text.replace(lines[at], lines[at] * min(times, LONGEST // len(lines[at]) + 1), 1) if lines[at] else text
        text = text[:LONGEST]  # here, not at the end: 300 characters, fifty times fifty times, are gigabytes of the fuzzer's own
    return text


def attacked(folder: Path, seconds: float, seed: int) -> int:
    """How many texts were read as none may be."""
    rng, bad, seen, slowest = random.Random(seed), 0, Counter[str](), 0.0
    cases = content(TESTS / "cases" / "framework_files.yaml")["cases"]
    texts = [path.read_text(encoding="utf-8") for path in files(folder)] + [case["text"] for case in cases if case["text"]]
    values = list(each_value())
    for text in texts:  # what is read once and kept, such as the catalogue
        attempt(text, None)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text, given = mutated(rng, texts), rng.choice([None, None, None, rng.choice(READ)])
        if not rng.randrange(6):
            text, given = rng.choice(values), None
        begun = time.process_time()
        said = attempt(text, given)
        took = time.process_time() - begun
        slowest = max(slowest, took)
        seen[said.partition("\n")[0] if "\n" not in said else "raised"] += 1
        if "\n" in said or took > MOST_SECONDS:
            bad += 1
            print(f"{took:.1f} s, as {given}: {said}\n{text[:3000]!r}\n", flush=True)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) * 1024
    print(
        f"{seen.total()} texts: {dict(seen)}; the slowest took {slowest:.2f} s, {more / 1e6:.0f} MB more in all", file=sys.stderr
    )
    return bad + (more > MOST_BYTES)


def attempt(text: str, given: str | None) -> str:
    """What became of a text, on two GPUs or on those that it asks for: a word, or lines of a traceback."""
    asked = Hardware(gpus=2) if len(text) % 2 else None
    try:
        read(text, given, around=Surroundings(hardware=asked, allow_files=False)).model_dump_json()
    except WillItFitError as error:
        return type(error).__name__
    except Exception:
        return traceback.format_exc(limit=-6)
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="files to begin with")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return min(1, attacked(options.folder, options.seconds, options.seed))


if __name__ == "__main__":
    sys.exit(main())
