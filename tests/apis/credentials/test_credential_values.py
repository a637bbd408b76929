"""Values of credentials that can be sent, and those that are refused before they are stored."""

import msgspec
import pytest

from app.apis.credentials.credential import Credential, checked
from app.apis.credentials.schemes import SecurityScheme
from app.apis.documents.routes import ApiPatch
from app.base.errors import InvalidError
from tests.support.every_row import every_row

HEADER = SecurityScheme(name="k", kind="api_key", parameter="X-Key")
COOKIE = SecurityScheme(name="k", kind="api_key", place="cookie", parameter="sid")
QUERY = SecurityScheme(name="k", kind="api_key", place="query", parameter="key")
BASIC = SecurityScheme(name="k", kind="basic")
OAUTH = SecurityScheme(name="k", kind="oauth2", prefix="Bearer")


def test_a_value_that_no_header_can_carry_is_refused() -> None:
    with every_row() as row:
        for scheme in [HEADER, COOKIE, OAUTH]:
            for value in ["sk-…", "key ", "k\x01y", "ключ"]:
                with (
                    row(scheme, value),
                    pytest.raises(
                        InvalidError, match=r"^credentials\.k: they have a blank at an end, or a character"
                    ),
                ):
                    checked("k", Credential(value=value), scheme)


def test_a_value_is_as_free_as_its_place() -> None:
    assert checked("k", Credential(value="ключ "), QUERY)[1] == "api_key"
    assert checked("k", Credential(value="Token a b"), HEADER)[1] == "api_key"
    assert checked("k", Credential(client_id="us", client_secret="ü"), OAUTH)[1] == "oauth2"
    assert checked("k", Credential(username="ü", password="ö"), BASIC)[1] == "basic"


@pytest.mark.parametrize("token", ["", "sk-…", "tok ", "Bearer tok", "tok\n"])
def test_a_bearer_token_is_one_word(token: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="bearer_token"):
        msgspec.convert({"bearer_token": token}, ApiPatch)
