"""Doubles of other people's documents, tried by Schemathesis: every answer has the form that the document names."""

from pathlib import Path

import pytest

from app.apis.double.model import read_model
from app.apis.double.service import Double
from tests.double_server import FORMS, violations
from tests.servers.packaged_documents import read_packaged
from tests.servers.test_packaged_documents import DOCUMENTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize("name", ["Directus", "Figma", "Jupyter Server", "Mastodon", "PeerTube"])
def test_every_answer_of_a_double_has_the_form_that_its_document_names(name: str, tmp_path: Path) -> None:
    model = read_model("api", read_packaged(DOCUMENTS[name].source), server="http://api.test")
    assert violations(Double(model, "first"), tmp_path, FORMS, phases="fuzzing", examples=3) == ""
