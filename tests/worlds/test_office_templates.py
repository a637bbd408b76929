"""Each instruction has one meaning, and held-out templates recombine those for training."""

from typing import get_args

import pytest

from tests.support.office_instructions import asked_by
from trainer.environment import Split
from trainer.worlds.office.apps import APPS
from trainer.worlds.office.scenarios import TEMPLATES, Template, templates_of

SPLITS: tuple[Split, ...] = get_args(Split)


def test_every_phrasing_has_one_meaning() -> None:
    for template in TEMPLATES:
        assert len(template.phrasings) == 3
        for phrasing in template.phrasings:
            for value in template.values:
                assert asked_by(phrasing.format(value=value)) == (template, value)


def test_the_phrasings_are_plain_english() -> None:
    assert Template("mail", "act1", "person").phrasings == (
        "archive every one of my mails from {value}",
        "archive all mails from {value}",
        "please archive the mails from {value}",
    )
    assert Template("mail", "count", "label").phrasings[0] == "how many mails in {value} do i have"
    assert (
        Template("mail", "total", "over").phrasings[0]
        == "what is the total size of my mails with size over {value}"
    )
    assert Template("mail", "top", "group").phrasings[0] == "archive the largest mail from my {value}"


def test_functions_are_named_alike_at_every_site_and_differently_for_every_template() -> None:
    assert Template("mail", "act1", "person").function == "archive_mails_by_person"
    assert Template("todo", "top", "group").function == "top_todos_by_group"
    assert len({template.function for template in TEMPLATES}) == len(TEMPLATES)


def test_the_splits_hold_every_template_once() -> None:
    assert [len(templates_of(split)) for split in SPLITS] == [105, 16, 40]
    assert {each for split in SPLITS for each in templates_of(split)} == set(TEMPLATES)


def test_the_split_is_the_one_that_results_were_published_for() -> None:
    names = [template.name for template in templates_of("validation")]
    assert names[:4] == ["todo.act2.over", "calendar.act2.person", "notes.top.person", "payments.act1.group"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_every_pair_of_a_held_out_template_occurs_in_at_least_two_for_training(split: Split) -> None:
    taught = templates_of("train")
    for held_out in templates_of(split):
        for one, other in (("app", "verb"), ("app", "selector"), ("verb", "selector")):
            pair = (getattr(held_out, one), getattr(held_out, other))
            assert sum((getattr(each, one), getattr(each, other)) == pair for each in taught) >= 2


def test_every_app_and_every_verb_is_tested() -> None:
    examined = templates_of("test")
    assert {template.app for template in examined} == set(APPS)
    assert {template.verb for template in examined} == {template.verb for template in TEMPLATES}
    assert {template.selector for template in examined} == {template.selector for template in TEMPLATES}
