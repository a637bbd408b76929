"""The trial of an API on a terminal: its result in one line, and its progress while somebody waits for it."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from app.base.text import visible
from app.client.server import ServerError
from app.client.words import Listing, readable_error

_SECONDS, _TO_BEGIN = 60.0, 10.0
_PAUSE_SECONDS = 0.5
_OPEN = ("waiting", "running")
_RESULTS = {True: "right", False: "wrong", None: "-"}

QUESTIONS = Listing(
    ("result", "right answer", "given", "question"),
    lambda each: (_RESULTS[each["correct"]], each["right"], _given(each), each["question"]),
    items="questions",
)

Trial = Mapping[str, Any]
"""As the server shows it."""


def summary_of(trial: Trial, api: str) -> str:
    """The trial of this API.

    >>> new = {"state": "waiting", "right": 0, "asked": 0, "reason": None, "remark": None, "release": None}
    >>> summary_of(new, "desk"), summary_of({**new, "state": "done", "right": 4, "asked": 5, "release": 2}, "desk")
    ('waiting', '4 of 5 right by release 2')
    >>> summary_of({**new, "state": "done", "right": 4, "asked": 5, "release": 2, "outdated_by": 3}, "desk")
    '4 of 5 right by release 2, outdated: release 3 serves now, and is tried soon'
    >>> summary_of({**new, "state": "not_tried", "reason": "its lists are empty"}, "desk")
    'not tried: its lists are empty (to try it again: sage apis trial desk --again)'
    """
    score = f"{trial['right']} of {trial['asked']} right"
    if trial.get("release") is not None:
        score += f" by release {trial['release']}"
    old = trial.get("outdated_by")
    text_of_done = score if old is None else f"{score}, outdated: release {old} serves now, and is tried soon"
    said = {"done": text_of_done, "running": f"running, {score} so far" if trial["asked"] else "running"}
    text = said.get(trial["state"], trial["state"].replace("_", " "))
    more = trial["remark"] or trial["reason"]
    if trial["state"] == "not_tried":
        more = f"{more} (to try it again: sage apis trial {api} --again)"
    return f"{text}: {more}" if more else str(text)


def wait_for_trial(look: Callable[[], Trial], api: str, command: str) -> None:
    """Tell on standard error, if that is a terminal, how the trial goes: to its end, or for a minute, or for ten
    seconds if it does not begin. Ctrl-C, or a server that does not answer, ends the wait alone. The `command`
    shows it later, as is told where nothing waits.
    """
    if not sys.stderr.isatty():
        click.echo(f"the model is asked about it; see the trial with:  {command}", err=True)
        return
    began, told = time.monotonic(), ""
    try:
        while True:
            trial = look()
            if (line := _line(trial, api)) != told:
                told = line
                click.echo(visible(line), err=True)
            if trial["state"] not in _OPEN:
                return
            begun = trial["state"] == "running" or trial["questions"]
            if time.monotonic() - began > (_SECONDS if begun else _TO_BEGIN):
                break
            time.sleep(_PAUSE_SECONDS)
    except KeyboardInterrupt:
        click.echo(err=True)
    except ServerError as error:
        click.echo(readable_error(str(error)), err=True)
    click.echo(f"the trial goes on; see it with:  {command}", err=True)


def _line(trial: Trial, api: str) -> str:
    answered = sum(each["correct"] is not None for each in trial["questions"])
    if trial["state"] in _OPEN and answered:
        return f"trial: {answered} of {trial['asked']} questions answered, {trial['right']} of them right"
    return f"trial: {summary_of(trial, api)}"


def _given(tried: Mapping[str, Any]) -> str:
    if tried["given"] is None:
        return "-" if tried["stop"] is None else f"none ({tried['stop'].replace('_', ' ')})"
    return str(tried["given"])[:60]
