"""The documents of the gym are APIs that the product reads, and no two names of one of them clash."""

from collections import Counter
from collections.abc import Iterator

import httpx

from app.apis.catalog import Operation
from tests.support.gym_rollouts import plan
from tests.support.listening_app import listening_app
from trainer.worlds.generated.apis import GYM, GymApi
from trainer.worlds.generated.gym import GymEnvironment
from trainer.worlds.generated.words import spell


def apis(count: int) -> Iterator[tuple[GymApi, dict[str, Operation]]]:
    environment = GymEnvironment()
    for scenario in environment.scenarios("test", count, seed=8):
        chosen = plan(scenario)
        for api in chosen.apis:
            yield api, environment.catalog(chosen).apps[api.name].operations


def test_no_two_names_of_an_api_clash() -> None:
    for api, operations in apis(200):
        distractors = [spell(words, api.shape.style) for words in api.domain.distractors]
        names = [api.id_name, *api.fields.values(), api.wire("group"), *distractors]
        assert len(set(names)) == len(names), names
        assert set(operations) == {route.python for route in api.routes}
        for operation in operations.values():
            arguments = Counter(each.name for each in operation.parameters)
            assert max(arguments.values(), default=1) == 1
            assert not any(name.startswith(("query_", "body_")) for name in arguments), arguments


def test_every_value_of_every_axis_occurs() -> None:
    seen = [api.shape for api, _ in apis(200)]
    for axis, values in GYM.axes.items():
        assert {getattr(shape, axis) for shape in seen} == set(values)


async def test_the_services_answer_over_a_real_socket() -> None:
    environment = GymEnvironment()
    [scenario] = environment.scenarios("train", 1, seed=1)
    world = scenario.tasks[0].variables["world"]
    async with (
        listening_app(environment.worlds, lifespan="off") as url,
        httpx.AsyncClient(base_url=url, timeout=300) as client,
    ):
        passwords = (await client.get(f"/{world}/supervisor/passwords")).json()
        assert set(passwords) == {api.name for api in plan(scenario).apis}
        assert (await client.get(f"/{world}/nothing/at/all")).status_code == 404
        assert (await client.get("/no-world/supervisor/passwords")).status_code == 404
