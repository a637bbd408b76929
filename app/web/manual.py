"""The manual as web pages, served from this machine: no key, no script, nothing from elsewhere.

The pages of `app/manual`, and those made from the code, are rendered once, from Markdown, and can be searched.
"""

import math
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Litestar, MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.router import Router
from litestar.static_files import create_static_files_router
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from app.base.errors import NotFoundError

ROOT = "/manual"
DIRECTORY = Path(__file__).parents[1] / "manual"
INDEX = "README"  # as code hosts show it for the folder
_IMAGES = "images/"
_SITE = DIRECTORY / "site"
_TEMPLATES = Environment(loader=FileSystemLoader(_SITE), autoescape=True, undefined=StrictUndefined)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_HEADING_WEIGHT = 4
_PREFIX_WEIGHT = 0.3  # weight of a prefix match
_K1, _B = 1.2, 0.75  # BM25, as Robertson and Zaragoza (2009) suggest
_CONTEXT = 90  # characters on each side of the first hit

Resolve = Callable[[str], str | None]
"""The address that a link or an image of a page has when served; None for a file that is not."""


class Section(msgspec.Struct, frozen=True):
    """A heading and the text up to the next one."""

    level: int  # 1 for the page's title
    anchor: str  # as code hosts make it
    heading: str
    text: str


def render(text: str, resolve: Resolve) -> tuple[str, list[Section]]:
    """The HTML of a page and its sections, of which the first has its title. HTML in the source is shown as text.

    >>> html, sections = render("# Tea\\nSee [milk](milk.md).\\n## On `ice`\\n", {"milk.md": "/milk"}.get)
    >>> [(each.anchor, each.heading, each.text) for each in sections]
    [('tea', 'Tea', 'See milk.'), ('on-ice', 'On ice', '')]
    >>> "<a href=\\"/milk\\">milk</a>" in html
    True
    """
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlight}).enable("table")
    parser.add_render_rule("table_open", _open_table)
    parser.add_render_rule("table_close", _close_table)
    tokens = parser.parse(text)
    sections = _sections(tokens)
    headings = [token for token in tokens if token.type == "heading_open"]
    for heading, section in zip(headings, sections, strict=True):
        heading.attrSet("id", section.anchor)
    for token in tokens:
        _resolve_links(token.children or [], resolve)
    return parser.renderer.render(tokens, parser.options, {}), sections


def _sections(tokens: Sequence[Token]) -> list[Section]:
    found: list[Section] = []
    taken: dict[str, int] = {}
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open":
            heading = _plain(token)
            found.append(Section(int(before.tag[1:]), _anchor(heading, taken), heading, ""))
        elif token.type in ("inline", "fence", "code_block") and found:
            text = f"{found[-1].text} {_plain(token)}".strip()
            found[-1] = msgspec.structs.replace(found[-1], text=text)
    return found


def _anchor(heading: str, taken: dict[str, int]) -> str:
    """
    >>> taken = {}
    >>> _anchor("POST /v1/tasks: do it", taken), _anchor("Post v1tasks do it", taken)
    ('post-v1tasks-do-it', 'post-v1tasks-do-it-1')
    """
    plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    count = taken.get(plain, 0)
    taken[plain] = count + 1
    return f"{plain}-{count}" if count else plain


def _plain(token: Token) -> str:
    if token.type != "inline":
        return " ".join(token.content.split())
    return "".join(
        " " if each.type in ("softbreak", "hardbreak") else each.content for each in token.children or []
    )


def _resolve_links(tokens: Sequence[Token], resolve: Resolve) -> None:
    """Turn links to files that are not served into plain text."""
    tag = "a"
    for token in tokens:
        if token.type == "image":
            token.attrSet("src", resolve(str(token.attrs["src"])) or "")
            token.attrSet("loading", "lazy")
        elif token.type == "link_open":
            target = resolve(str(token.attrs["href"]))
            token.attrs = {"class": "file"} if target is None else {**token.attrs, "href": target}
            token.tag = tag = "span" if target is None else "a"
        elif token.type == "link_close":
            token.tag = tag


def _highlight(code: str, language: str, _: str) -> str:
    """Highlight a block. It has its `pre` already, because the renderer would put `code` around it."""
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    marked: str = highlight(code, lexer, HtmlFormatter(nowrap=True))
    return f'<pre class="code" tabindex="0"><code>{marked}</code></pre>'


def _open_table(self: RendererHTML, tokens: Sequence[Token], place: int, options: OptionsDict, _: EnvType) -> str:
    """Open a table in a box of its own, so that wide ones scroll inside the page."""
    return f'<div class="table" tabindex="0">{self.renderToken(tokens, place, options, {})}'


def _close_table(self: RendererHTML, tokens: Sequence[Token], place: int, options: OptionsDict, _: EnvType) -> str:
    return f"{self.renderToken(tokens, place, options, {})}</div>"


class Entry(msgspec.Struct, frozen=True):
    """A section in the index."""

    page: str
    title: str  # of its page
    section: Section


class SearchHit(msgspec.Struct, frozen=True):
    entry: Entry
    excerpt: Sequence[tuple[str, bool]]  # pieces of the text; True: matches the query


class SearchIndex:
    """Sections ranked by BM25 over heading and text. Words of the query also match as prefixes."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._counts = [_count(entry) for entry in entries]
        self._mean = sum(map(Counter.total, self._counts)) / max(1, len(entries))

    def find(self, query: str, limit: int = 20) -> list[SearchHit]:
        """The sections with every word of the query, best first.

        >>> first, second = Section(1, "x", "Swap", "It is loaded."), Section(1, "y", "Roll", "Swaps")
        >>> index = SearchIndex([Entry("a", "A", first), Entry("b", "B", second)])
        >>> [each.entry.page for each in index.find("swap")]
        ['a', 'b']
        >>> index.find("loaded")[0].excerpt
        [('It is ', False), ('loaded', True), ('.', False)]
        """
        words = _words(query)
        if not words:
            return []
        scores = [self._score(words, counts) for counts in self._counts]
        best = sorted((place for place, score in enumerate(scores) if score), key=lambda place: -scores[place])
        found = [self._entries[place] for place in best[:limit]]
        return [SearchHit(entry, _excerpt(entry.section.text, words)) for entry in found]

    def _score(self, words: Sequence[str], counts: Counter[str]) -> float:
        """0.0 if a word is missing."""
        parts = []
        for word in words:
            here = _matches(word, counts)
            if not here:
                return 0.0
            holders = sum(_matches(word, each) > 0 for each in self._counts)
            rarity = math.log(1 + (len(self._entries) - holders + 0.5) / (holders + 0.5))
            parts.append(rarity * here * (_K1 + 1) / (here + _K1 * (1 - _B + _B * counts.total() / self._mean)))
        return sum(parts)


def _words(text: str) -> list[str]:
    """
    >>> _words("POST /v1/tasks, max_turns")
    ['post', 'v1', 'tasks', 'max', 'turns']
    """
    return re.findall(r"[^\W_]+", text.lower())


def _count(entry: Entry) -> Counter[str]:
    counts = Counter(_words(entry.section.text))
    for word in _words(f"{entry.section.heading} {entry.title}"):
        counts[word] += _HEADING_WEIGHT
    return counts


def _matches(word: str, counts: Counter[str]) -> float:
    """Prefix matches count too: `swap` finds `swaps`."""
    longer = sum(count for each, count in counts.items() if each != word and each.startswith(word))
    return counts[word] + _PREFIX_WEIGHT * longer


def _excerpt(text: str, words: Sequence[str]) -> list[tuple[str, bool]]:
    pattern = re.compile("|".join(rf"(?<![^\W_]){re.escape(word)}[^\W_]*" for word in words), re.IGNORECASE)
    first = pattern.search(text)
    start = max(0, first.start() - _CONTEXT) if first else 0
    end = (first.end() if first else 0) + _CONTEXT
    shown = f"{'… ' if start else ''}{text[start:end]}{' …' if end < len(text) else ''}"
    pieces: list[tuple[str, bool]] = []
    rest = 0
    for match in pattern.finditer(shown):
        pieces += [(shown[rest : match.start()], False), (match[0], True)]
        rest = match.end()
    return [piece for piece in [*pieces, (shown[rest:], False)] if piece[0]]


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


def load_manual(generated: Mapping[str, str]) -> Manual:
    """Read and render every page: a fraction of a second. `generated` is the Markdown of further ones by name."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.md")} | dict(generated)
    order = sorted(sources, key=lambda name: (name != INDEX, sources[INDEX].find(f"]({name}.md)")))
    pages = {name: ManualPage(name, _path(name), *render(sources[name], served_at)) for name in order}
    entries = [Entry(page.path, page.title, each) for page in pages.values() for each in page.sections]
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


@cache
def stylesheet() -> str:
    """With the colors of code, on light and on dark pages."""
    light, dark = (HtmlFormatter(style=name).get_style_defs(".code") for name in ("tango", "github-dark"))
    own = (_SITE / "style.css").read_text(encoding="utf-8")
    return f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n{own}"


def manual_routes(generated: Callable[[Litestar], Mapping[str, str]]) -> list[Router | HTTPRouteHandler]:
    """`generated` makes the Markdown of the pages that are not files: seconds, for the first request. Those that
    come meanwhile wait for it."""
    lock = Lock()

    @cache
    def loaded(app: Litestar) -> Manual:
        return load_manual(generated(app))

    def manual(app: Litestar) -> Manual:
        with lock:
            return loaded(app)

    @get(ROOT, include_in_schema=False, sync_to_thread=True)
    def show_index(request: Request[Any, Any, Any]) -> Response[str]:
        return _page(manual(request.app), INDEX)

    @get(f"{ROOT}/{{name:str}}", include_in_schema=False, sync_to_thread=True)
    def show_page(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[str]:
        return _page(manual(request.app), name)

    @get(f"{ROOT}/search", include_in_schema=False, sync_to_thread=True)
    def search(request: Request[Any, Any, Any], q: FromQuery[str] = "") -> Response[str]:
        query, found = q[:200], manual(request.app)
        return _html("search.html", manual=found, page=None, query=query, found=found.index.find(query))

    @get(f"{ROOT}/style.css", include_in_schema=False, sync_to_thread=True)
    def show_styles() -> Response[str]:
        return Response(stylesheet(), media_type="text/css")

    images = create_static_files_router(
        path=f"{ROOT}/images", directories=[DIRECTORY / "images"], include_in_schema=False, name="manual-images"
    )
    return [show_index, show_page, search, show_styles, images]


def _page(manual: Manual, name: str) -> Response[str]:
    if name not in manual.pages:
        raise NotFoundError(f"the manual has no page {name!r}: {ROOT} lists them")
    pages, place = list(manual.pages.values()), list(manual.pages).index(name)
    previous = pages[place - 1] if place else None
    following = pages[place + 1] if place + 1 < len(pages) else None
    return _html("page.html", manual=manual, page=pages[place], query="", previous=previous, following=following)


def _html(template: str, **values: object) -> Response[str]:
    text = _TEMPLATES.get_template(template).render(**values)
    return Response(text, media_type=MediaType.HTML, headers=_HEADERS)
