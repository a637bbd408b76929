"""Sites have the same suite under different names and rules, so only the documents state how to use it."""

from trainer.worlds.office.apps import ACTS, APPS, Site, candidates

SITES = [Site.of(seed) for seed in range(200)]


def test_the_same_seed_is_the_same_site() -> None:
    once = Site.of(5)
    Site.of.cache_clear()
    assert Site.of(5) == once
    assert Site.of(6) != once


def test_a_site_has_one_distinct_name_for_each_operation() -> None:
    for spec in APPS.values():
        names = [name for found in candidates(spec).values() for name in found]
        assert len(set(names)) == len(names)
        for site in SITES:
            here = site.apps[spec.name]
            assert all(here.names[role] in found for role, found in candidates(spec).items())
            assert all(here.role(name) == role for role, name in here.names.items())


def test_every_name_and_every_rule_occurs_at_some_site() -> None:
    for spec in APPS.values():
        here = [site.apps[spec.name] for site in SITES]
        for role, names in candidates(spec).items():
            assert {each.names[role] for each in here} == set(names)
        assert {each.fields["person"] for each in here} == set(spec.persons)
        assert {each.first_page for each in here} == {0, 1}
        assert {each.hidden for each in here} == {"label", "number"}
        assert {each.guarded for each in here} == set(ACTS)


def test_fields_of_an_item_have_different_names() -> None:
    for site in SITES:
        for here in site.apps.values():
            assert len({"id", *here.fields.values()}) == 4
