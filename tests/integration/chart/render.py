"""Lints and renders the chart with Helm's own code, and compares the objects with Kubernetes' schemas.

Runs in an environment of its own: reads {"values", "name", "version"} from standard input and writes {"error"} or
{"findings", "objects", "faults"} to standard output.
"""

import json
import sys
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

CHART = Path(__file__).parents[3] / "docker" / "helm"


def main() -> None:
    given = json.load(sys.stdin)
    json.dump(examined(**given), sys.stdout)


def examined(values: dict[str, Any], name: str, version: str) -> dict[str, Any]:
    linted = helm_python.lint(CHART, values, strict=True, kube_version=version)
    findings = [message for message in linted["messages"] if message["severity"] > 1] + linted["errors"]
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(values)
            files = chart.render(values, name=name, namespace="agents", is_install=True)
    except helm_python.HelmError as error:
        return {"error": str(error), "findings": [str(each) for each in findings]}
    objects = [each for path, text in sorted(files.items()) if path.endswith(".yaml") for each in _objects(text)]
    faults = [fault for each in objects for fault in _faults(each, version)]
    return {"findings": [str(each) for each in findings], "objects": objects, "faults": faults}


def _objects(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def _faults(item: dict[str, Any], version: str) -> list[str]:
    """Unknown fields are faults too."""
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{item['kind']} {item['metadata']['name']}: {error}"]
    return []


if __name__ == "__main__":
    main()
