"""Values that are easily got wrong: addresses with queries, quotes, other alphabets, long titles, numbers that
look like ids, and titles that share words. Pure.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from app.apis.double import texts
from app.apis.double.records import Drawer, NoValueError
from app.apis.double.shapes import Schema, flat, kind_of
from app.apis.words import singular, split_words, word_set
from app.records import Json
from trainer.practice.forms import ADDRESSES

_OWN_FORMS: Final = word_set(
    "email mail phone mobile author owner assignee reporter reviewer sender recipient customer first_name "
    "last_name full_name display_name username city country currency language locale timezone time_zone color "
    "version hostname slug"
)
"""Formats and ends of names whose texts have a form of their own: nobody's e-mail address is a title."""
_FOREIGN: Final = ("Überblick", "Café", "Größe", "Señal", "Žluťoučký", "Обзор", "报告", "Résumé", "Ærø")
_PATHS: Final = ("prices", "news", "docs/start.html", "a/b", "offers", "feed.xml")
_TRIES: Final = 8
_TEXTS: Final = 3  # of a list, at most
_HOSTS: Final = (
    "shop.example.net", "docs.example.com", "news.example.net", "status.example.com", "blog.example.net",
    "data.example.com", "jobs.example.net",
)  # fmt: skip


def draw_value(schema: Schema, name: str, drawer: Drawer, rng: Random) -> Json:
    """A value that can be said in an instruction. Raises NoValueError."""
    inner = flat(schema)
    choices = [each for each in inner.get("enum", ()) if each is not None]
    if choices:
        return rng.choice(choices)
    if kind_of(inner) == "array" and kind_of(items := flat(inner.get("items") or {})) == "string":
        return _texts(inner, items, name, drawer, rng)
    if kind_of(inner) != "string" or inner.get("format") not in (None, "uri", "url") or "pattern" in inner:
        found = drawer.value(schema, name, f"value {rng.random()}")
        if found is None or found == "":
            raise NoValueError("its values are empty")
        return found
    return draw_text(schema, name, drawer, rng)


def _texts(schema: Schema, items: Schema, name: str, drawer: Drawer, rng: Random) -> list[str]:
    found = list(
        dict.fromkeys(draw_text(items, singular(name), drawer, rng) for _ in range(rng.randint(1, _TEXTS)))
    )
    if not drawer.fits(schema, found):
        raise NoValueError("its lists cannot be said")
    return found


def draw_text(schema: Schema, name: str, drawer: Drawer, rng: Random) -> str:
    """Raises NoValueError."""
    form, words = flat(schema).get("format"), split_words(name)
    is_address = form in ("uri", "url") or bool(set(words) & ADDRESSES)
    told = {form, *words[-1:], "_".join(words[-2:])} & _OWN_FORMS
    for _ in range(_TRIES):
        if told and not is_address:
            found = texts.text_of_format(str(form), rng) or texts.text_of_name(name, rng)
        else:
            found = _address(rng) if is_address else rng.choice(_FORMS)(rng)
        if drawer.fits(schema, found):
            return found
    drawn = drawer.value(schema, name, f"text {rng.random()}")
    if not isinstance(drawn, str) or not drawn.strip() or drawn != " ".join(drawn.split()):
        raise NoValueError("its texts cannot be said")
    return drawn


def like(text: str, rng: Random) -> str:
    """Another text that is easily taken for this one."""
    if "://" in text:
        return f"{text}&v=2" if "?" in text else f"{text}?v=2"
    if "@" in text:
        return text.replace("@", f"{rng.randint(2, 9)}@")
    first, *rest = text.split(" ")
    return rng.choice((f"{text} 2", f"{text} ({texts.word(rng)})", " ".join([first, texts.word(rng), *rest])))


def host_of(number: int) -> str:
    """A host that several records share: another one for each number up to a few."""
    return _HOSTS[number % len(_HOSTS)]


def at_host(address: str, host: str) -> str:
    """The address at another host."""
    scheme, _, rest = address.partition("://")
    return f"{scheme if rest else 'https'}://{host}/{rest.partition('/')[2] or scheme}"


def _address(rng: Random) -> str:
    query = rng.choice(
        (
            f"?year={rng.randint(2024, 2029)}&x={rng.randint(1, 9)}",
            f"?q={texts.word(rng)}",
            f"?page={rng.randint(2, 9)}",
            "",
        )
    )
    return f"https://{texts.slug(rng)}.example.org/{rng.choice(_PATHS)}{query}"


def _long(rng: Random) -> str:
    first, second, year = texts.title(rng), texts.title(rng).lower(), rng.randint(2024, 2027)
    return f"{first} and {second}, as agreed with {texts.person(rng)} in {year}"


_FORMS: Final[tuple[Callable[[Random], str], ...]] = (
    texts.title,
    texts.title,
    texts.title,
    lambda rng: f'The "{texts.word(rng)}" {texts.word(rng)}',
    lambda rng: f"{texts.person(rng).split()[0]}'s {texts.word(rng)}",
    lambda rng: f"{rng.choice(_FOREIGN)} {texts.word(rng)}",
    lambda rng: str(rng.randint(2, 9_999)),
    lambda rng: f"{texts.title(rng)} {rng.randint(2, 40)}",
    lambda rng: f"{texts.word(rng).capitalize()} & {texts.word(rng)} (50%)",
    _long,
)
