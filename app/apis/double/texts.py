"""Texts of one kind each, drawn at random: names, titles, addresses, times, and what a pattern matches. Pure."""

import importlib
import re
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from app.apis.documents.schemas import compiled
from app.apis.naming import split_words


def split(text: str, mark: str = " ") -> list[str]:
    return text.split(mark)


_ADJECTIVES: Final = split(
    "amber ancient autumn bold brave bright brisk calm clear copper coral crimson distant early eastern "
    "emerald faint frozen gentle golden grand hidden hollow iron late lunar misty modest narrow northern open "
    "pale plain quiet rapid royal rustic silent silver slow small solar southern spare steady stone swift "
    "tidal upper velvet violet warm western wild winter"
)
_NOUNS: Final = split(
    "anchor archive atlas badger bakery beacon bridge canyon cascade cedar comet compass copper delta ember "
    "falcon ferry field fjord forest garden glacier harbor harvest heron island journal kettle lagoon lantern "
    "ledger library lighthouse maple market meadow mill museum needle oak orchard orchid otter paper parcel "
    "pelican pepper piano planet quarry raven report ridge river saddle shuttle signal station summit tailor "
    "tower valley violin walnut willow window workshop"
)
_FIRST: Final = split(
    "Abena Amara Astrid Boris Carmen Celeste Dario Elif Emil Fatou Freya Gideon Hana Imani Ines Jonas Karim "
    "Leila Mateus Mina Nils Odette Oskar Petra Priya Rashid Rosa Samir Selma Thea Tobias Umar Vera Wouter "
    "Yara Zofia"
)
_LAST: Final = split(
    "Abebe Bauer Castillo Costa Diallo Dubois Eriksen Farkas Gupta Haddad Horvat Ito Jensen Kaplan Keller "
    "Kowalski Lopez Marino Mbeki Moreau Nakata Novak Okafor Olsen Park Petrov Quispe Rahman Rossi Sharma "
    "Silva Tanaka Varga Weiss Yilmaz"
)
_DOINGS: Final = split(
    "Check the {a} {n} before the {m} opens.|Moved from the {a} {n} to the {m}.|The {n} needs a {a} {m} soon.|"
    "Ask about the {n} and the {a} {m}.|A {a} {n} near the {m}.|Replaces the old {n} with a {a} {m}.|"
    "Nobody has seen the {a} {n} since the {m} closed.|For the {m}: one {a} {n} each.",
    "|",
)
_CITIES: Final = split(
    "Bergen Porto Graz Ghent Turin Lyon Gdansk Malmo Leeds Basel Split Cork Trondheim Utrecht Brno"
)
_COUNTRIES: Final = split("Norway Portugal Austria Belgium Italy France Poland Sweden Ireland Croatia Kenya Peru")
_CODES: Final = split("NO PT AT BE IT FR PL SE IE HR KE PE")
_CURRENCIES: Final = split("EUR USD GBP NOK PLN SEK CHF")
_LANGUAGES: Final = split("en de fr pt it pl sv")
_ZONES: Final = split("Europe/Oslo Europe/Lisbon Europe/Vienna Europe/Rome Europe/Paris Africa/Nairobi")
_COLORS: Final = split("teal crimson navy olive coral indigo amber violet")
_START: Final = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
_MINUTES: Final = 60 * 24 * 300
_MOST_CHARS: Final = 400  # that a pattern is unfolded to
_ANY: Final = string.ascii_lowercase + string.digits
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_WORD": f"{string.ascii_letters}{string.digits}_",
    "CATEGORY_SPACE": " ",
}


def title(rng: Random) -> str:
    return f"{rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}".capitalize()


def sentence(rng: Random) -> str:
    first, second = rng.sample(_NOUNS, 2)
    return rng.choice(_DOINGS).format(a=rng.choice(_ADJECTIVES), n=first, m=second)


def slug(rng: Random) -> str:
    return f"{rng.choice(_ADJECTIVES)}-{rng.choice(_NOUNS)}"


def word(rng: Random) -> str:
    return rng.choice(_NOUNS)


def person(rng: Random) -> str:
    return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"


def login(rng: Random) -> str:
    return f"{rng.choice(_FIRST)}.{rng.choice(_LAST)}".lower()


def email(rng: Random) -> str:
    return f"{login(rng)}@{rng.choice(_NOUNS)}.example.com"


def host(rng: Random) -> str:
    return f"{rng.choice(_NOUNS)}.example.{rng.choice(('com', 'org', 'net'))}"


def url(rng: Random) -> str:
    query = rng.choice(("", "", f"?page={rng.randrange(1, 40)}", f"?q={word(rng)}&lang=en"))
    return f"https://{rng.choice(_ADJECTIVES)}-{host(rng)}/{word(rng)}/{rng.randrange(100, 999)}{query}"


def instant(rng: Random) -> datetime:
    return _START + timedelta(minutes=rng.randrange(_MINUTES), seconds=rng.randrange(60))


def time_text(at: datetime) -> str:
    """
    >>> time_text(datetime(2026, 1, 5, 8, tzinfo=UTC))
    '2026-01-05T08:00:00Z'
    """
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> datetime:
    """The other way round. Raises ValueError."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def uuid(rng: Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


def hexadecimal(rng: Random, length: int = 12) -> str:
    return f"{rng.getrandbits(4 * length):0{length}x}"


def _of_kind(kinds: Mapping[str, Callable[[Random], str]]) -> dict[str, Callable[[Random], str]]:
    return {name: make for names, make in kinds.items() for name in names.split()}


_FORMATS: Final = _of_kind({
    "date-time datetime timestamp": lambda rng: time_text(instant(rng)),
    "date full-date": lambda rng: instant(rng).date().isoformat(),
    "time": lambda rng: instant(rng).strftime("%H:%M:%SZ"),
    "duration": lambda rng: f"PT{rng.randrange(1, 90)}M",
    "uuid guid uuid4": uuid,
    "email idn-email": email,
    "uri url iri uri-reference iri-reference uri-template": url,
    "hostname idn-hostname": host,
    "ipv4 ip ipaddress": lambda rng: f"192.0.2.{rng.randrange(1, 254)}",
    "ipv6": lambda rng: f"2001:db8::{rng.randrange(1, 0xffff):x}",
    "byte base64": lambda _: "bm90ZQ==",
    "json-pointer": lambda rng: f"/{word(rng)}",
    "int32 int64": lambda rng: str(rng.randrange(1, 1_000)),
    "decimal": lambda rng: f"{rng.randrange(1, 90_000) / 100:.2f}",
    "password": lambda _: "********",
})  # fmt: skip
_LAST_WORDS: Final = _of_kind({
    "title name label subject heading caption headline": title,
    "description summary body content notes note comment text message details detail about reason": sentence,
    "email mail": email,
    "url uri link href website homepage webhook callback endpoint address_url permalink src": url,
    "host hostname domain fqdn": host,
    "author owner assignee creator user person contact reporter reviewer sender recipient member customer": person,
    "username login handle nickname": login,
    "firstname forename": lambda rng: rng.choice(_FIRST),
    "lastname surname": lambda rng: rng.choice(_LAST),
    "fullname": person,
    "phone mobile fax telephone": lambda rng: f"+1 555 01{rng.randrange(10, 99)}",
    "city town": lambda rng: rng.choice(_CITIES),
    "country": lambda rng: rng.choice(_COUNTRIES),
    "street address": lambda rng: f"{rng.randrange(1, 90)} {word(rng).capitalize()} Street",
    "zip postcode postal": lambda rng: f"{rng.randrange(10_000, 99_999)}",
    "color colour": lambda rng: rng.choice(_COLORS),
    "currency": lambda rng: rng.choice(_CURRENCIES),
    "language locale lang": lambda rng: rng.choice(_LANGUAGES),
    "timezone tz zone": lambda rng: rng.choice(_ZONES),
    "version": lambda rng: f"{rng.randrange(1, 6)}.{rng.randrange(0, 20)}.{rng.randrange(0, 9)}",
    "ip": lambda rng: f"192.0.2.{rng.randrange(1, 254)}",
    "path file filename": lambda rng: f"/{word(rng)}/{slug(rng)}.txt",
    "slug": slug,
    "key code ref reference number sku": lambda rng: f"{word(rng)[:3].upper()}-{rng.randrange(100, 9_999)}",
    "uuid guid": uuid,
    "hash sha sha1 sha256 checksum digest etag md5 fingerprint": lambda rng: hexadecimal(rng, 32),
    "tag tags category labels keyword keywords topic group team department type kind": word,
    "at on date time timestamp created updated modified since until": lambda rng: time_text(instant(rng)),
    "id": hexadecimal,
    "token secret password": lambda _: "********",
})  # fmt: skip
_WHOLE_NAMES: Final = _of_kind({
    "first_name given_name": lambda rng: rng.choice(_FIRST),
    "last_name family_name": lambda rng: rng.choice(_LAST),
    "full_name display_name": person,
    "user_name": login,
    "country_code": lambda rng: rng.choice(_CODES),
    "time_zone": lambda rng: rng.choice(_ZONES),
})  # fmt: skip


def text_of_format(form: str, rng: Random) -> str | None:
    """None for a format that is not known."""
    make = _FORMATS.get(form.lower())
    return None if make is None else make(rng)


def text_of_name(name: str, rng: Random) -> str:
    """What a field of this name may say.

    >>> text_of_name("customer_email", Random(1)).count("@"), " " in text_of_name("subject", Random(1))
    (1, True)
    """
    words = split_words(name) or ["text"]
    whole, last = _WHOLE_NAMES.get("_".join(words[-2:])), _LAST_WORDS.get(words[-1])
    make = whole or last or _LAST_WORDS.get("".join(words[-2:]))
    return title(rng).lower() if make is None else make(rng)


def alike(text: str, rng: Random, *, words: bool = False) -> str:
    """A text of the same form: each letter and digit becomes another of its kind. Words of letters stay, unless
    `words` are to be others, too.

    >>> found = alike("cus_9s6XKzk", Random(1))
    >>> found.startswith("cus_"), len(found), found == "cus_9s6XKzk"
    (True, 11, False)
    """

    def other(found: re.Match[str]) -> str:
        part = found[0]
        if part.isalpha() and not words:
            return part
        is_hexadecimal = set(part.lower()) <= set(string.hexdigits)
        letters = "abcdef" if is_hexadecimal else string.ascii_lowercase
        return "".join(_other(each, letters, rng) for each in part)

    return re.sub(r"[0-9A-Za-z]+", other, text)


def matching(pattern: str, rng: Random, least: int = 0) -> str | None:
    """A text that matches a pattern, with at least so many characters if it can; None if none is found.

    >>> re.fullmatch(r"[A-Z]{2}-\\d+", matching(r"^[A-Z]{2}-\\d+$", Random(1))) is not None
    True
    """
    machine = compiled(pattern)
    if machine is None:
        return None
    try:
        parsed: Sequence[Any] = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    for more in (3, 8, least):
        found = _unfolded(parsed, rng, more)
        if machine.found_in(found) and len(found) >= least:
            return found
    return None


_parser: Any = importlib.import_module("re._parser")  # of the standard library: it has no public name


def _unfolded(parsed: Sequence[Any], rng: Random, more: int) -> str:
    """`more` is how often a part is repeated beyond what it needs, at most."""
    text = ""
    for operator, given in parsed:
        if len(text) > _MOST_CHARS:
            break
        match str(operator):
            case "LITERAL":
                text += chr(given)
            case "NOT_LITERAL":
                text += rng.choice([each for each in _ANY if ord(each) != given])
            case "ANY":
                text += rng.choice(_ANY)
            case "IN":
                text += _member(given, rng)
            case "BRANCH":
                text += _unfolded(rng.choice(given[1]), rng, more)
            case "SUBPATTERN":
                text += _unfolded(given[-1], rng, more)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, part = given
                times = rng.randint(least, min(int(most), least + more))
                text += "".join(_unfolded(part, rng, more) for _ in range(min(times, _MOST_CHARS)))
    return text


def _member(given: Sequence[Any], rng: Random) -> str:
    allowed: list[str] = []
    for operator, part in given:
        match str(operator):
            case "LITERAL":
                allowed.append(chr(part))
            case "RANGE":
                allowed += map(chr, range(part[0], min(part[1], part[0] + 128) + 1))
            case "CATEGORY":
                allowed += _CATEGORIES.get(str(part), f"{string.ascii_letters}-")
    if given and str(given[0][0]) == "NEGATE":
        allowed = [each for each in f"{_ANY}{string.ascii_uppercase}-_ " if each not in allowed]
    printable = [each for each in allowed if each.isprintable()]
    return rng.choice(printable or allowed or ["x"])


def _other(character: str, letters: str, rng: Random) -> str:
    if character.isdigit():
        return rng.choice(string.digits)
    found = rng.choice(letters)
    return found.upper() if character.isupper() else found
