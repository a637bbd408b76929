"""The templates of the console, and what they may call."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from app.apis.binary_values import readable
from app.console import formats
from app.console.assets import asset_url
from app.console.code import code_block, json_block
from app.console.navigation import NAVIGATION
from app.records import explored, shown_model, what_to_do
from app.score_source import GRADES, in_words
from app.security.visible_text import visible

_DIRECTORY = Path(__file__).parent / "templates"


def render(template: str, **values: object) -> str:
    """Values are escaped, and a name that is not given is an error."""
    return _environment().get_template(template).render(**values)


def _seen(value: object) -> object:
    """What a template prints; markup is made of texts that were printed before."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_DIRECTORY),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    filters: dict[str, Any] = {
        "count": formats.count,
        "model": shown_model,
        "percent": formats.percent,
        "duration": formats.duration,
        "score": formats.score,
        "money": formats.money,
        "in_words": in_words,
        "explored": explored,
        "size": formats.size,
        "signed": formats.signed,
        "when": formats.when,
        "code": code_block,
        "as_json": json_block,
        "readable": readable,
        "exact": escape,  # of a field that is sent back
    }
    environment.filters.update(filters)
    environment.globals.update(navigation=NAVIGATION, asset=asset_url, grades=GRADES, what_to_do=what_to_do)
    return environment
