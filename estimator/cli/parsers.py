"""The argument parsers: of the headline question, and of all commands."""

from __future__ import annotations

import argparse

from estimator.cli.commands import COMMANDS
from estimator.cli.options import (
    ENGINE_HELP,
    HARDWARE_HELP,
    MODEL_HELP,
    RUN_HELP,
    SPECS_HELP,
    TASKS,
    takes_data,
    takes_lengths,
    takes_release,
)
from estimator.contract.version import SOFTWARE_VERSION

DESCRIPTION = """\
Says, before a GPU is rented and without one, whether a transformer fits, why, and what would make it fit.

  willitfit MODEL --on HARDWARE     the headline question, for every usual way of using the model
  willitfit FILE --on HARDWARE      the answer to a training framework's file, an engine's command, or a job
  willitfit QUESTION                as it is spoken: will 13B fit on 2x24GB, which gpu for 70B, what models fit on 24GB
  willitfit estimate JOB.yaml       one job in full
  willitfit verify JOB.yaml         the same beside what torch counts
  willitfit max JOB FIELD           the largest number with which it fits, such as training.sequence_length
  willitfit min JOB FIELD           the smallest, such as hardware.gpus
  willitfit what-if JOB FIELD=VALUES   the job with other values, as a table or a picture: training.sequence_length=1k..128k
  willitfit sweep JOB FIELD=VALUES  what it takes with a million combinations of values, and which fit
  willitfit which MODEL|JOB         which cards are enough, and how many of each: the smallest, the cheapest
  willitfit replicas MODEL|JOB --requests 10/s   how many copies of a served model a load needs, and where they cost least
  willitfit timeline JOB            live bytes over a step, tensor by tensor: as a picture, a trace, a snapshot
  willitfit explain JOB --measured FILE   what was measured beside what is predicted, and what would explain it
  willitfit fix FILE --on HARDWARE  the smallest edits of a file that make it fit, in its own keys, as a patch
  willitfit diff A B                what differs between two files or jobs: settings, memory and seconds by part
  willitfit check FILES             whether the jobs of files fit, as a gate asks: with annotations, SARIF, Markdown
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
  willitfit mcp                     the same as tools of an assistant, by the Model Context Protocol
"""


def headline_parser() -> argparse.ArgumentParser:
    """The argument parser of `willitfit MODEL --on HARDWARE`, which is no command."""
    parser = _parser()
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}; or a configuration, a script or a job (see import)")
    parser.add_argument("--on", metavar="HARDWARE", help=HARDWARE_HELP)
    parser.add_argument("--task", metavar="TASK", help=f"only the ways of one task: {', '.join(TASKS)}")
    parser.add_argument("--engine", metavar="NAME", help=ENGINE_HELP)
    takes_lengths(parser)
    parser.add_argument("--tokens", metavar="COUNT", help=RUN_HELP)
    takes_data(parser)
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if no way of using the model fits")
    parser.add_argument("--model", dest="of", metavar="NAME", help="the model, where a configuration names none")
    takes_release(parser)
    parser.add_argument("--specs", metavar="DIR", help=SPECS_HELP)
    parser.add_argument("--version", action="version", version=f"willitfit {SOFTWARE_VERSION}")
    return parser


def command_parser() -> argparse.ArgumentParser:
    """The argument parser of all commands; `command` in what it returns is the name of the one that was given."""
    parser = _parser()
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS.values():
        command.options(commands)
    return parser


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="willitfit", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
