"""Makes one document of several: what its references to other documents point to becomes part of it. Pure."""

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urldefrag, urljoin, urlsplit

from app.apis.address import same_origin
from app.base.values import Json

_PART = "x-documents"  # of a bundled document: the other documents, by number
_REFERENCE_CHARS = 2_000


def wanted(document: Json, source: str | None, known: Mapping[str, Json]) -> list[str]:
    """The URLs of the documents that it, or one of the known ones, refers to, at the origin of `source`.

    Without those that are known, sorted.
    """
    if source is None:
        return []
    found = {url for base, each in [(source, document), *known.items()] for url in _targets(each, base)}
    return sorted(url for url in found - known.keys() if url != source and same_origin(url, source))


def bundled(document: dict[str, Json], source: str | None, others: Mapping[str, Json]) -> dict[str, Json]:
    """The document with those it refers to in it. References to any others stay as they are."""
    if source is None or not others:
        return document
    places = {source: ""} | {url: f"/{_PART}/{number}" for number, url in enumerate(others)}

    def rewriter(base: str) -> Callable[[str], str]:
        def rewrite(reference: str) -> str:
            url, fragment = _target(reference, base)
            return f"#{places[url]}{fragment}" if url in places else reference

        return rewrite

    parts = {str(number): _rewritten(each, rewriter(url)) for number, (url, each) in enumerate(others.items())}
    whole: dict[str, Json] = _rewritten(document, rewriter(source))
    return {**whole, _PART: parts}


def _targets(node: Json, base: str) -> Iterator[str]:
    for reference in _references(node):
        if not reference.startswith("#") and len(reference) <= _REFERENCE_CHARS:
            url, _ = _target(reference, base)
            if url:
                yield url


def _target(reference: str, base: str) -> tuple[str, str]:
    """URL and fragment; "" for what is no URL."""
    try:
        url, fragment = urldefrag(urljoin(base, reference))
        urlsplit(url)
    except ValueError:
        return "", ""
    return url, fragment


def _references(node: Json) -> Iterator[str]:
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                yield each["$ref"]
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)


def _rewritten(node: Json, rewrite: Callable[[str], str]) -> Json:
    if isinstance(node, list):
        return [_rewritten(each, rewrite) for each in node]
    if isinstance(node, dict):
        return {
            name: rewrite(each) if name == "$ref" and isinstance(each, str) else _rewritten(each, rewrite)
            for name, each in node.items()
        }
    return node
