"""Apps that keep records: their services, what a task's verifier accepts, and what a split holds out."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import get_args

import msgspec
import pytest

from app.base.values import Json
from trainer.environment import Split, Verdict
from trainer.lessons.phrases import BY_LINK, CRUD_FRAMES, GIVEN, LINKED, ONE, TITLED
from trainer.worlds.generated.apis import CRUD, Api, Role, Route
from trainer.worlds.generated.crud import (
    ANSWERING,
    CRUD_GOALS,
    CrudEnvironment,
    CrudKey,
    CrudPlan,
    HeldOut,
    plan_of,
)
from trainer.worlds.generated.crud_expert import write_program
from trainer.worlds.generated.environment import WorldState
from trainer.worlds.generated.words import Pool
from trainer.worlds.generated.worlds import Record, WorldRequest, WorldResponse

COUNT = 300
AXES: tuple[HeldOut, ...] = get_args(HeldOut)[1:]
POOLS: tuple[Pool, ...] = ("train", "validation", "test")


def plans(split: Split, axis: HeldOut, count: int = COUNT) -> list[CrudPlan]:
    scenarios = CrudEnvironment(axis).scenarios(split, count, seed=3)
    return [plan_of(CrudKey.place_in(each.tasks[0].variables["world"])[0]) for each in scenarios]


@pytest.fixture(scope="module")
def trained() -> list[CrudPlan]:
    return plans("train", "domains", 1500)


def state_of(plan: CrudPlan, index: int = 0) -> WorldState[CrudPlan]:
    return WorldState(plan, index)


def verdict(state: WorldState[CrudPlan], answer: Json = None, *, completed: bool = True) -> Verdict:
    return state.plan.verify(state.index, state.records, answer, completed=completed)


def finish(state: WorldState[CrudPlan]) -> Json:
    """Bring the world into the state that its task wants, and return the answer."""
    state.records = state.plan.wanted_records(state.index)
    return state.plan.expected_answer(state.index)


def ask(
    state: WorldState[CrudPlan], route: Route, identity: object = "", body: Json = None, key: str = ""
) -> WorldResponse:
    path = [part if not part.startswith("{") else str(identity) for part in route.path.strip("/").split("/")]
    api = state.plan.main
    return state.respond(
        api.name,
        WorldRequest(
            method=route.method,
            path=tuple(path),
            query={},
            headers={api.words["header"].lower(): key or state.password(api.name)},
            body=msgspec.json.encode(body) if body is not None else b"",
        ),
    )


def with_goal(trained: list[CrudPlan], goal: str) -> list[CrudPlan]:
    return [plan for plan in trained if plan.form.goal == goal]


@pytest.mark.parametrize("goal", CRUD_GOALS)
def test_a_task_is_solved_by_what_it_wants_and_by_nothing_less(trained: list[CrudPlan], goal: str) -> None:
    for plan, index in product(with_goal(trained, goal)[:12], range(3)):
        idle, done = state_of(plan, index), state_of(plan, index)
        assert not verdict(idle).success
        answer = finish(done)
        assert verdict(done, answer).success, verdict(done, answer)
        assert not verdict(done, answer, completed=False).success
        assert not verdict(done, "something else").success
        assert (answer is not None) == (goal in ANSWERING)


def lose(records: list[Record]) -> None:
    records.pop()


def rename(records: list[Record]) -> None:
    records[0].title += " B"


def note(records: list[Record]) -> None:
    records[0].extra |= {"proxy": "none"}


@pytest.mark.parametrize("spoil", [lose, rename, note])
def test_what_nobody_asked_for_fails_the_task(
    trained: list[CrudPlan], spoil: Callable[[list[Record]], None]
) -> None:
    for plan in trained[:60]:
        for place in sorted(state_of(plan).records):
            state = state_of(plan)
            answer = finish(state)
            if place != (plan.main.name, plan.ask.at):
                spoil(state.records[place])
                assert "changed without being asked" in str(verdict(state, answer).failures)


@pytest.mark.parametrize("goal", ["read", "change", "delete", "act", "create"])
def test_another_record_of_the_same_kind_must_stay(trained: list[CrudPlan], goal: str) -> None:
    for plan in with_goal(trained, goal)[:20]:
        place = (plan.main.name, plan.ask.at)
        state = state_of(plan)
        answer = finish(state)
        started = [(each.id, each.facts) for each in state_of(plan).records[place]]
        kept = [each for each in state.records[place] if (each.id, each.facts) in started]
        kept[-1].number += 1
        assert "changed without being asked" in str(verdict(state, answer).failures)


def test_a_record_is_created_once_and_with_what_was_asked(trained: list[CrudPlan]) -> None:
    for plan in with_goal(trained, "create")[:30]:
        twice, other = state_of(plan), state_of(plan)
        for state in (twice, other):
            finish(state)
        records = twice.records[plan.main.name, plan.ask.at]
        records.append(msgspec.structs.replace(records[-1], id=1))
        assert not verdict(twice).success
        other.records[plan.main.name, plan.ask.at][-1].title += "s"
        assert not verdict(other).success


def test_the_record_that_is_meant_is_the_only_one(trained: list[CrudPlan]) -> None:
    for plan, index in product(with_goal(trained, "delete")[:60], range(3)):
        value = plan.values[index][plan.form.by]
        records = state_of(plan, index).records[plan.main.name, plan.ask.at]
        assert [getattr(each, plan.form.by) for each in records].count(value) == 1


def refusals(state: WorldState[CrudPlan]) -> Iterator[tuple[int, WorldResponse]]:
    """Bad requests, with the status that each should have."""
    api, at = state.plan.main, state.plan.ask.at
    collection = api.collections[at]

    def body(**fields: Json) -> Json:
        return {collection.singular: fields} if api.shape.body == "wrapped" else fields

    def route(role: Role) -> Route:
        return api.route(role, at)

    known = state.records[api.name, at][0].id
    yield 404, ask(state, route("show"), "none")
    yield 404, ask(state, route("delete"), "none")
    yield 422, ask(state, route("create"), body=body(**{collection.fields["label"]: "x"}))
    yield 422, ask(state, route("create"), body=[1])
    yield 422, ask(state, route("update"), known, body())
    yield 422, ask(state, route("update"), known, body(**{collection.fields["number"]: "many"}))
    if api.shape.write == "patch":
        name = collection.flags[0] if collection.has_flags else collection.fields["state"]
        yield 422, ask(state, route("update"), known, body(**{name: "unheard of"}))
    if api.shape.auth == "key":
        yield 401, ask(state, route("list"), key="wrong")
    if api.shape.body == "wrapped":
        yield 422, ask(state, route("create"), body={collection.fields["title"]: "x"})


def test_bad_requests_are_refused_and_change_nothing(trained: list[CrudPlan]) -> None:
    for plan in trained[:60]:
        state = state_of(plan)
        before = msgspec.json.encode(list(state.records.values()))
        for status, response in refusals(state):
            assert response.status == status, (plan.key.text, response)
            assert plan.main.wire("error") in response.content
        assert msgspec.json.encode(list(state.records.values())) == before


def test_a_flag_is_shown_set_and_cleared(trained: list[CrudPlan]) -> None:
    flagged = [each for each in trained if each.ask.collection.has_flags and each.main.shape.write == "patch"]
    flat = [each for each in flagged if each.main.shape.nesting == each.main.shape.body == "flat"]
    assert len(flat) > 20
    for plan in flat[:20]:
        state, flag, other = (
            state_of(plan),
            plan.ask.verb.done,
            next(name for name in plan.ask.collection.flags if name != plan.ask.verb.done),
        )
        known = state.records[plan.main.name, plan.ask.at][0].id

        def after(body: dict[str, Json], known: object = known, state: WorldState[CrudPlan] = state) -> list[str]:
            """The flags that are set after an update."""
            changed = ask(state, state.plan.main.route("update", state.plan.ask.at), known, body).content
            shown = ask(state, state.plan.main.route("show", state.plan.ask.at), known).content
            assert isinstance(shown, dict)
            assert changed == shown
            return [name for name in state.plan.ask.collection.flags if shown[name]]

        assert after({flag: True}) == [flag]
        assert after({other: False}) == [flag]
        assert after({name: name == flag for name in plan.ask.collection.flags}) == [flag]
        assert after({other: True, flag: False}) == [other]
        assert after({flag: True}) == [flag]
        assert after({flag: False}) == []


def test_every_operation_is_in_the_catalog_under_the_name_that_the_expert_calls(trained: list[CrudPlan]) -> None:
    environment = CrudEnvironment()
    for plan in trained[:200]:
        apps = environment.catalog(plan).apps
        for api in plan.apis:
            assert {route.python for route in api.routes} == set(apps[api.name].operations)


def every_plan(trained: list[CrudPlan]) -> list[CrudPlan]:
    splits: tuple[Split, ...] = ("validation", "test")
    return [*trained, *(plan for split in splits for axis in AXES for plan in plans(split, axis))]


def test_every_name_means_one_thing(trained: list[CrudPlan]) -> None:
    for plan in every_plan(trained):
        collections = [each for api in plan.apis for each in api.collections]
        nouns = [each.domain.noun for each in collections]
        assert len(set(nouns)) == len(nouns), nouns
        for collection in collections:
            names = [*collection.fields.values(), *collection.flags, *collection.writable_extras]
            assert len(set(names)) == len(names), names
            assert set(collection.states).isdisjoint(collection.domain.values)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_domains_share_no_word_with_training(trained: list[CrudPlan], split: Split) -> None:
    taught = set().union(*map(words_of, trained))
    assert len(taught) > 300
    taught |= {words for plan in trained for api in plan.apis for each in api.collections for words in each.spare}
    for plan in plans(split, "domains"):
        assert words_of(plan).isdisjoint(taught), words_of(plan) & taught


def words_of(plan: CrudPlan) -> set[str]:
    """Nouns, fields and verbs."""
    words: set[str] = set()
    for api in plan.apis:
        for domain in (each.domain for each in api.collections):
            words |= {domain.noun, domain.person, domain.label, domain.number, domain.date, domain.initial}
            words |= {verb.base for verb in domain.verbs}
    return words


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_shapes_combine_values_that_never_meet_in_training(trained: list[CrudPlan], split: Split) -> None:
    taught = {pair for plan in trained for api in plan.apis for pair in pairs(api)}
    for plan in plans(split, "shapes"):
        assert pairs(plan.main) - taught
        met = [
            all(depends_on(plan, axis) for axis in pair) for pair in CRUD.held_out_pairs(plan.main.shape, split)
        ]
        assert any(met), f"the program of {plan.key.text} does not meet what is held out"
    for axis, values in CRUD.axes.items():
        assert {getattr(api.shape, axis) for plan in trained for api in plan.apis} == set(values)


def depends_on(plan: CrudPlan, axis: str) -> bool:
    """Whether another value of the axis would need another program."""
    subject = plan.ask
    shapes = [msgspec.structs.replace(plan.main.shape, **{axis: value}) for value in CRUD.axes[axis]]
    apis = [msgspec.structs.replace(plan.main, shape=shape) for shape in shapes]
    return len({write_program(subject.of(api)) for api in apis}) > 1


def pairs(api: Api) -> set[frozenset[tuple[str, str]]]:
    chosen = [(axis, str(getattr(api.shape, axis))) for axis in CRUD.axes]
    return {frozenset((one, other)) for one, other in product(chosen, chosen) if one < other}


def test_held_out_phrasings_are_worded_otherwise() -> None:
    lists = [[CRUD_FRAMES[pool][goal] for pool in POOLS] for goal in CRUD_GOALS]
    lists += [[phrases[pool] for pool in POOLS] for phrases in (ONE, BY_LINK, GIVEN, TITLED, LINKED)]
    for parts in lists:
        assert len(set().union(*parts)) == sum(map(len, parts)), parts
