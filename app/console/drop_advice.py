"""Why a run did not learn from tasks, and what to do about it: the table of the manual."""

import re
from functools import cache
from typing import NamedTuple

from markupsafe import Markup

from app.web.manual import DIRECTORY, render, served_at

_HEAD = "| reason | meaning | what to do |"


class Advice(NamedTuple):
    meaning: Markup
    advice: Markup


@cache
def drop_advice() -> dict[str, Advice]:
    """By reason.

    >>> "POST /v1/feedback" in drop_advice()["unscored"].advice
    True
    """
    lines = (DIRECTORY / "training.md").read_text(encoding="utf-8").partition(f"{_HEAD}\n")[2].splitlines()[1:]
    found = {}
    for line in lines:
        if not line.startswith("|"):
            break
        reasons, meaning, advice = (cell.strip() for cell in line.strip("|").split("|"))
        for reason in re.findall(r"`(\w+)`", reasons):
            found[reason] = Advice(_inline(meaning), _inline(advice))
    return found


def _inline(text: str) -> Markup:
    html = render(text, served_at).html.strip()
    return Markup(html.removeprefix("<p>").removesuffix("</p>"))  # of the manual, which is ours
