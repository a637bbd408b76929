"""Convert Markdown to HTML, with an anchor for every heading and the plain text of every section."""

import re
from collections.abc import Callable, Sequence

import msgspec
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

Resolve = Callable[[str], str | None]
"""The address that a link or an image of a page has when served; None for a file that is not."""


class Section(msgspec.Struct, frozen=True):
    """A heading and the text up to the next one."""

    level: int  # 1 for the page's title
    anchor: str  # as code hosts make it
    heading: str
    text: str


class Document(msgspec.Struct, frozen=True):
    html: str
    sections: Sequence[Section]  # the first one has the page's title


def render(text: str, resolve: Resolve) -> Document:
    """Render a page. HTML in the source is shown as text.

    >>> page = render("# Tea\\nSee [milk](milk.md).\\n## On `ice`\\n", {"milk.md": "/milk"}.get)
    >>> [(each.anchor, each.heading, each.text) for each in page.sections]
    [('tea', 'Tea', 'See milk.'), ('on-ice', 'On ice', '')]
    >>> "<a href=\\"/milk\\">milk</a>" in page.html
    True
    """
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlight}).enable("table")
    parser.add_render_rule("table_open", _open_table)
    parser.add_render_rule("table_close", _close_table)
    tokens = parser.parse(text)
    sections = _sections(tokens)
    _add_anchors(tokens, sections)
    for token in tokens:
        _resolve_links(token.children or [], resolve)
    return Document(parser.renderer.render(tokens, parser.options, {}), sections)


def styles() -> str:
    """The colors of code, on light and on dark pages."""
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    return (
        f"{HtmlFormatter(style='tango').get_style_defs('.code')}\n@media (prefers-color-scheme: dark) {{{dark}}}\n"
    )


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


def _add_anchors(tokens: Sequence[Token], sections: Sequence[Section]) -> None:
    headings = [token for token in tokens if token.type == "heading_open"]
    for token, section in zip(headings, sections, strict=True):
        token.attrSet("id", section.anchor)


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
