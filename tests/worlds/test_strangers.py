"""Strangers' APIs: valid documents of every kind, read by the double, whose tasks their programs solve."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from random import Random
from statistics import median

import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_30_VALIDATOR, OPENAPI_31_VALIDATOR

from app.apis.double.model import Model, read_model
from app.sandbox.protocol import Sandbox
from tests.support.every_row import every_row
from tests.support.practice_rollouts import code_of, execute
from trainer.environment import Split
from trainer.practice.environments import Plan
from trainer.worlds.strangers.documents import Document, draw_document
from trainer.worlds.strangers.domains import administration, domains
from trainer.worlds.strangers.environment import StrangersEnvironment, load_environment

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
VALIDATORS = {"3.0": OPENAPI_30_VALIDATOR, "3.1": OPENAPI_31_VALIDATOR}


def documents(count: int) -> Iterator[Document]:
    for at in range(count):
        yield draw_document(SPLITS[at % 3], Random(f"document {at}"))


def model_of(drawn: Document) -> Model:
    return read_model(drawn.name, drawn.content, server="http://stranger.test")


def plans(environment: StrangersEnvironment, split: Split, count: int) -> list[Plan]:
    made = environment.scenarios(split, count, seed=3)
    return [environment.place(each.tasks[0].variables["world"])[0] for each in made]


def test_there_are_sixty_domains_of_three_to_eight_resources_and_no_split_has_one_of_another() -> None:
    every = [each for split in SPLITS for each in domains(split)]
    assert len(every) >= 60
    assert all(3 <= len(each.resources) <= 8 for each in every)
    nouns = [resource.noun for each in every for resource in each.resources]
    nouns += [each.noun for each in administration()]
    assert [each for each, times in Counter(nouns).items() if times > 1] == []


def test_every_document_is_valid_and_most_of_its_operations_are_modelled() -> None:
    modelled, operations = 0, 0
    with every_row() as row:
        for at, drawn in enumerate(documents(120)):
            with row(f"{at} {drawn.name}"):
                errors = list(VALIDATORS[drawn.content["openapi"][:3]].iter_errors(drawn.content))
                assert not errors, errors[0].message
                model = model_of(drawn)
                modelled += len(model.operations)
                operations += len(model.operations) + len(model.left_out)
                assert len(model.operations) >= 0.5 * len(model.app.operations), model.left_out
    assert 0.75 < modelled / operations < 0.95


def test_documents_differ_in_size_names_lists_pages_bodies_and_credentials() -> None:
    models = [model_of(each) for each in documents(120)]
    sizes = [len(each.app.operations) for each in models]
    assert min(sizes) <= 5
    assert max(sizes) >= 100
    assert 10 <= median(sizes) <= 40
    every = [made for model in models for made in model.operations.values()]
    assert max(len(each.operation.parameters) for each in every) >= 25
    lists = [each for each in every if each.role == "list" and each.shape is not None]
    assert {each.shape.holds for each in lists if each.shape} == {"list", "map"}
    assert {len(each.shape.keys) for each in lists if each.shape} == {0, 1, 2}
    assert {each.query.paging.by for each in lists if each.query.paging} == {"page", "offset", "cursor"}
    assert any(each.query.filters for each in lists)
    assert {each.role for each in every} >= {"list", "get", "create", "replace", "update", "delete", "act", "read"}
    bodies = [each.body.shape for each in every if each.role == "create" and each.body is not None]
    assert {len(each.keys) for each in bodies if each is not None} == {0, 1}
    links = [link for model in models for each in model.collections.values() for link in each.links]
    assert links
    assert any(each.scopes for model in models for each in model.collections.values())
    assert {scheme.kind for model in models for scheme in model.app.schemes.values()} == {
        "http",
        "basic",
        "api_key",
    }
    identified = Counter(bool(each.operation.operation_id) for each in every)
    assert identified[True] > identified[False] > 0


async def test_the_program_solves_every_task_and_doing_nothing_none(sandbox: Sandbox) -> None:
    environment = load_environment()
    with every_row() as row:
        counts: dict[Split, int] = {"train": 60, "validation": 20, "test": 20}
        for split, count in counts.items():
            for scenario in environment.scenarios(split, count, seed=1):
                own, _ = environment.place(scenario.tasks[0].variables["world"])
                with row(f"{split} {own.app.name} {own.form.name}"):
                    for index, task in enumerate(scenario.tasks):
                        code = code_of(own, index)
                        done, said = await execute(sandbox, environment, scenario, task, code)
                        assert done.success, (task.instruction, code, said, done.failures)
                    idle, _ = await execute(sandbox, environment, scenario, scenario.tasks[0], "result = None")
                    assert not idle.success, scenario.tasks[0].instruction


async def test_an_operation_that_no_double_models_is_shown_and_refused(sandbox: Sandbox) -> None:
    environment = load_environment()
    for scenario in environment.scenarios("train", 40, seed=2):
        own, _ = environment.place(scenario.tasks[0].variables["world"])
        every = own.app.operations.values()
        unknown = [
            each.name for each in every if each.path.rstrip("/").endswith("/import") and "{" not in each.path
        ]
        if unknown:
            code = f"result = apis.{own.app.name}.{unknown[0]}()"
            _, said = await execute(sandbox, environment, scenario, scenario.tasks[0], code)
            assert "501" in said
            return
    pytest.fail("no document has such an operation")


def test_the_same_seed_gives_the_same_tasks_and_a_larger_count_appends() -> None:
    few, more = (load_environment().scenarios("train", count, seed=9) for count in (4, 8))
    assert list(few) == list(more)[:4]
    assert len({each.id for each in more}) == 8


def test_the_splits_share_neither_resources_nor_wordings() -> None:
    environment = load_environment()
    made = {split: environment.scenarios(split, 20, seed=5) for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        said = [{task.instruction for each in made[split] for task in each.tasks} for split in (one, other)]
        assert not said[0] & said[1]
        owned = [{noun.noun for each in domains(split) for noun in each.resources} for split in (one, other)]
        assert not owned[0] & owned[1]


def test_scenarios_have_apis_of_their_own_whose_operations_have_other_names() -> None:
    environment = load_environment()
    own = plans(environment, "train", 40)
    assert len({each.app.digest for each in own[::2]}) == 20
    names = Counter(name for each in own[::2] for name in each.app.operations)
    assert max(names.values()) < 8
    first, twin = own[:2]
    assert set(first.app.operations) == set(twin.app.operations)
    assert first.form.name != twin.form.name
