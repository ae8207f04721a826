"""Questions as they are spoken, as arguments: will 13B fit on 2x24GB? how fast is 70B on 8xH100? which GPU for 13B?"""

from __future__ import annotations

import re

_METHODS = "qlora", "lora"
"""Ways of training that may stand before the model: qlora 13B on 24GB."""
LONGEST = 400
"""Characters of a question."""
_DOES = r"(run|serve|host|load|train|fine[- ]?tune)"
_HOW = r"(how (fast|quick|quickly)|how many (tokens|tok)( per |/)s(ec(ond)?)?|what (speed|throughput))"
_QUESTIONS = [
    re.compile(pattern, re.IGNORECASE | re.DOTALL)  # without which a line's end within makes it try every ` on ` to the end
    for pattern in (
        rf"({_HOW} )?((is|will|would|does|do|can (i|we)) )?({_DOES} )?(?P<model>.+?)( (fit|run|work|go))? on (?P<hardware>.+)",
        rf"(will|would|does|can (i|we)) ({_DOES} )?(?P<model>.+?)( (fit|run|work))? (in|with|using) (?P<hardware>.+)",
        rf"(will|would|does|do|can|could) (?!(i|we|you) )(?P<hardware>.+?) ({_DOES}|fit|handle) (?P<model>.+)",
        rf"(is|are) (?P<hardware>.+?) enough (for|to ({_DOES}|fit)) (?P<model>.+)",
    )
]
_KIND = r"(gpu|graphics card|card|hardware|machine|vram|gpu memory|gpu ram|memory)"
_ASKS = "do|does|did|can|could|would|should|will|is|are"
_NEEDS = rf"( ({_ASKS}|it|i|we|you|one|need|needed|take|required|use|buy|rent|enough))*( (for|to))?"
_NAMED = re.compile(
    rf"how many (?P<hardware>(?!{_KIND}s?\b|tok)(\S+ ){{0,2}}?\S+)(?= ({_ASKS}|to|for) ){_NEEDS}( {_DOES})? "
    r"(?P<model>.+?)( (need|take|require))?",
    re.IGNORECASE | re.DOTALL,
)
"""How many of some card: the headline says of one what it would fit with."""
_WHICH = re.compile(
    rf"(what|which|how many|how much)( is the)?( cheapest| smallest| best)? {_KIND}s?{_NEEDS}( (?P<does>{_DOES}|qlora|lora))? "
    r"(?P<model>.+?)( (need|take|require|use|fit on|run on))?( with (?P<method>qlora|lora))?",
    re.IGNORECASE | re.DOTALL,
)
"""Which card, how many of any, how much memory: all that is asked by `which`."""
_DETAILS = [
    (option, re.compile(pattern, re.IGNORECASE))
    for option, pattern in (
        ("--concurrency", r" (for|with) (?P<value>\d+) ((concurrent|parallel) )?(users|people|requests|sequences)"),
        ("--context", r" (with|at) (an? )?(?P<value>\d+k?)( tokens)?( of)? (context|ctx)( length)?"),
        ("--context", r" (with|at) (an? )?(context|ctx)( length)?( of)? (?P<value>\d+k?)( tokens)?"),
    )
]
"""What may be said beside, and the option that means it."""


def asked(question: str) -> list[str] | None:
    """The arguments that a question stands for: its model, --on with its hardware, and the numbers that it names; `which` and its
    task where hardware is what is asked for; None if it is no question, or longer than `LONGEST`."""
    text, details = question.strip().rstrip("? "), list[str]()
    if len(text) > LONGEST:
        return None
    for option, pattern in _DETAILS:
        if (found := pattern.search(text)) is not None:
            details += [option, found["value"]]
            text = text[: found.start()] + text[found.end() :]
    known = next((match for pattern in _QUESTIONS if (match := pattern.fullmatch(text))), None)
    if known is None and (named := _NAMED.fullmatch(text)) is not None:
        card = re.sub(r"(?<=\d)s$", "", named["hardware"])  # 4090s
        return [named["model"], "--on", card, *details]
    if known is None:
        which = _WHICH.fullmatch(text)
        return None if which is None else ["which", which["model"], *_task(which["method"] or which["does"] or ""), *details]
    how, _, model = known["model"].partition(" ")
    if model and how.lower() in _METHODS:
        return [model, "--on", known["hardware"], "--task", how.lower(), *details]
    return [known["model"], "--on", known["hardware"], *details]


def _task(does: str) -> list[str]:
    """What `which` is asked where a model is to be trained: the method that is named, else the one that needs the least."""
    if does.lower() in _METHODS:
        return ["--task", does.lower()]
    return ["--task", "qlora"] if re.fullmatch("train|fine.*", does, re.IGNORECASE) else []
