"""The dashboard and the alerts in docker/monitoring name only metrics and labels that the server has."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from app.base import telemetry
from app.db import runners
from app.db.database import Sessions
from tests.support.api_app import open_api_app
from tests.support.compose_file import ROOT, service
from tests.support.rows import runner_report

DIRECTORY = ROOT / "docker" / "monitoring"
_ALSO = {"up": {"job", "instance"}}
_LABELS = {"le"}  # of every histogram
_SELECTOR = re.compile(r"\b(up|sage_\w+)\b(?:\{([^}]*)\})?")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DIRECTORY / "dashboard.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DIRECTORY / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> dict[str, str]:
    """By the alert, or the panel and its query."""
    queries = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    }
    return queries | {rule["alert"]: rule["expr"] for rule in rules()}


@pytest.fixture
async def known(committed: Sessions, database_url: str) -> dict[str, set[str]]:
    """The labels of each metric, as the API serves it or a runner counts it."""
    async with open_api_app(committed, database_url) as api:
        await api.client.get("/v1/tasks")
        async with api.sessions.begin() as session:
            await runners.report(session, runner_report())
        text = (await api.client.get("/metrics")).text
    labels = {name: set(found) | _LABELS for name, found in _counted()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set(_LABELS)).update(sample.labels)
    return labels | _ALSO


async def test_every_metric_and_label_exists(known: dict[str, set[str]]) -> None:
    used = set()
    for title, expression in expressions().items():
        for name, selected in _SELECTOR.findall(expression):
            assert name in known, title
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected)) <= known[name], title
            used.add(name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count"))
        for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
            names = {name for name, _ in _SELECTOR.findall(expression)}
            assert set(re.split(r",\s*", grouped)) <= set().union(*(known[name] for name in names)), title
    assert {name for name, _ in _families()} <= used, "measured, and shown nowhere"


def test_every_expression_is_balanced_and_of_its_own() -> None:
    found = list(expressions().values())
    assert len(set(found)) == len(found)
    for expression in found:
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert {"summary", "description"} <= rule["annotations"].keys(), rule["alert"]
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_prometheus_scrapes_the_port_of_the_runners_and_reads_the_rules() -> None:
    config = yaml.safe_load((DIRECTORY / "prometheus.yaml").read_text())
    assert [(DIRECTORY / name).is_file() for name in config["rule_files"]] == [True]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    (found,) = jobs["sage-runner"]["dns_sd_configs"]
    assert str(found["port"]) == service("runner").environment["SAGE_METRICS_PORT"]


def _families() -> Iterator[tuple[str, Any]]:
    for each in vars(telemetry).values():
        if isinstance(each, Counter | Gauge | Histogram):
            (family,) = each.describe()
            yield family.name + ("_total" if family.type == "counter" else ""), each


def _counted() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, each in _families():
        for suffix in ("", "_bucket", "_sum", "_count"):
            yield name + suffix, each._labelnames
