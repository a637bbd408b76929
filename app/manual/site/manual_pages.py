"""The pages of this package, rendered once and searchable."""

import posixpath
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from app.manual.site.markdown import Section, render
from app.manual.site.search import Entry, SearchIndex

ROOT = "/manual"
DIRECTORY = Path(__file__).parents[1]
INDEX = "README"  # as code hosts show it for the folder
_IMAGES = "images/"


class ManualPage(msgspec.Struct, frozen=True):
    name: str
    path: str
    html: str
    sections: Sequence[Section]

    @property
    def title(self) -> str:
        return self.sections[0].heading


class Manual(msgspec.Struct, frozen=True):
    """Pages by name, in the order in which the first page links to them."""

    pages: Mapping[str, ManualPage]
    index: SearchIndex


@cache
def load_manual() -> Manual:
    """Read and render every page: a fraction of a second, at the first request."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.md")}
    order = sorted(sources, key=lambda name: (name != INDEX, sources[INDEX].find(f"]({name}.md)")))
    pages = {name: _page(name, sources[name]) for name in order}
    entries = [
        Entry(page.path, page.title, section.anchor, section.heading, section.text)
        for page in pages.values()
        for section in page.sections
    ]
    return Manual(pages, SearchIndex(entries))


def served_at(link: str) -> str | None:
    """The address that a link of a page has when served; None for files that are only in the repository.

    >>> served_at("tutorial.md#train"), served_at("README.md"), served_at("images/loop.svg")
    ('/manual/tutorial#train', '/manual', '/manual/images/loop.svg')
    >>> served_at("https://arxiv.org/abs/2512.17102"), served_at("#top"), served_at("../../trainer/gate.py")
    ('https://arxiv.org/abs/2512.17102', '#top', None)
    """
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    if parts.path.startswith(_IMAGES):
        return posixpath.join(ROOT, parts.path)
    if "/" in parts.path or not parts.path.endswith(".md"):
        return None
    path = _path(parts.path.removesuffix(".md"))
    return f"{path}#{parts.fragment}" if parts.fragment else path


def _path(name: str) -> str:
    return ROOT if name == INDEX else f"{ROOT}/{name}"


def _page(name: str, source: str) -> ManualPage:
    document = render(source, served_at)
    return ManualPage(name, _path(name), document.html, document.sections)
