"""What a Python script, or a notebook, trains or serves, in the settings of the framework that it calls.

Told by what is called (known.yaml, `calls`), with the names under which it was imported. Trainers are looked at before engines:
a script that trains and then serves is a training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from estimator.contract.errors import NoJob, NotModelled
from estimator.exchange import recognise
from estimator.exchange.found import Assumed, LeftOut
from estimator.exchange.python.reader import Reader
from estimator.exchange.python.source import Source
from estimator.exchange.python.values import Made, Named, Unread, plain

TRAINER = re.compile(r"(?:Unsloth|Seq2Seq)?(\w*?)Trainer")
LOADED = re.compile(r"(?:from_pretrained|from_config)$")
UNWRAPPED = re.compile(
    r"(?:get_peft_model|prepare_model_for_(?:kbit|int8)_training|compile|for_training|prepare|patch_peft_model)$"
)
"""Functions that give a model back."""
OBJECTS = (
    ("model", "args", "tokenizer", "processing_class", "train_dataset", "eval_dataset", "data_collator", "compute_metrics"),
    ("callbacks", "optimizers", "ref_model", "peft_config", "quantization_config", "formatting_func", "reward_funcs"),
    ("preprocess_logits_for_metrics", "model_init", "device_map", "token", "task_type", "inference_mode", "judge"),
    ("optimizer_cls_and_kwargs", "reward_processing_classes", "reward_model", "value_model", "compute_loss_func"),
)
NOT_SETTINGS = frozenset(name for names in OBJECTS for name in names)
"""Arguments of trainers and of loading that are objects, or are read by themselves."""
HEADS = {
    "AutoModelForSequenceClassification": "sequence-classification",
    "AutoModelForTokenClassification": "token-classification",
}
ADAPTERS = ("LoraConfig",)
ENGINES = {"vllm": "model", "sglang": "model_path"}
"""Engines, and which argument of theirs is the model."""


@dataclass
class Said:
    """A script's settings, in the words of a framework."""

    framework: str
    program: str
    settings: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)
    expandable: bool = False
    notebook: bool = False

    def take(self, made: Made, rename: dict[str, str] | None = None, only: frozenset[str] | None = None) -> None:
        """A call's keywords, by the framework's names for them; what is not read is named, what is an object passed over."""
        for name, value in made.keywords.items():
            if (name in NOT_SETTINGS and self.framework not in ENGINES) or (only is not None and name not in only):
                continue
            self.put((rename or {}).get(name, name), value, made.lines.get(name, made.line))
        for hidden in made.hidden:
            self.leave(f"**{hidden}", made.line, "settings that only running the script would tell")

    def put(self, key: str, value: Any, line: int = 0) -> None:
        """A setting, the first that says it."""
        if isinstance(value, Unread):
            if key not in self.settings:
                self.leave(key, line, f"{value.why}: only running the script would tell; the framework's default is taken")
        elif isinstance(value, Made):
            self.leave(key, line, f"{value.name[:40]}(…): only running the script would tell; the framework's default is taken")
        elif not plain(value):
            self.leave(key, line, "holds what only running the script would tell; the framework's default is taken")
        elif value is not None and key not in self.settings:
            self.settings[key] = str(value) if isinstance(value, Named) else value
            self.lines[key] = 0 if self.notebook else line

    def leave(self, key: str, line: int, why: str) -> None:
        """What is not read, named once."""
        if len(self.left_out) < 200 and all(one.key != key for one in self.left_out):
            self.left_out.append(LeftOut(key=key, line=None if self.notebook or not line else line, why=why))

    def assume(self, key: str, value: Any, why: str) -> None:
        """What is filled in, named once."""
        self.assumed.append(Assumed(key=key, value=value, why=why))


def read(found: Source, options: dict[str, Any] | None = None) -> Said:
    """What a script does. Raises `NoJob` for one that calls nothing which is known."""
    reader = Reader(found, options)
    known = [(whose, made) for made in reader.made if (whose := recognise.called(made.name)) is not None]
    if not known:
        raise NoJob(_nothing(reader), "script")
    order = [one.framework for one in recognise.known().calls]
    whose, made = min(known, key=lambda one: order.index(one[0]))
    trainers = [one for one in reader.made if TRAINER.fullmatch(one.last)]
    if whose == "unsloth":
        if not trainers:
            raise NotModelled("the script loads a model with Unsloth, and makes no trainer of TRL's or transformers'", "script")
        made = trainers[0]
    said = Said(whose, made.last, notebook=found.notebook)
    said.expandable = "expandable_segments:true" in reader.environment.get("PYTORCH_CUDA_ALLOC_CONF", "").lower().replace(" ", "")
    if whose in ENGINES:
        said.take(made)
        said.put(ENGINES[whose], made.argument("", 0), made.line)
    else:
        _trainer(said, made, reader)
    for name, why in reader.assumed.items():
        said.assume(name, None, why)
    count = sum(one[0] == whose for one in known) if whose != "unsloth" else len(trainers)
    if count > 1:
        said.assume("script", 1, f"the script makes {count} of them; the first is read")
    return said


def _nothing(reader: Reader) -> str:
    """Why a script cannot be read."""
    loop = any(one.last in ("Accelerator", "backward") or one.name == ".backward" for one in reader.made)
    if loop:
        return (
            "is a training loop of its own, which is not read: TRL's and transformers' trainers, Unsloth, vLLM's LLM and "
            "SGLang's Engine are; write a job, or measure it with willitfit.watch"
        )
    return "calls none of what is read: a trainer of TRL's or transformers', Unsloth, vLLM's LLM, or SGLang's Engine"


def _trainer(said: Said, trainer: Made, reader: Reader) -> None:
    """A trainer's arguments, and of its model how it was loaded, quantized and adapted."""
    kind = TRAINER.fullmatch(trainer.last)
    said.program = kind[1].lower() if kind and kind[1] else "sft"
    args = trainer.argument("args", _place(trainer, said.framework))
    if isinstance(args, Made):
        said.take(args, _ARGUMENTS)
        if said.framework == "trl" and "TrainingArguments" in args.last:
            for key, value in (("bf16", False), ("gradient_checkpointing", False)):
                if key not in said.settings and key not in args.keywords:
                    said.put(key, value)
                    said.assume(
                        key, value, "transformers' TrainingArguments have it so, and TRL's trainer takes all of theirs over"
                    )
    elif isinstance(args, Unread):
        said.leave("args", trainer.line, f"{args.why}: only running the script would tell; defaults are taken")
    said.take(trainer, _ARGUMENTS)
    model = trainer.argument("model", 0)
    _model(said, model if model is not None else trainer.argument("model_init"), reader)
    peft = trainer.argument("peft_config")
    if isinstance(peft, Made):
        _adapter(said, peft)
    elif isinstance(peft, Unread):
        said.leave("peft_config", trainer.line, f"{peft.why}: only running the script would tell; read without an adapter")
    if said.framework == "transformers" and "max_length" not in said.settings:
        _cut(said, reader)


_ARGUMENTS = {"torch_dtype": "dtype", "lora_target_modules": "lora_target_modules"}


def _place(trainer: Made, whose: str) -> int:
    """Where the arguments stand among those without a name."""
    pairs = any(word in trainer.last for word in ("DPO", "KTO", "PPO"))
    return 2 if pairs else 1


def _model(said: Said, model: Any, reader: Reader) -> None:
    """How the trainer's model came about, from the last that was done with it to its loading."""
    for made in _history(model):
        last = made.last
        if last == "get_peft_model" and ("unsloth" in made.name or any("unsloth" in str(one.name) for one in _history(made))):
            said.take(made, {**_LORA, "model": "model"})
            said.settings.setdefault("use_peft", True)
        elif last == "get_peft_model":
            config = made.argument("peft_config", 1)
            if isinstance(config, Made):
                _adapter(said, config)
            else:
                said.leave("peft_config", made.line, "only running the script would tell; LoRA by PEFT's defaults is taken")
                said.settings.setdefault("use_peft", True)
        elif last.startswith("prepare_model_for"):
            said.settings["prepared_for_kbit_training"] = True
            if made.argument("use_gradient_checkpointing", 1) is not False:
                said.settings["gradient_checkpointing"] = True
        elif LOADED.search(last):
            _loaded(said, made)
        if "gradient_checkpointing_enable" in made.done:
            said.settings["gradient_checkpointing"] = True
    if isinstance(model, str):
        said.put("model_name_or_path" if said.framework != "unsloth" else "model_name", model)
    if isinstance(kwargs := said.settings.pop("model_init_kwargs", None), dict):
        for key, value in kwargs.items():
            said.put(_ARGUMENTS.get(str(key), str(key)), value, said.lines.get("model_init_kwargs", 0))


def _history(model: Any) -> Iterator[Made]:
    """A model's calls, the last first."""
    for _ in range(20):
        if not isinstance(model, Made):
            return
        yield model
        inner = model.argument("model", 0)
        model = inner if UNWRAPPED.search(model.last) else None


def _loaded(said: Said, made: Made) -> None:
    """`from_pretrained`: the model, its type, and how it is quantized."""
    unsloth = said.framework == "unsloth"
    names = ("model_name", "pretrained_model_name_or_path", "model_name_or_path", "model_id")
    name = next((made.keywords[one] for one in names if one in made.keywords), made.argument("", 0))
    if isinstance(name, Unread):
        said.leave("model", made.line, f"{name.why}: only running the script would tell; say which with --model")
    else:
        said.put("model_name" if unsloth else "model_name_or_path", name, made.line)
    rest = Made(made.name, [], {key: value for key, value in made.keywords.items() if key not in names}, made.lines, made.line)
    if unsloth:
        said.take(rest)
        return
    rest.hidden = made.hidden
    if made.argument("use_flash_attention_2") is True:
        rest.keywords["attn_implementation"] = "flash_attention_2"
    said.take(rest, _ARGUMENTS, frozenset(("torch_dtype", "dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")))
    said.settings.setdefault("dtype", "auto")
    quantized = made.argument("quantization_config")
    if isinstance(quantized, Made) and quantized.last == "BitsAndBytesConfig":
        said.take(quantized, {"bnb_4bit_use_double_quant": "use_bnb_nested_quant"}, _BITS)
        if said.settings.get("load_in_4bit") and "bnb_4bit_compute_dtype" not in said.settings:
            said.settings["bnb_4bit_compute_dtype"] = "float32"
            said.assume("bnb_4bit_compute_dtype", "float32", "BitsAndBytesConfig's own: 4-bit layers compute in float32")
    elif isinstance(quantized, Made | Unread | dict):
        said.leave("quantization_config", made.line, "is not read: only BitsAndBytesConfig is; the weights are taken as they are")
    head = next((head for kind, head in HEADS.items() if kind in made.name), None)
    if head:
        said.settings["head"] = head
        said.put("num_labels", made.argument("num_labels"), made.line)
    elif "AutoModelFor" in made.name and not re.search(r"AutoModelFor(?:CausalLM|ImageTextToText|Vision2Seq)", made.name):
        said.leave("model", made.line, f"{made.name.split('.')[-2]}: read as the model's usual head and loss")


_BITS = frozenset(
    (
        "load_in_4bit",
        "load_in_8bit",
        "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant",
        "bnb_4bit_quant_storage",
        "bnb_4bit_compute_dtype",
    )
)
_LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
    "bias": "lora_bias",
}


def _adapter(said: Said, config: Made) -> None:
    """PEFT's configuration of an adapter."""
    if config.last not in ADAPTERS:
        raise NotModelled(
            f"PEFT's {config.last[:40]} is not read from a script yet: LoraConfig is; write a job with its adapter", "script"
        )
    said.settings["use_peft"] = True
    said.take(config, _LORA)
    for key, value in (("lora_r", 8), ("lora_dropout", 0.0)):
        if key not in said.settings:
            said.settings[key] = value
            said.assume(key, value, "PEFT's own (LoraConfig)")
    if said.settings.get("lora_bias") not in (None, "none"):
        said.leave(
            "bias", config.line, f"{said.settings['lora_bias']}: biases that are trained beside an adapter are not counted"
        )
    said.settings.pop("lora_bias", None)


def _cut(said: Said, reader: Reader) -> None:
    """The length at which a tokenizer cuts samples."""
    for made in reader.made:
        tokens = made.argument("max_length")
        cuts = made.argument("truncation")
        if isinstance(tokens, int) and not isinstance(tokens, bool) and cuts not in (None, False) and tokens > 0:
            said.put("max_length", tokens, made.lines.get("max_length", made.line))
            said.assume("max_length", tokens, "where the script's tokenizer cuts samples")
            return
        if isinstance(tokens := made.argument("model_max_length"), int) and 0 < tokens < 10**7:
            said.put("max_length", tokens, made.line)
            return
