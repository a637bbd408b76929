"""Doubles of documents of other people, tried by Schemathesis: answers have the form that the document names."""

from pathlib import Path

import pytest

from app.apis.double.model import read_model
from app.apis.double.service import Double
from tests.integration.servers.packaged_documents import read_packaged
from tests.integration.servers.test_packaged_documents import DOCUMENTS
from tests.support.double_server import FORMS, violations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize("name", ["Directus", "Figma", "Jupyter Server"])
def test_every_answer_of_a_double_has_the_form_that_its_document_names(name: str, tmp_path: Path) -> None:
    document = read_packaged(DOCUMENTS[name].source)
    model = read_model("api", document, server="http://api.test")
    # In Swagger 2.0 the type is that of all answers, also of a 204, which has no content.
    checks = tuple(each for each in FORMS if "swagger" not in document or each != "content_type_conformance")
    assert violations(Double(model, "first"), tmp_path, checks, phases="fuzzing", examples=3) == ""
