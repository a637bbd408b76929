"""The manual's HTML pages: rendered text with navigation, and search results."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.manual.site.manual_pages import Manual
from app.manual.site.markdown import styles

_HERE = Path(__file__).parent
_TEMPLATES = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)


def page_html(manual: Manual, name: str) -> str:
    """Raises KeyError for an unknown page."""
    names = list(manual.pages)
    place = names.index(name)
    return _TEMPLATES.get_template("page.html").render(
        manual=manual,
        page=manual.pages[name],
        query="",
        previous=manual.pages[names[place - 1]] if place else None,
        following=manual.pages[names[place + 1]] if place + 1 < len(names) else None,
    )


def search_html(manual: Manual, query: str) -> str:
    found = manual.index.find(query)
    return _TEMPLATES.get_template("search.html").render(manual=manual, page=None, query=query, found=found)


@cache
def stylesheet() -> str:
    return styles() + (_HERE / "style.css").read_text(encoding="utf-8")
