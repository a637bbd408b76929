"""What an app is about and what it is called: nouns, fields and verbs of a theme, people and projects, app names.

All are drawn from a pool of words, so that what one split is about never occurs in another.
"""

import re
from functools import cache
from keyword import iskeyword
from random import Random

import msgspec

from trainer.worlds.generated.words import (
    APPS,
    DIRECTORIES,
    DISTRACTORS,
    MORE_DISTRACTORS,
    THEMES,
    Pool,
    part,
    split,
)

_COMPOSED = 0.8
_LABELS = 5  # values of a label that are names of projects
_PROGRESS = "state, progress, current state, work state, handling state"
_INITIAL = "pending, new, untouched, raw, unprocessed"
_STAGES = "state, status, stage, phase, step, level, standing, position"
_QUALIFIERS = """
review, order, record, process, item, internal, overall, flow, case, job, entry, desk, request, service, office,
team, queue, filing, main, last known
"""
_MORE_INITIAL = """
fresh, received, unread, unhandled, idle, todo, queued, incoming, logged, outstanding, unassigned, registered,
entered, not started, unchecked, to be seen, undecided
"""
_DIRECTORY = """
    nouns: member, employee, contact, colleague, teammate
    persons: name, full name, known as, display name, nickname
    labels: team = *; department = *; division = *; crew = *; guild = *
    numbers: desk number, extension, staff number, badge number, seat
    dates: joined on, hired on, start day, joining date, first day
    verbs: invite/invited, promote/promoted, notify/notified, retire/retired, greet/greeted
"""
_MORE_DIRECTORY = """
    nouns: person, staff member, coworker, associate, representative, volunteer, technician, consultant, worker
    nouns: specialist, delegate, crew member, profile, user, account, resident, trainee, partner, analyst, clerk
    persons: legal name, real name, complete name, contact name, listed as, profile name, preferred name, person
    labels: unit = *; chapter = *; cohort = *; group = *; section = *; cell = *; pod = *; tribe = *
    labels: wing = *; corps = *; bureau = *; workgroup = *; committee = *; business unit = *; home base = *
    numbers: locker number, room number, seniority, years of service, payroll number, vacation days, grade level
    dates: employed since, contract start, entry date, member since, last review, account opened
"""
_COINED = 0.7
_WORDS = frozenset(re.findall(r"[a-z]+", f"{APPS} {DIRECTORIES} {' '.join(THEMES)}"))
_ONSETS = "b, br, c, ch, cl, d, dr, f, fl, g, gr, h, j, k, l, m, n, p, pl, pr, r, s, sh, st, t, th, tr, v, w, z"
_VOWELS = "a, e, i, o, u, y, ai, au, ea, ee, ia, io, oo, ou"
_CODAS = ", , , l, ll, m, n, nd, ng, r, rk, rn, s, ss, st, t, th, x"
_ENDINGS = "hub, desk, ly, base, flow, kit, works, _app, _service, box, cloud, track"
_CONSONANTS = "bcdfghjklmnpqrstvwxz"
_FIRST = """
noor, priya, jean, luc, mateus, ines, oskar, yuki, amara, tobias, leila, ciaran, svetlana, dmitri, chloe, rafael,
hana, kwame, astrid, bjorn, carmen, diego, elif, farid, greta, hamza, imani, jonas, katya, lars, mei, nadia, olu,
pedro, qadir, rosa, samir, tariq, ursula, vera, wanda, xavier, yara, zainab, aisha, boris, celeste, dario, esther,
felix, gwen, hector, ilse, jamal, keiko, lorenzo, mina, nikolai, odette, pavel, renata, stefan, thea, umar,
viktor, wilma, yusuf, zoltan, abena, bruno, clara, dalia, emil, freya, goran, hilde, ivo, jana, kofi, lucia,
marek, nils, oriana, petra, rashid, selma, tove, ulrich, valeria, wouter, ximena, yvette, zofia, anselm, beatriz,
cyrus, devika, enzo, fatou, gideon, helga, isabel, joao, karim, liv, mirela, nestor, otto, paloma, remy, sunita,
timur, uma, vito, winston, yolanda, zeynep, alba, benoit, camille
"""
_LAST = """
weiss, okafor, haddad, raman, tanaka, lindqvist, moreau, kowalski, silva, novak, jensen, mbeki, castillo, petrov,
nguyen, ferrari, schmidt, yilmaz, hansen, dubois, santos, ivanova, keller, nakamura, olsen, pereira, rossi,
suzuki, torres, varga, wagner, zhang, abebe, bauer, chaudhry, delgado, eriksen, fischer, gupta, horvat, ibrahim,
jankovic, kaplan, laurent, mensah, nilsson, ortega, popescu, quispe, rahman, sokolov, takahashi, usman, vasquez,
watanabe, xu, yamada, zimmer, adeyemi, bianchi, cohen, diallo, engel, fontaine, georgiou, hoffmann, iqbal,
johansson, kim, lefebvre, marino, nowak, oyelaran, papadakis, qureshi, romero, sorensen, tran, ueda, vogel, weber,
ximenes, young, zeller, arslan, becker, costa, dimitrov, el-amin, farkas, garcia, hakimi, ito, jovanovic, khan,
lopez, mancini, nakata, ozturk, park, richter, sharma, toivonen, urban, volkov, wong
"""
_IRISH = (
    "brien, connor, neill, malley, hara, leary, shea, dowd, keefe, rourke, grady, sullivan, donnell, reilly, dwyer"
)
_ADJECTIVES = """
blue, silent, golden, rapid, hidden, crimson, lunar, frozen, brave, velvet, amber, northern, hollow, bright, iron,
gentle, distant, copper, wild, quiet, silver, misty, royal, solar, emerald, ancient, swift, violet, rustic, polar
"""
_THINGS = """
heron, apollo, lynx, canyon, comet, harbor, falcon, glacier, phoenix, orchid, badger, cascade, meadow, titan,
otter, summit, raven, delta, bison, lagoon, atlas, willow, cobra, ridge, mammoth, ember, pelican, fjord, jaguar,
nebula
"""


class Verb(msgspec.Struct, frozen=True):
    base: str
    done: str  # past participle: also the state of an item to which it was done


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of items, each with a person, a label, a number, a date and a state. Words as in prose."""

    noun: str
    person: str
    label: str
    values: tuple[str, ...]  # of the label
    number: str
    date: str
    state: str  # the field that holds the state
    initial: str  # the state of an item to which nothing was done
    verbs: tuple[Verb, ...]
    distractors: tuple[str, ...]  # fields that no task asks for

    @property
    def nouns(self) -> str:
        return plural(self.noun)


def plural(noun: str) -> str:
    """
    >>> [plural(noun) for noun in ("ticket", "warranty", "survey", "price list", "mailbox", "crash", "diagnosis")]
    ['tickets', 'warranties', 'surveys', 'price lists', 'mailboxes', 'crashes', 'diagnoses']
    """
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if noun.endswith("sis"):
        return f"{noun[:-2]}es"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def draw_domain(pool: Pool, rng: Random, besides: Domain | None = None) -> Domain:
    """A domain of one theme; its nouns are not those of `besides`."""
    return _domain(_theme(rng.choice(THEMES)), pool, rng, besides=besides)


def draw_directory(pool: Pool, rng: Random) -> Domain:
    """The domain of an app that knows who is in which team."""
    return _domain(_theme(_DIRECTORY), pool, rng, more=_theme(_MORE_DIRECTORY))


def other_state_field(domain: Domain, rng: Random) -> str:
    """A name for the field of the state that the makers of the app did not choose."""
    while (other := _state_field("train", rng)) in (domain.state, domain.label, domain.number):
        pass
    return other


def _domain(
    theme: dict[str, str],
    pool: Pool,
    rng: Random,
    *,
    besides: Domain | None = None,
    more: dict[str, str] | None = None,
) -> Domain:
    """`more` has words for training alone."""

    def words(kind: str, separator: str = ",") -> tuple[str, ...]:
        return part(theme[kind], pool, separator, (more or {}).get(kind, ""))

    nouns = [noun for noun in words("nouns") if besides is None or noun != besides.noun]
    label, _, values = rng.choice(words("labels", ";")).partition(" = ")
    names = tuple(projects(pool, _LABELS, rng))
    verbs = rng.sample(words("verbs"), min(3, len(words("verbs"))))
    distractors = part(DISTRACTORS, pool, more=MORE_DISTRACTORS)
    return Domain(
        noun=rng.choice(nouns),
        person=rng.choice(words("persons")),
        label=label,
        values=names if values == "*" else tuple(values.split(", ")),
        number=rng.choice(words("numbers")),
        date=rng.choice(words("dates")),
        state=_state_field(pool, rng),
        initial=rng.choice(part(_INITIAL, pool, more=_MORE_INITIAL)),
        verbs=tuple(Verb(*verb.split("/")) for verb in verbs),
        distractors=tuple(rng.sample(distractors, rng.randint(0, 2))),
    )


def _state_field(pool: Pool, rng: Random) -> str:
    """In training one of hundreds of names: which field has the state is to be read from its values."""
    if pool == "train" and rng.random() < _COMPOSED:
        return f"{rng.choice(split(_QUALIFIERS))} {rng.choice(split(_STAGES))}"
    return rng.choice(part(_PROGRESS, pool))


@cache
def _theme(text: str) -> dict[str, str]:
    """The lists of a theme; those of several lines are joined."""
    lists: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        kind, _, words = line.strip().partition(": ")
        lists.setdefault(kind, []).append(words)
    return {kind: ("; " if kind == "labels" else ", ").join(words) for kind, words in lists.items()}


def people(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different people, written in various ways; no name is a part of another."""
    names: list[str] = []
    while len(names) < count:
        name = _person(pool, rng)
        if not any(name.lower() in other.lower() or other.lower() in name.lower() for other in names):
            names.append(name)
    return names


def projects(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different names of projects and teams."""
    names: list[str] = []
    while len(names) < count:
        name = _project(pool, rng)
        if name.lower() not in [other.lower() for other in names]:
            names.append(name)
    return names


def _person(pool: Pool, rng: Random) -> str:
    first, second = rng.sample(part(_FIRST, pool), 2)
    last, irish = rng.choice(part(_LAST, pool)), rng.choice(part(_IRISH, pool)).title()
    whole = last.title()
    shapes = (
        first,
        first.title(),
        f"{first.title()} {whole}",
        f"{first.title()} {whole}",
        f"{rng.choice(('Dr.', 'Ms.', 'Mr.', 'Prof.'))} {whole}",
        f"{first}-{second}",
        f"{first.title()}-{second.title()} {whole}",
        f"{first[0]}.{last}",
        f"O'{irish}",
        f"{first.title()} O'{irish}",
        f"{first.title()} {second[0].upper()}. {whole}",
        f"{first}_{last}",
    )
    return rng.choice(shapes)


def _project(pool: Pool, rng: Random) -> str:
    adjective, thing = rng.choice(part(_ADJECTIVES, pool)), rng.choice(part(_THINGS, pool))
    number = rng.randrange(2, 99)
    shapes = (
        f"{adjective.title()} {thing.title()}",
        f"{adjective}-{thing}",
        f"{thing}-{number}",
        f"{thing.title()} {number}",
        f"{adjective.title()}{thing.title()}",
        thing.title(),
    )
    return rng.choice(shapes)


def draw_names(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different names."""
    names = rng.sample(part(APPS, pool), count)
    return names if pool != "train" else _mixed(names, rng)


def directory_name(pool: Pool, rng: Random) -> str:
    name = rng.choice(part(DIRECTORIES, pool))
    return name if pool != "train" else _mixed([name], rng)[0]


def coined_name(rng: Random) -> str:
    """A name that could be a product's, and is no word of the gym."""
    shape = rng.randrange(8)
    if shape == 0:
        name = "".join(rng.sample(_CONSONANTS, rng.choice((3, 4))))
    elif shape == 1:
        name = f"{rng.choice(part(APPS, 'train'))}{rng.choice(part(APPS, 'train'))}"
    elif shape == 2:
        name = f"{rng.choice(part(APPS, 'train'))}{_pick(_ENDINGS, rng)}"
    else:
        syllables = (_pick(_ONSETS, rng) + _pick(_VOWELS, rng) for _ in range(rng.choice((2, 2, 3))))
        name = f"{''.join(syllables)}{_pick(_CODAS, rng)}"
    return coined_name(rng) if name in _WORDS or iskeyword(name) else name


def _mixed(names: list[str], rng: Random) -> list[str]:
    """The names, most of them replaced by coined ones."""
    mixed: list[str] = []
    for name in names:
        chosen = coined_name(rng) if rng.random() < _COINED else name
        mixed.append(name if chosen in mixed else chosen)
    return mixed


def _pick(listed: str, rng: Random) -> str:
    return rng.choice(listed.split(", "))
