"""People and projects by the thousand, in the shapes in which names are written."""

from random import Random

from trainer.worlds.generated.pools import Pool, part

_FIRST = """
noor, priya, jean, luc, mateus, ines, oskar, yuki, amara, tobias, leila, ciaran, svetlana, dmitri, chloe, rafael,
hana,
kwame, astrid, bjorn, carmen, diego, elif, farid, greta, hamza, imani, jonas, katya, lars, mei, nadia, olu, pedro,
qadir,
rosa, samir, tariq, ursula, vera, wanda, xavier, yara, zainab, aisha, boris, celeste, dario, esther, felix, gwen,
hector,
ilse, jamal, keiko, lorenzo, mina, nikolai, odette, pavel, renata, stefan, thea, umar, viktor, wilma, yusuf,
zoltan, abena,
bruno, clara, dalia, emil, freya, goran, hilde, ivo, jana, kofi, lucia, marek, nils, oriana, petra, rashid, selma,
tove,
ulrich, valeria, wouter, ximena, yvette, zofia, anselm, beatriz, cyrus, devika, enzo, fatou, gideon, helga,
isabel, joao,
karim, liv, mirela, nestor, otto, paloma, remy, sunita, timur, uma, vito, winston, yolanda, zeynep, alba, benoit,
camille
"""
_LAST = """
weiss, okafor, haddad, raman, tanaka, lindqvist, moreau, kowalski, silva, novak, jensen, mbeki, castillo, petrov,
nguyen,
ferrari, schmidt, yilmaz, hansen, dubois, santos, ivanova, keller, nakamura, olsen, pereira, rossi, suzuki,
torres, varga,
wagner, zhang, abebe, bauer, chaudhry, delgado, eriksen, fischer, gupta, horvat, ibrahim, jankovic, kaplan,
laurent, mensah,
nilsson, ortega, popescu, quispe, rahman, sokolov, takahashi, usman, vasquez, watanabe, xu, yamada, zimmer,
adeyemi, bianchi,
cohen, diallo, engel, fontaine, georgiou, hoffmann, iqbal, johansson, kim, lefebvre, marino, nowak, oyelaran,
papadakis,
qureshi, romero, sorensen, tran, ueda, vogel, weber, ximenes, young, zeller, arslan, becker, costa, dimitrov,
el-amin, farkas,
garcia, hakimi, ito, jovanovic, khan, lopez, mancini, nakata, ozturk, park, richter, sharma, toivonen, urban,
volkov, wong
"""
_IRISH = (
    "brien, connor, neill, malley, hara, leary, shea, dowd, keefe, rourke, grady, sullivan, donnell, reilly, dwyer"
)
_ADJECTIVES = """
blue, silent, golden, rapid, hidden, crimson, lunar, frozen, brave, velvet, amber, northern, hollow, bright, iron,
gentle,
distant, copper, wild, quiet, silver, misty, royal, solar, emerald, ancient, swift, violet, rustic, polar
"""
_THINGS = """
heron, apollo, lynx, canyon, comet, harbor, falcon, glacier, phoenix, orchid, badger, cascade, meadow, titan,
otter, summit,
raven, delta, bison, lagoon, atlas, willow, cobra, ridge, mammoth, ember, pelican, fjord, jaguar, nebula
"""


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
