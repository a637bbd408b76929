"""A tokenizer built from the vocabulary has no unknown word in the office."""

import re
from random import Random
from typing import cast

import pytest

from app.apis.catalog import with_builtins
from app.apis.look_ups import show_signatures
from app.sandbox.child.api_proxies import Apis
from app.sandbox.child.channel import HostChannel
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.office_instructions import asked_by
from tests.support.office_rollouts import Office
from trainer.worlds.office.apps import APP_NAMES
from trainer.worlds.office.environment import OfficeWorld, catalog_of
from trainer.worlds.office.expert import ExpertScript, Faults, vocabulary
from trainer.worlds.office.scenarios import TEMPLATES

WORD = re.compile(r"[A-Za-z_]\w*")
CLUMSY = Faults(unprepared=0.5, page=0.5, synonym=0.5, inline=0.2)
KNOWN = set(vocabulary())
FUNCTIONS = {template.function for template in TEMPLATES}


def unknown(text: str) -> set[str]:
    """The words of a text that are not in the vocabulary. Names of functions count by their parts."""
    words = {part for word in WORD.findall(text) for part in (word.split("_") if word in FUNCTIONS else [word])}
    return words - KNOWN


def test_no_word_comes_twice() -> None:
    assert len(vocabulary()) == len(set(vocabulary()))
    assert 400 < len(vocabulary()) < 600


def test_every_word_of_the_instructions_is_in_it() -> None:
    for template in TEMPLATES:
        for phrasing in template.phrasings:
            assert unknown(" ".join([phrasing.format(value=""), *template.values])) == set()


def test_every_word_of_the_documents_of_any_site_is_in_it() -> None:
    for site in range(60):
        for app in APP_NAMES:
            assert unknown(show_signatures(catalog_of(site), app)) == set()


def test_every_word_of_the_errors_about_unknown_operations_is_in_it() -> None:
    apis = Apis(cast(HostChannel, None), with_builtins(catalog_of(0)).names())  # none is called
    for app in (getattr(apis, name) for name in APP_NAMES):
        for name in sorted(KNOWN.difference(dir(app))):
            with pytest.raises(AttributeError) as raised:
                getattr(app, name)
            assert unknown(str(raised.value)) == set()


async def test_every_word_that_an_expert_writes_or_reads_is_in_it(sandbox: ForkedSandbox) -> None:
    def clumsy(world: OfficeWorld) -> ExpertScript:
        return ExpertScript(
            world.site, *asked_by(world.task.instruction), rng=Random(world.task.id.int), faults=CLUMSY
        )

    office = Office(sandbox)
    for chosen in office.environment.scenarios("train", 60, seed=12):
        played = await office.play(chosen, chosen.tasks[0], clumsy)
        assert unknown(played.text) == set()
