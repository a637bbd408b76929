"""Names of apps. In training most are coined: names are to be copied, not known by heart."""

import re
from keyword import iskeyword
from random import Random

from trainer.worlds.generated.pools import Pool, part
from trainer.worlds.generated.word_lists import APPS, DIRECTORIES, THEMES

_COINED = 0.7
_WORDS = frozenset(re.findall(r"[a-z]+", f"{APPS} {DIRECTORIES} {' '.join(THEMES)}"))
_ONSETS = "b, br, c, ch, cl, d, dr, f, fl, g, gr, h, j, k, l, m, n, p, pl, pr, r, s, sh, st, t, th, tr, v, w, z"
_VOWELS = "a, e, i, o, u, y, ai, au, ea, ee, ia, io, oo, ou"
_CODAS = ", , , l, ll, m, n, nd, ng, r, rk, rn, s, ss, st, t, th, x"
_ENDINGS = "hub, desk, ly, base, flow, kit, works, _app, _service, box, cloud, track"
_CONSONANTS = "bcdfghjklmnpqrstvwxz"


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
