"""The usual forms of questions: will 13B fit on 2x24GB? how fast is 70B on 8xH100? which GPU for 13B? what models fit on 24GB?"""

from __future__ import annotations

import re

from estimator.questions.asked import USERS, Asked, Details

_METHODS = "qlora", "lora"
"""Ways of training that may stand before the model: qlora 13B on 24GB."""
HOW_TO_ASK = (
    "Ask 'will 13B fit on 2x24GB', 'how fast is 70B on 8xH100 for 20 users', 'how many H100 for 70B', 'which gpu for 13B', "
    "'what models fit on 24GB', or write willitfit MODEL --on HARDWARE"
)
_DOES = r"(run|serve|host|load|fit|hold|train|fine[- ]?tune|running|serving|hosting|training|fine[- ]?tuning)( of)?"
_MODAL = "will|would|do|does|can|could|should"
_WE = "i|we|you|it"
_HOW = (
    "(how (fast|quick|quickly)|how many (tokens|tok)( per |/)s(ec(ond)?)?|what (speed|throughput))"
    rf"( ({_MODAL}) ({_WE}) get( from| with)?)?"
)
_RUN = rf"(how long|how much|what)( ({_MODAL}))?( ({_WE}))?( (take|cost|need))? to"
_FAR = (
    r"(what|how (much|long))('s| is)?( the)?( (max(imum)?|longest))?( a)? (context|ctx)( (length|window))?"
    rf"( ({_MODAL}|is possible))?( ({_WE}))?( (get|have|use))?( (for|of|with))?"
)
_ONCE = "at (once|a time|the same time)"
_PEOPLE = r"how many (concurrent |parallel |simultaneous )?(users|people|requests|clients|sequences)"
_MANY = rf"{_PEOPLE}( {_ONCE})? ({_MODAL})"
_KIND = r"(gpu memory|gpu ram|gpu|graphics card|card|hardware|machine|vram|memory)"
_ASKS = f"{_MODAL}|did|is|are"
_NEEDS = rf"( ({_ASKS}|{_WE}|one|need|needed|take|required|use|buy|rent|enough))*( (for|to|with))?"
_BEST = "cheapest|smallest|minimum|best"
_AMOUNT = r"(\d+ ?x ?)?\d+ ?gi?b"
_HERE = re.compile(r"(this|my) (machine|computer|laptop|pc|mac|gpu|card|box|server)", re.IGNORECASE)


def _any(*patterns: str) -> list[re.Pattern[str]]:
    # DOTALL, without which a line's end within makes the first try every ` on ` to the end
    return [re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in patterns]


_MODELS = _any(
    rf"(what( size)?|which|how (big|large) a)(('s| is) the)?( (largest|biggest|best))?( (models?|llms?))?( that)?"
    rf"( ({_MODAL}|{_WE}))* (fit|fits|run|runs|serve)( run)? (on|in|with) (?P<hardware>.+)",
    r"(what|which)(('s| is) the)?( (largest|biggest|best))? (models?|llms?) for (?P<hardware>.+)",
)
_USERS = _any(
    rf"{_MANY} (i|we|you) (serve|handle|have|host) (with|of) (?P<model>.+?) on (?P<hardware>.+)",
    rf"{_MANY} (i|we|you) (serve|handle|have|host)( (on|with))? (?P<hardware>.+?) (with|running) (?P<model>.+)",
    rf"{_PEOPLE}( {_ONCE})? (for|with|of) (?P<model>.+?) on (?P<hardware>.+)",
    rf"{_PEOPLE}( {_ONCE})? (fit )?on (?P<hardware>.+?) (with|running) (?P<model>.+)",
    rf"(?P<model>.+?) on (?P<hardware>.+?),? {_PEOPLE}( {_ONCE})?( ({_MODAL}) .+)?",
    rf"{_MANY} (?P<model>.+?) (serve|handle|bear) on (?P<hardware>.+)",
    rf"{_MANY} (?P<model>.+?) on (?P<hardware>.+) (serve|handle|bear)",
    rf"{_MANY} (use|run) (?P<model>.+?)( {_ONCE})? on (?P<hardware>.+)",
    rf"{_MANY} (?P<hardware>.+?) (serve|handle|run|bear)( (with|of|running))? (?P<model>.+)",
)
_HEADLINE = _any(
    rf"(({_HOW}|{_FAR}|{_RUN}|how long) )?((is|{_MODAL}) )?(({_WE}) )?(do )?({_DOES} )?"
    rf"(?P<model>.+?)( ({_MODAL}))?( (fit|run|work|go|get|have|take))? on (?P<hardware>.+?)( take)?",
    rf"({_MODAL}) (?P<model>.+?) (fit|run)( (in|into))? (?P<hardware>{_AMOUNT})",
    rf"({_MODAL}) (({_WE}) )?({_DOES} )?(?P<model>.+?)( (fit|run|work))? (in|into|with|using) (?P<hardware>.+)",
    rf"({_MODAL}) (?!({_WE}) )(?P<hardware>.+?) ({_DOES}|handle) (?P<model>.+)",
    rf"(is|are) (?P<hardware>.+?) (enough|sufficient) (for|to)( {_DOES})? (?P<model>.+)",
    rf"do (i|we) need (?P<hardware>.+?) (for|to)( {_DOES})? (?P<model>.+)",
    rf"(on|with|(i|we) have) (?P<hardware>.+?),? ({_MODAL}) (({_WE}) )?({_DOES} )?(?P<model>.+?)( (fit|run|work))?",
    # how many of some card: of one it says what it would fit with
    rf"how many (?P<hardware>(?!{_KIND}s?\b|tok|users|people)(\S+ ){{0,2}}?\S+?)s?(?= ({_ASKS}|to|for|with) ){_NEEDS}( {_DOES})? "
    r"(?P<model>.+?)( (need|take|require))?",
)
_WHICH = _any(
    rf"((what|which|how many|how much)(('s| is)( the)?)?( ({_BEST}))? {_KIND}s?{_NEEDS}|((the )?({_BEST}) )?{_KIND}s? (for|to))"
    rf"( (?P<does>{_DOES}|fits|qlora|lora)( of)?)? (?P<model>.+?)( (need|take|require|use|fit on|run on))?",
    rf"({_RUN} (?P<does>{_DOES}|qlora|lora)( of)?|what (do|would) (i|we) need for) (?P<model>.+)",
    rf"(what|where) (can|could|should) (i|we) (?P<does>{_DOES}) (?P<model>.+?)( on)?( cheapest)?",
)
"""Which card, how many of any, how much memory, where a run is cheapest."""
_ARTICLE = re.compile("^(an?|the) | model$", re.IGNORECASE)


def shaped(text: str, details: Details) -> Asked | None:
    """What a question of a usual form asks, with `details` that were said beside; None if it has none."""
    if said := _said(_MODELS, text):
        return Asked("models", on=place(said["hardware"]), details=details)
    if said := _said(_USERS, text):
        return Asked("limit", _model(said), place(said["hardware"]), limited(details), USERS)
    if said := _said(_HEADLINE, text):
        how, _, model = _model(said).partition(" ")
        if not model or how.lower() not in _METHODS:
            return Asked("fit", _model(said), place(said["hardware"]), details)
        task = {} if "task" in details else {"task": how.lower()}
        return Asked("fit", model.removeprefix("of "), place(said["hardware"]), task | details)
    if said := _said(_WHICH, text):
        task = {} if "task" in details else method(said["does"] or "")
        return Asked("hardware", _model(said), details=task | details)
    return None


def limited(details: Details) -> Details:
    """What is said beside where the number of users is asked for: of a model that is served, unless how is said."""
    return {"task": "serve", **details}


def _said(patterns: list[re.Pattern[str]], text: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := pattern.fullmatch(text))), None)


def _model(said: re.Match[str]) -> str:
    return _ARTICLE.sub("", said["model"])


def place(hardware: str) -> str:
    """What it is to run on: this machine, where that is what is said."""
    return "here" if _HERE.fullmatch(hardware) else hardware


def method(does: str) -> Details:
    """The task where hardware is asked for, to train a model: the method that is named, else the one that needs the least."""
    if does.lower() in _METHODS:
        return {"task": does.lower()}
    return {"task": "qlora"} if re.match("train|fine", does, re.IGNORECASE) else {}
