"""Questions as they are spoken, as arguments: will 13B fit on 2x24GB? how fast is 70B on 8xH100? which GPU for 13B?"""

from __future__ import annotations

import re

_METHODS = "qlora", "lora"
"""Ways of training that may stand before the model: qlora 13B on 24GB."""
LONGEST = 400
"""Characters of a question."""
_DOES = r"(run|serve|host|load|train|fine[- ]?tune)"
_HOW = r"(how (fast|quick|quickly)|how many (tokens|tok)( per |/)s(ec(ond)?)?|what (speed|throughput))"
_RUN = r"(how long|how much|what)( (does|would|will))?( it)?( (take|cost))? to"
_FAR = r"what('s| is) the (max(imum)?|longest) (context|ctx)( (length|window))?( (for|of|with))?"
_MANY = r"how many (users|people|requests)( at (once|a time|the same time))? (can|could|does|do|will|would)"
_KIND = r"(gpu|graphics card|card|hardware|machine|vram|gpu memory|gpu ram|memory)"
_ASKS = "do|does|did|can|could|would|should|will|is|are"
_NEEDS = rf"( ({_ASKS}|it|i|we|you|one|need|needed|take|required|use|buy|rent|enough))*( (for|to))?"
_HERE = re.compile(r"(this|my) (machine|computer|laptop|pc|mac|gpu|card|box|server)", re.IGNORECASE)


def _any(*patterns: str) -> list[re.Pattern[str]]:
    # DOTALL, without which a line's end within makes the first try every ` on ` to the end
    return [re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in patterns]


_MODELS = _any(
    r"(what|which) models? (can|will|could|do|does)? ?(i |we )?(fit|fits|run|serve)( run)? (on|in|with) (?P<hardware>.+)"
)
_USERS = _any(
    rf"{_MANY} (?P<model>.+?) (serve|handle|bear) on (?P<hardware>.+)",
    rf"{_MANY} (?P<hardware>.+?) (serve|handle|run|bear)( (with|of))? (?P<model>.+)",
)
_HEADLINE = _any(
    rf"(({_HOW}|{_FAR}|{_RUN}) )?((is|will|would|does|do|can (i|we)) )?({_DOES} )?"
    r"(?P<model>.+?)( (fit|run|work|go))? on (?P<hardware>.+)",
    rf"(will|would|does|can (i|we)) ({_DOES} )?(?P<model>.+?)( (fit|run|work))? (in|with|using) (?P<hardware>.+)",
    rf"(will|would|does|do|can|could) (?!(i|we|you) )(?P<hardware>.+?) ({_DOES}|fit|handle) (?P<model>.+)",
    rf"(is|are) (?P<hardware>.+?) enough (for|to ({_DOES}|fit)) (?P<model>.+)",
    # how many of some card: of one it says what it would fit with
    rf"how many (?P<hardware>(?!{_KIND}s?\b|tok|users)(\S+ ){{0,2}}?\S+?)s?(?= ({_ASKS}|to|for) ){_NEEDS}( {_DOES})? "
    r"(?P<model>.+?)( (need|take|require))?",
)
_WHICH = _any(
    rf"(what|which|how many|how much)( is the)?( cheapest| smallest| best)? {_KIND}s?{_NEEDS}( (?P<does>{_DOES}|qlora|lora))? "
    r"(?P<model>.+?)( (need|take|require|use|fit on|run on))?( with (?P<method>qlora|lora))?",
    rf"{_RUN} (?P<does>{_DOES}|qlora|lora) (?P<model>.+?)( with (?P<method>qlora|lora))?",
)
"""Which card, how many of any, how much memory, where a run is cheapest."""
_DETAILS = [
    (option, re.compile(pattern, re.IGNORECASE))
    for option, pattern in (
        ("--concurrency", r" (for|with) (?P<value>\d+) ((concurrent|parallel) )?(users|people|requests|sequences)"),
        ("--context", r" (with|at) (an? )?(?P<value>\d+k?)( tokens)?( of)? (context|ctx)( length)?"),
        ("--context", r" (with|at) (an? )?(context|ctx)( length)?( of)? (?P<value>\d+k?)( tokens)?"),
        ("--context", r" at (?P<value>\d+k)( tokens)?(?= |$)"),
        ("--tokens", r" (on|with|for|over) (?P<value>[\d.]+[kmbt]?) tokens"),
    )
]
"""What may be said beside, and the option that means it."""


def asked(question: str) -> list[str] | None:
    """The arguments that a question stands for: its model, --on with its hardware, and the numbers that it names; `which` and its
    task where hardware is what is asked for, `models` where models are; None if it is no question, or longer than `LONGEST`."""
    text, details = question.strip().rstrip("? "), list[str]()
    if len(text) > LONGEST:
        return None
    for option, pattern in _DETAILS:
        if option not in details and (found := pattern.search(text)) is not None:
            details += [option, found["value"]]
            text = text[: found.start()] + text[found.end() :]
    if said := _said(_MODELS, text):
        return ["models", "--fits", "--on", _place(said["hardware"]), *details]
    if not details and (said := _said(_USERS, text)):
        return ["max", said["model"], "serving.concurrency", "--task", "serve", "--on", _place(said["hardware"])]
    if said := _said(_HEADLINE, text):
        how, _, model = said["model"].partition(" ")
        method = how.lower() if model and how.lower() in _METHODS else None
        task = ["--task", method] if method else []
        return [model if method else said["model"], "--on", _place(said["hardware"]), *task, *details]
    if said := _said(_WHICH, text):
        return ["which", said["model"], *_task(said["method"] or said["does"] or ""), *details]
    return None


def _said(patterns: list[re.Pattern[str]], text: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := pattern.fullmatch(text))), None)


def _place(hardware: str) -> str:
    """What it is to run on: this machine, where that is what is said."""
    return "here" if _HERE.fullmatch(hardware) else hardware


def _task(does: str) -> list[str]:
    """What `which` is asked where a model is to be trained: the method that is named, else the one that needs the least."""
    if does.lower() in _METHODS:
        return ["--task", does.lower()]
    return ["--task", "qlora"] if re.fullmatch("train|fine.*", does, re.IGNORECASE) else []
