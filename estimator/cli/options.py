"""The command line's options: what each command takes, and the help that it gives."""

from __future__ import annotations

import argparse
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from estimator.facts.spelling import shown

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DESCRIPTION = """\
Says, before a GPU is rented and without one, whether a transformer fits, why, and what would make it fit.

  willitfit MODEL --on HARDWARE     the headline question, for every usual way of using the model
  willitfit FILE --on HARDWARE      the answer to a training framework's file, an engine's command, or a job
  willitfit estimate JOB.yaml       one job in full
  willitfit verify JOB.yaml         the same beside what torch counts
  willitfit max JOB FIELD           the largest number with which it fits, such as training.sequence_length
  willitfit min JOB FIELD           the smallest, such as hardware.gpus
  willitfit what-if JOB FIELD=VALUES   a table and a picture of it with other values: training.sequence_length=1k..128k
  willitfit which MODEL|JOB         every card, and how few of it, that does it; the smallest, the cheapest
  willitfit timeline JOB            live bytes over a step, tensor by tensor: as a picture, a trace, a snapshot
  willitfit explain JOB --measured FILE   what was measured beside what is predicted, and what would explain it
  willitfit fix FILE --on HARDWARE  the smallest edits of a file that make it fit, in its own keys, as a patch
  willitfit diff A B                what differs between two files or jobs: settings, memory and seconds by part
  willitfit budget JOB.yaml         every way to rent what it needs, by cost and hours
  willitfit models [WORDS]          which models are known; `models show MODEL`: what one is made of
  willitfit models --fits --on HARDWARE   which of them fit there: here is this machine
  willitfit gpus [WORDS]            which accelerators are known; all about one, with sources
  willitfit nodes [WORDS]           the same of systems and clouds' instances
  willitfit prices [WORDS]          what can be rented, and for how much; `prices refresh`: today's prices
  willitfit ask JOB.yaml --as slurm the resources to request: GPUs, memory of the host, disk
  willitfit export JOB.yaml         its parallelism for DeepSpeed, Accelerate, torchtitan or Megatron-LM
  willitfit import FILE             what a file of theirs, axolotl's, TRL's, vLLM's, … says, as a job
  willitfit serve                   the same as REST and a web page
"""
MODEL_HELP = "name or alias (llama-2-13b), size (13B, 8x7B), hub id, or path to a config.json or spec"
SPECS_HELP = "folder of your own specs, which add to the shipped ones and override them (also: WILLITFIT_SPECS)"
PRICES_HELP = "price list of your own, which adds to the shipped one and overrides it (also: WILLITFIT_PRICES)"
HARDWARE_HELP = (
    "2x24GB, rtx-4090, 8xH100, p5.48xlarge, '2 nodes of 8xA100-80GB'; here: this machine; here:free: less what is in use"
)
SERVICE = {
    "workers": ("N", "processes that answer new questions; without it, one for each processor"),
    "seconds": ("S", "processor time that a question may take (20)"),
    "memory": ("SIZE", "memory that a question may take (1GiB)"),
    "queue": ("N", "questions that may wait (64)"),
    "root_path": ("PATH", "path under which a proxy offers the service, such as /fit"),
}
"""Options of `serve` that are settings of the service; docs/rest.md has all of these."""
PLATFORMS = ("slurm", "skypilot", "dstack", "kubernetes", "kserve")
"""Of whom resources are asked, in the order of `estimator.exchange.ask.TO`."""
FORMATS = ("deepspeed", "accelerate", "torchtitan", "megatron")
"""Formats that jobs are exported to."""
TASKS = ("serve", "serve-8bit", "serve-4bit", "qlora", "lora", "full", "full-mixed")
"""Usual ways of using a model, by the short names of `estimator.planner.ways`, which is not imported for the sake of speed."""
FRAMEWORKS = (
    *FORMATS,
    "axolotl",
    "llama-factory",
    "trl",
    "transformers",
    "ms-swift",
    "ms-swift-megatron",
    "nemo-automodel",
    "litgpt",
    "torchtune",
    "oumi",
    "deepspeed-chat",
    "vllm",
    "vllm-recipe",
    "sglang",
    "llama.cpp",
    "ollama",
    "skypilot",
    "dstack",
    "kserve",
    "kubernetes",
)
"""Whose files are imported, in the order of `estimator.exchange.READ`, which is not imported for the sake of speed."""


def headline_parser() -> argparse.ArgumentParser:
    """The argument parser of `willitfit MODEL --on HARDWARE`, which is no command."""
    parser = argparse.ArgumentParser(
        prog="willitfit", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}; or a configuration, a script or a job (see import)")
    parser.add_argument("--on", metavar="HARDWARE", required=True, help=HARDWARE_HELP)
    _takes_lengths(parser)
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if no way of using the model fits")
    parser.add_argument("--model", dest="of", metavar="NAME", help="the model, where a configuration names none")
    parser.add_argument("--specs", metavar="DIR", help=SPECS_HELP)
    parser.add_argument("--version", action="version", version=f"willitfit {_version()}")
    return parser


def command_parser() -> argparse.ArgumentParser:
    """The argument parser of all commands; `command` in what it returns is the name of the one that was given."""
    parser = argparse.ArgumentParser(
        prog="willitfit", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (
        _estimate,
        _max,
        _min,
        _what_if,
        _which,
        _timeline,
        _explain,
        _fix,
        _diff,
        _budget,
        _verify,
        _models,
        _gpus,
        _nodes,
        _prices,
        _ask,
        _export,
        _import,
        _serve,
        _mcp,
    ):
        add(commands)
    return parser


def _takes_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB.yaml", help="a job file; - reads standard input")


def _takes_any_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job",
        metavar="JOB",
        help="a job file, or a file of a framework, a command or a script (see import); - reads standard input",
    )
    parser.add_argument("--on", metavar="HARDWARE", help=f"what it is to run on, in place of what the file says: {HARDWARE_HELP}")


def _takes_lengths(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--context", metavar="TOKENS", type=_tokens, help="served sequences of so many tokens (4096)")
    parser.add_argument("--concurrency", metavar="N", type=_whole, default=1, help="so many of them at the same time (1)")
    parser.add_argument("--sequence", metavar="TOKENS", type=_tokens, help="train on sequences of so many tokens (2048)")
    parser.add_argument("--batch", metavar="N", type=_whole, default=1, help="so many of them at a time on each GPU (1)")


def _takes_file(parser: argparse.ArgumentParser) -> None:
    """A framework's file, and what is asked of it."""
    text = "YAML, JSON, TOML, a command or a script, which is not run; - reads standard input"
    parser.add_argument("file", metavar="FILE", help=text)
    parser.add_argument("--from", dest="given", metavar="FRAMEWORK", help=f"whose it is: {', '.join(FRAMEWORKS)}")
    parser.add_argument("--model", metavar="MODEL", help=f"the job's model: {MODEL_HELP}")
    parser.add_argument("--on", metavar="HARDWARE", help=f"what it is to run on, in place of what the file says: {HARDWARE_HELP}")


def _takes_specs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--specs", metavar="DIR", help=SPECS_HELP)


def _takes_prices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prices", metavar="FILE", help=PRICES_HELP)


def _estimate(commands: Commands) -> None:
    one = commands.add_parser("estimate", help="answer one job file in full", description="Answer one job in full.")
    _takes_job(one)
    one.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    one.add_argument("--explain", action="store_true", help="name the tensors that are alive at the peak")
    one.add_argument("--ranks", action="store_true", help="list every stage of a pipeline, and what ranks exchange")
    one.add_argument("--check", action="store_true", help="exit with 1 if the job does not fit")
    _takes_specs(one)
    _takes_prices(one)


def _max(commands: Commands) -> None:
    _limit(commands, "max", "largest", "training.sequence_length, serving.concurrency")


def _min(commands: Commands) -> None:
    _limit(commands, "min", "smallest", "hardware.gpus, serving.n_cpu_moe")


def _limit(commands: Commands, name: str, what: str, such_as: str) -> None:
    one = commands.add_parser(
        name,
        help=f"the {what} value of a number in a job with which it fits",
        description=f"Find the {what} value of a whole number in a job with which it fits, and what is in the way of the next.",
    )
    _takes_any_job(one)
    one.add_argument("field", metavar="FIELD", help=f"the number's dotted name: {such_as}, …")
    one.add_argument(
        "--tries", metavar="N", type=_whole, default=8, help="where neighbours jump, so many are estimated one by one (8)"
    )
    one.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    one.add_argument("--check", action="store_true", help="exit with 1 if it fits with no value")
    _takes_specs(one)


def _what_if(commands: Commands) -> None:
    one = commands.add_parser(
        "what-if",
        help="a job with every combination of other values of its fields",
        description="Estimate a job with every combination of some values of some of its fields. Values are lists (ddp,fsdp2), "
        "ranges that double (1k..128k) or go in steps (8..64:8); of whole numbers k is 1024, of tokens in all 1000. hardware "
        "takes phrases such as 2x24GB. An interrupt (Ctrl-C) ends it and prints what was done.",
    )
    _takes_any_job(one)
    one.add_argument(
        "changes", metavar="FIELD=VALUES", nargs="+", help="training.sequence_length=1k..128k parallelism.strategy=ddp,fsdp2"
    )
    one.add_argument("--plot", metavar="FILE.svg", help="draw it, as SVG")
    shown = one.add_mutually_exclusive_group()
    shown.add_argument("--csv", action="store_true", help="print the rows as CSV")
    shown.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    _takes_specs(one)


def _which(commands: Commands) -> None:
    one = commands.add_parser(
        "which",
        help="which hardware does it: the smallest, the cheapest, and why less does not",
        description="Try every card that is known, from one of it to many, and list how few of each use a model in a usual way, "
        "or hold a job, the smallest first. An interrupt (Ctrl-C) ends the search and prints what was found.",
    )
    one.add_argument(
        "asked", metavar="MODEL|JOB", help=f"{MODEL_HELP}; or a job, or a file of a framework, whose hardware does not count"
    )
    one.add_argument("--task", metavar="TASK", help=f"what a model is used for: {', '.join(TASKS)} (serve)")
    one.add_argument("--within", metavar="TIME", help="what a run may take: 24h, 3d, 90min")
    one.add_argument("--under", metavar="MONEY", help="what it may cost: '$50' or '50 EUR' the whole run, '$2/h' an hour")
    one.add_argument("--tokens", metavar="COUNT", help="what a run processes: 100M, 1e9")
    one.add_argument("--memory", metavar="AMOUNT", help="only cards sold with so much: 24GB, 24GB..80GB, ..48GB, 80GB..")
    _takes_lengths(one)
    one.add_argument("--max-gpus", metavar="N", type=_whole, default=64, help="on no more GPUs than these (64)")
    one.add_argument("--top", metavar="N", type=_whole, default=20, help="so many rows (20)")
    one.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    one.add_argument("--check", action="store_true", help="exit with 1 if no hardware does it")
    _takes_specs(one)
    _takes_prices(one)


def _timeline(commands: Commands) -> None:
    one = commands.add_parser(
        "timeline",
        help="live bytes over a step, tensor by tensor",
        description="Show what is alive in the course of a step, of the rank that needs most, and write it as a picture, as a "
        "trace or as a memory snapshot of torch.",
    )
    _takes_any_job(one)
    one.add_argument("--svg", metavar="FILE", help="write it as a picture: stacked areas, a colour for each component")
    one.add_argument("--chrome", metavar="FILE", help="write it as a trace for ui.perfetto.dev or chrome://tracing")
    one.add_argument("--snapshot", metavar="FILE", help="write it as a memory snapshot, for pytorch.org/memory_viz")
    one.add_argument(
        "--tensors", metavar="N", type=_whole, default=1000, help="in JSON, list so many tensors, the largest (1000)"
    )
    one.add_argument("--json", action="store_true", help="print it as REST would send it")
    _takes_specs(one)


def _explain(commands: Commands) -> None:
    one = commands.add_parser(
        "explain",
        help="what was measured beside what is predicted",
        description="Line up measured memory with a job's: an out-of-memory message, torch's memory summary or snapshot (of "
        "which nothing is run), nvidia-smi's samples, a trainer's or an engine's log; and say what would explain the difference.",
    )
    _takes_any_job(one)
    one.add_argument("--measured", metavar="FILE", required=True, help="the record; - reads standard input")
    one.add_argument("--json", action="store_true", help="print it as REST would send it")
    one.add_argument("--check", action="store_true", help="exit with 1 if the record is not explained")
    _takes_specs(one)


def _fix(commands: Commands) -> None:
    mended = commands.add_parser(
        "fix",
        help="the smallest edits of a file that make it fit",
        description="Find the smallest edits of a framework's file, a command or a job with which it fits, in the file's own "
        "keys, and print them as a patch (patch -p0). Each fix was read and estimated again.",
    )
    _takes_file(mended)
    mended.add_argument("--write", action="store_true", help="apply the first fix to the file")
    mended.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    mended.add_argument("--check", action="store_true", help="exit with 1 if nothing makes it fit")
    _takes_specs(mended)


def _diff(commands: Commands) -> None:
    two = commands.add_parser(
        "diff",
        help="what differs between two files or jobs",
        description="Compare two files of frameworks, commands or jobs: the settings that differ after defaults, with each "
        "default's reason, then memory at the peak by part, then the time of a step by part.",
    )
    two.add_argument("a", metavar="A", help="a job file, or a file of a framework, a command or a script (see import)")
    two.add_argument("b", metavar="B", help="another, or the same one")
    two.add_argument("--on", metavar="HARDWARE", help=f"what both are to run on, in place of what they say: {HARDWARE_HELP}")
    two.add_argument("--model", metavar="MODEL", help=f"the model, where a file names none: {MODEL_HELP}")
    two.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    two.add_argument("--check", action="store_true", help="exit with 1 if a setting differs")
    _takes_specs(two)


def _budget(commands: Commands) -> None:
    rented = commands.add_parser(
        "budget",
        help="every way to rent what a job needs",
        description="Rank the offers that hold a training job by what its run costs; training.tokens says how much that is.",
    )
    _takes_job(rented)
    rented.add_argument("--max-cost", metavar="MONEY", type=_money, help="no dearer ones, in the offers' currency")
    rented.add_argument("--max-hours", metavar="HOURS", type=_positive, help="no slower ones")
    rented.add_argument("--max-gpus", metavar="N", type=_whole, default=64, help="on no more GPUs than these (64)")
    rented.add_argument("--gpu", metavar="NAME", help="only on this accelerator")
    for name, what in (
        ("provider", "of this provider"),
        ("region", "in this region"),
        ("kind", "paid for so: spot, reserved-1y"),
    ):
        rented.add_argument(f"--{name}", metavar=name.upper(), help=f"only offers {what}")
    rented.add_argument("--top", metavar="N", type=_whole, default=20, help="so many rows (20)")
    rented.add_argument("--json", action="store_true", help="print the rows as JSON, each with its job")
    rented.add_argument("--check", action="store_true", help="exit with 1 if it cannot be done within the limits")
    _takes_specs(rented)
    _takes_prices(rented)


def _verify(commands: Commands) -> None:
    judged = commands.add_parser(
        "verify",
        help="let torch judge one job's answer",
        description="Play a training job's real model on fake tensors, and print what torch counts beside what was predicted.",
    )
    _takes_job(judged)
    judged.add_argument("--json", action="store_true", help="print both counts as JSON")
    judged.add_argument("--check", action="store_true", help="exit with 1 if the two counts are more than 0.5 %% apart")
    _takes_specs(judged)


def _models(commands: Commands) -> None:
    models = commands.add_parser(
        "models",
        help="models that are known, or what one is made of",
        description="List the known models whose names have the words in them, smallest first; after `show`, count one model's "
        "parameters by module, by layer and in bytes; after `add`, write a spec of one that is not known into your own folder.",
    )
    models.add_argument(
        "words",
        metavar="WORDS",
        nargs="*",
        help=f"parts of a name, however written; or: show MODEL, a {MODEL_HELP}; or: add PATH or HUB_ID",
    )
    models.add_argument("--name", metavar="NAME", help="with add: what it is to be called")
    models.add_argument("--min", metavar="SIZE", type=_size, default=0, help="no smaller ones: 1B, 350M")
    models.add_argument("--max", metavar="SIZE", type=_size, default=float("inf"), help="no larger ones")
    models.add_argument("--json", action="store_true", help="print them as JSON")
    fits = models.add_argument_group("--fits", "which of them fit on some hardware, the newest and largest first")
    fits.add_argument(
        "--fits", action="store_true", help="only those, with the type of weights, the context and tokens per second"
    )
    fits.add_argument("--on", metavar="HARDWARE", help=HARDWARE_HELP)
    fits.add_argument("--task", metavar="TASK", default="serve", help=f"what they are used for: {', '.join(TASKS)} (serve)")
    _takes_lengths(fits)
    fits.add_argument("--top", metavar="N", type=_whole, default=20, help="so many, after which no more are looked at (20)")
    _takes_specs(models)


def _gpus(commands: Commands) -> None:
    _hardware(
        commands,
        "gpus",
        "accelerators",
        "a name, a vendor, an architecture, a form (sxm5), an amount of memory (24GB)",
    )


def _nodes(commands: Commands) -> None:
    _hardware(commands, "nodes", "systems and clouds' instances", "a name, a provider, an accelerator, a number of GPUs (8x)")


def _hardware(commands: Commands, name: str, what: str, kinds: str) -> None:
    listed = commands.add_parser(
        name,
        help=f"{what} that are known, or all about one",
        description=f"List the {what} that have all the words; if only one has, or they are its name, every fact about it "
        "with its sources. Unverified is what no second source confirms.",
    )
    listed.add_argument("words", metavar="WORDS", nargs="*", help=f"parts of {kinds}")
    listed.add_argument("--json", action="store_true", help="print them as JSON")
    _takes_prices(listed)


def _prices(commands: Commands) -> None:
    offered = commands.add_parser(
        "prices",
        help="what can be rented, and for how much",
        description="List the offers that have the words in them, cheapest per GPU first; after `refresh`, write today's prices, "
        "as gpuhunt finds them, to your own price list.",
    )
    offered.add_argument(
        "words", metavar="WORDS", nargs="*", help="of provider, instance, accelerator, kind or region; or: refresh"
    )
    offered.add_argument("--json", action="store_true", help="print them as JSON, with their sources")
    offered.add_argument("--provider", metavar="NAME", action="append", default=[], help="refresh: only this one (repeatable)")
    offered.add_argument("--output", metavar="FILE", help="refresh: write there (~/.config/willitfit/prices.yaml)")
    _takes_prices(offered)


def _ask(commands: Commands) -> None:
    out = commands.add_parser(
        "ask",
        help="the resources to request for a job",
        description="Print the resources to request for a job, as Slurm's header, or YAML of SkyPilot, dstack, Kubernetes or "
        "KServe: nodes, GPUs and which, memory of the host, and disk for what is saved, where known.",
    )
    _takes_job(out)
    out.add_argument("--as", dest="to", choices=PLATFORMS, required=True, help="whom they are asked of")
    _takes_specs(out)


def _export(commands: Commands) -> None:
    out = commands.add_parser(
        "export",
        help="a job's parallelism for the program that runs it",
        description="Print a job's parallelism as DeepSpeed's JSON, Accelerate's YAML, torchtitan's TOML or Megatron arguments.",
    )
    _takes_job(out)
    out.add_argument("--to", choices=FORMATS, required=True, help="the program")
    _takes_specs(out)


def _import(commands: Commands) -> None:
    back = commands.add_parser(
        "import",
        help="a job of another program's configuration",
        description="Print what a configuration, a command or a script that holds one says, as a job file. Whose it is, is told "
        "by what it says; files that it points to are read beside it. What the job does not have, and what the framework's "
        "defaults filled in, goes to standard error.",
    )
    _takes_file(back)
    back.add_argument("--json", action="store_true", help="print job, left_out and assumed as JSON")
    _takes_specs(back)


def _serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="start the REST service and the web page", description="Start the service.")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=_port, default=8000, help="port to listen on (8000)")
    for name, (metavar, text) in SERVICE.items():
        serve.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=f"{text} (also: WILLITFIT_{name.upper()})")
    _takes_specs(serve)
    _takes_prices(serve)


def _mcp(commands: Commands) -> None:
    mcp = commands.add_parser(
        "mcp",
        help="answer agents over the Model Context Protocol",
        description="Offer the questions of the command line as tools for agents, over standard input and output.",
    )
    mcp.add_argument("--http", action="store_true", help="speak streamable HTTP at /mcp instead")
    mcp.add_argument("--host", default="127.0.0.1", help="address to listen on, with --http (127.0.0.1)")
    mcp.add_argument("--port", type=_port, default=8001, help="port to listen on, with --http (8001)")
    _takes_specs(mcp)
    _takes_prices(mcp)


def _size(text: str) -> float:
    number, unit = text[:-1], text[-1:].lower()
    try:
        return float(number) * {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[unit]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of parameters; write 350M or 7B") from None


def _money(text: str) -> Decimal:
    try:
        found = Decimal(text)
    except InvalidOperation:
        found = Decimal(0)
    if not found.is_finite() or found <= 0:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no amount of money; write 50 or 49.90")
    return found


def _positive(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of hours; write 24 or 0.5")
    return found


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= 2**17:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no such number; write one from 1 to {2**17}")
    return int(text)


def _tokens(text: str) -> int:
    if not text.isdecimal() or len(text) > 8 or not 1 <= int(text) <= 2**24:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no such number; write one from 1 to {2**24}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no port; write a number from 1 to 65535")
    return int(text)


def _version() -> str:
    from estimator.contract.version import SOFTWARE_VERSION

    return SOFTWARE_VERSION
