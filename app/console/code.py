"""Code as HTML. Colors are classes, which the style sheet has for both themes."""

import msgspec
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from app.apis.binary_values import readable
from app.records import Json
from app.security.visible_text import visible

_MOST = 100_000  # characters that are highlighted: the rest of a page would wait for more


def code_block(text: str, language: str = "python") -> Markup:
    """
    >>> print(code_block("<1"))
    <pre class="code" tabindex="0"><code><span class="o">&lt;</span><span class="mi">1</span>
    </code></pre>
    """
    text = visible(text)
    if len(text) > _MOST:
        return Markup('<pre class="code" tabindex="0"><code>{}</code></pre>').format(text)
    marked = highlight(text, get_lexer_by_name(language, stripnl=False), HtmlFormatter(nowrap=True))
    return Markup(f'<pre class="code" tabindex="0"><code>{marked}</code></pre>')  # escaped by pygments


def json_block(value: Json) -> Markup:
    """
    >>> json_block({"id": 7}).striptags()
    '{ "id": 7 }'
    >>> json_block({"$bytes": 3, "sha256": "9f86d0"}).striptags()
    '"3 bytes, sha256 9f86d0"'
    """
    return code_block(msgspec.json.format(msgspec.json.encode(readable(value)), indent=2).decode(), "json")
