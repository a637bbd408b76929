"""A run that names no learning rate takes one that suits its model."""

from pathlib import Path
from uuid import UUID

import pytest

from app.base.errors import InvalidError
from app.base.model_catalog import SEED_DIR
from app.base.run_settings import RunKind, RunSettings
from app.db.database import Sessions
from app.engine.tokenizer import read_card
from app.releases import store as releases
from tests.support.api_app import open_api_app
from tests.support.console_pages import read_page
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.sage_command import SageCommand
from tests.support.served_scores import serve_scored
from trainer.learning.learner import with_learning_rate
from trainer.worlds.seed_policy import bootstrap


def test_the_seed_policy_names_its_rate_and_others_get_a_tenth_of_it(tmp_path: Path) -> None:
    seed, other = read_card(SEED_DIR), read_card(tmp_path)
    assert "learning_rate: 0.001\n" in Path(bootstrap.__file__).read_text(), (
        "the card of the next one names it, too"
    )
    with every_row() as row:
        for named, given, expected in (
            (RunSettings(), seed, 1e-3),
            (RunSettings(), other, 1e-4),
            (RunSettings(kind=RunKind.ROLLOUT), seed, 1e-3),
            (RunSettings(kind=RunKind.SFT), other, 1e-3),
            (RunSettings(lr=0.5), seed, 0.5),
        ):
            with row(named.kind, named.lr, bool(given)):
                assert with_learning_rate(named, given).lr == expected


def test_a_card_whose_rate_is_none_is_refused_by_name() -> None:
    with every_row() as row:
        for rate in (0, -1, 1, True, "fast", None, float("nan"), [0.1]):
            with row(rate), pytest.raises(InvalidError, match=r"learning_rate: .* mend it, or set lr"):
                with_learning_rate(RunSettings(), {"learning_rate": rate})


async def test_rest_command_and_page_say_how_far_a_run_may_go_and_why(
    committed: Sessions, database_url: str
) -> None:
    model, told = {"lr": 0.002, "lr_from": "model"}, "0.002, by its model"
    async with open_api_app(committed, database_url) as api, served(api) as client:
        async with committed.begin() as session:
            await serve_scored(session, api.demo.id, 1.0, 0.0)
        shell = SageCommand(api, str(client.base_url))
        with every_row() as row:
            for settings, rate, update, shown in (
                ({}, None, {"lr": None, "lr_from": "model"}, "by its model"),
                ({}, 0.002, model, told),
                ({"max_kl": 0}, 0.002, model | {"max_kl": 0}, told),
                ({"lr": 0.5}, None, {"lr": 0.5, "lr_from": "setting"}, "0.5, set for the run"),
                ({"lr": 0.5}, 0.5, {"lr": 0.5, "lr_from": "setting"}, "0.5, set for the run"),
                ({"kind": "sft"}, 0.001, {"lr": 0.001, "lr_from": "kind", "max_kl": None}, "0.001, of its kind"),
                ({"kind": "exam", "environment": "office"}, None, None, None),
            ):
                with row(str(settings), rate):
                    run = (await api.client.post("/v1/training-runs", json={"settings": settings})).json()
                    if rate is not None:
                        async with committed.begin() as session:
                            await releases.record(session, UUID(run["id"]), "base", [], rate)
                    found = (await api.client.get(f"/v1/training-runs/{run['id']}")).json()["update"]
                    assert found == (None if update is None else {"max_kl": 0.05} | update)
                    page = await read_page(api, f"/console/runs/{run['id']}", "admin")
                    assert (f"<dt>Learning rate</dt><dd>{shown}</dd>" in page) is (shown is not None)
                    limit = "no limit" if found and found["max_kl"] == 0 else "0.05 nats a token"
                    assert (f"step</dt><dd>{limit}</dd>" in page) is bool(found and found["max_kl"] is not None)
        out = (await shell.run("runs", run["id"])).out
        assert "update" not in out
        run = (await api.client.post("/v1/training-runs", json={"settings": {"lr": 0.5}})).json()
        out = (await shell.run("runs", run["id"])).out
    lines = [line.split() for line in out.splitlines() if line.startswith("update")]
    assert lines == [["update", "lr", "0.5"], ["update", "lr_from", "setting"], ["update", "max_kl", "0.05"]]
