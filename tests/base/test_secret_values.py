"""The secrets of a task, in every spelling in which code may print them."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from app.apis.credentials.credential import mask
from app.base.secrets import SecretValues
from app.base.values import Call, Json
from tests.support.every_row import every_row
from tests.support.processor_time import growth, within

SECRET = "hunter2-Secret!9"
SHORT = "k9-Pin"

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "reversed": lambda text: text[::-1],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "urlsafe base64": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "upper hex": lambda text: text.encode().hex().upper(),
    "hex bytes": lambda text: text.encode().hex(" "),
    "spaces between": " ".join,
    "dashes between": "-".join,
}
LONG_SPELLINGS: dict[str, Callable[[str], str]] = {
    "base64 after one byte": lambda text: base64.b64encode(b"a" + text.encode() + b"zz").decode(),
    "base64 after two bytes": lambda text: base64.urlsafe_b64encode(b"ab" + text.encode() + b"zzz").decode(),
    "base64 of the reverse": lambda text: base64.b64encode(text[::-1].encode()).decode(),
    "wrapped base64": lambda text: base64.encodebytes(text.encode() * 5).decode(),
    "URL": lambda text: quote(text, safe=""),
    "percent": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "JSON": json.dumps,
    "escapes": lambda text: "".join(f"\\u{ord(each):04x}" for each in text),
    "a list": lambda text: str(list(text)),
    "lines": "\n".join,
}


def known(*texts: str) -> SecretValues:
    values = SecretValues()
    values.note("mail.log_in", {"password": list(texts)})
    return values


def test_each_spelling_is_found_and_masked() -> None:
    with every_row() as row:
        for spelling in [*SPELLINGS, *LONG_SPELLINGS]:
            with row(spelling):
                text = (SPELLINGS | LONG_SPELLINGS)[spelling](SECRET)
                values = known(SECRET)
                masked = values.mask(f"it is {text} here")
                assert masked.startswith("it is ")
                assert masked.endswith(" here")
                assert len(masked) < 30
                assert values.mask(masked) == masked


def test_a_short_secret_is_found_as_a_whole_word() -> None:
    with every_row() as row:
        for spelling in SPELLINGS:
            with row(spelling):
                assert known(SHORT).mask(f"it is {SPELLINGS[spelling](SHORT)} here").startswith("it is ***")


def test_a_pin_does_not_mask_the_numbers_that_contain_it() -> None:
    values = known("4711")
    values.note("", {"pin": 12.75})
    assert values.mask("4711, 1174; 47110 and 14711") == "***, ***; 47110 and 14711"
    assert values.mask_value({"a": 4711, "b": [47110, 4711.5, True, 12.75]}) == {
        "a": "***",
        "b": [47110, 4711.5, True, "***"],
    }


def test_non_ascii_and_json_escaped_secrets_are_found() -> None:
    secret = 'pässwörd "quoted"\\9'
    values = known(secret)
    for text in (secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), secret.upper(), repr(secret)):
        assert "***" in values.mask(f"<{text}>"), text


def test_only_telling_names_count_and_their_details_do_not() -> None:
    values = SecretValues()
    answer = {"access_token": "tok-abcdef", "token_type": "opaque-bearer", "expires_in": 123456, "user": "iris.m"}
    values.note("mail.log_in", {"username": "iris.m", "password": "hunter2!"}, answer)
    text = "hunter2! tok-abcdef opaque-bearer 123456 iris.m"
    assert values.mask(text) == "***! *** opaque-bearer 123456 iris.m"
    assert values.mask_value(answer) == {**answer, "access_token": "***"}


@pytest.mark.parametrize(
    "name", ["nextPageToken", "page_token", "NextToken", "ContinuationToken", "nextSyncToken", "X-Page-Token"]
)
def test_a_place_in_a_list_is_no_secret(name: str) -> None:
    values, answer = SecretValues(), {name: "CAEQAA", "items": [1]}
    values.note("drive.list_files", {name: "CAEQBB"}, answer)
    assert (values.known, mask(answer)) == (False, answer)
    assert mask({"pageToken": {"token": "abcd1234"}}) == {"pageToken": {"token": "***"}}


def test_numbers_of_tokens_are_no_secrets() -> None:
    values, usage = SecretValues(), {"usage": {"total_tokens": 1532, "promptTokens": 1200, "output_tokens": 332}}
    values.note("chat.complete", {}, usage)
    assert (values.known, mask(usage)) == (False, usage)
    assert mask({"tokens": ["abcd1234"], "session_token": "ab"}) == {"tokens": "***", "session_token": "***"}


def test_the_result_of_a_telling_operation_is_secret() -> None:
    values = SecretValues()
    values.note("supervisor.show_passwords", {}, {"mail": "b7d1-mail", "bank": "c8e2-bank"})
    values.note("vault.list_secrets", {}, [{"name": "a-service", "password": "f0f0-f0f0"}])
    values.note("vault.reset_password", {}, {"message": "the password was reset"})
    assert values.mask("mail: b7d1-mail, bank: c8e2-bank, a-service: f0f0-f0f0; the password was reset") == (
        "mail: ***, bank: ***, a-service: ***; the password was reset"
    )


@pytest.mark.parametrize("harmless", ["<password>", "***", "Bearer", "abc", "true", "YOUR", "{token}"])
def test_placeholders_and_short_words_are_no_secrets(harmless: str) -> None:
    values = SecretValues()
    values.note("mail.log_in", {"password": harmless})
    assert harmless == "YOUR" or values.mask(f"the {harmless} here") == f"the {harmless} here"


def test_what_a_cut_leaves_of_a_secret_is_masked() -> None:
    values = known(SECRET)
    assert values.mask("see hunter\n[10 characters cut]") == "see ***\n[10 characters cut]"
    assert values.mask("see hunter\n[output cut after 100,000 characters]\n").startswith("see ***\n[output")
    assert values.mask("see hunter2-S...") == "see ***..."
    assert values.mask("[7 characters cut]\nret!9 is it") == "[7 characters cut]\n*** is it"
    assert values.mask("hunter\nmore") == "hunter\nmore"


def test_records_are_masked_without_their_field_names() -> None:
    values = known("result-x", "arguments")
    call = Call(seq=0, turn=0, api="a.b", arguments={"result-x": "arguments"}, result=["a result-x"], error=None)
    assert values.mask_value(call) == Call(
        seq=0, turn=0, api="a.b", arguments={"***": "***"}, result=["a ***"], error=None
    )
    assert values.mask_fields({"arguments": "arguments"}) == {"arguments": "***"}


def test_a_cut_secret_is_masked_behind_any_number_of_other_cuts() -> None:
    values = known(SECRET)
    listing = "a subject that goes on...\n" * 40
    assert values.mask(f"{listing}see hunter\n[10 characters cut]") == f"{listing}see ***\n[10 characters cut]"
    cuts = "[7 characters cut]\nand more\n" * 40
    assert values.mask(f"{cuts}[7 characters cut]\nret!9 is it") == f"{cuts}[7 characters cut]\n*** is it"


SPLIT: dict[str, Callable[[str], list[Json]]] = {
    "codes of bytes": lambda text: [*text.encode()],
    "codes of characters": lambda text: [*map(ord, text)],
    "characters": list,
    "halves": lambda text: [text[:7], text[7:]],
}


@pytest.mark.parametrize("split", SPLIT)
@pytest.mark.parametrize("secret", [SECRET, "Straße4711Köln"])
def test_a_secret_that_a_list_spells_is_masked(split: str, secret: str) -> None:
    spelled = SPLIT[split](secret)
    value = {"rows": [["fine", 1], {"codes": spelled}], "other": [104, 117]}
    assert known(secret).mask_value(value) == {"rows": [["fine", 1], {"codes": ["***"]}], "other": [104, 117]}


TEXTS: dict[str, Callable[[int], str]] = {
    "prose": lambda size: "the quick brown fox jumps over the lazy dog. " * (size // 45),
    "beginnings of secrets": lambda size: "".join(f"{_numbered(number % 200)[:9]}" for number in range(size // 9)),
    "cuts of a secret": lambda size: "000-0... " * (size // 9),
    "cuts": lambda size: "fox 000-2... " * (size // 13),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_are_searched_in_linear_time(kind: str) -> None:
    values = known(*map(_numbered, range(200)))
    assert growth(lambda size: TEXTS[kind](100_000 * size), values.mask) < 30


@pytest.mark.parametrize("text", ["x{}é", "*.{}!", "-_{}é", "a{}!"])
def test_a_long_value_is_judged_in_linear_time(text: str) -> None:
    def note(value: str) -> None:
        SecretValues().note("", {"access_token": value})

    assert growth(lambda size: text.format(text.partition("{")[0] * 20_000 * size), note) < 30


def test_with_too_many_secrets_every_text_counts_as_one() -> None:
    values = known(*(f"{number:05d}-{number * 7919:020x}" for number in range(2_000)))
    assert values.mask("anything") == "***"
    assert values.mask("") == ""
    values.note("", {"pin": 4711})
    assert values.mask_value({"name": ["any", "thing", 4711], "count": 4711}) == {"***": "***"}
    assert values.mask_value([{"": 4711}, 12]) == [{"": "***"}, 12]


@pytest.mark.parametrize("more", ["", "AAAAAAAAAAAA"])
def test_more_secrets_than_can_be_looked_for_take_no_time(more: str) -> None:
    rows: list[Json] = [{"id": number, "token": f"{more}{number * 7919:020x}{more}"} for number in range(60_000)]
    values = SecretValues()
    with within():
        values.note("vault.list", {}, rows)
        for number in range(4):
            assert values.mask("anything") == "***"
            values.add(f"another-{number}")


@pytest.mark.parametrize("secret", ["a" * 20_000, "a" * 3_000_000, "0123456789" * 300_000])
def test_a_secret_may_be_long_and_repeat_itself(secret: str) -> None:
    values = known(secret)
    with within():
        assert values.mask(secret[:1_000_000]) == "***"


def test_a_secret_is_masked_behind_any_number_of_texts_that_begin_like_it() -> None:
    values = known(f"eyJhbGciOiJIUzI1NiIs-{_numbered(0)}")
    similar = "".join(f"eyJhbGciOiJIUzI1NiIs-{_numbered(number)} " for number in range(1, 70_000))
    few = similar[:700_000]
    assert values.mask(f"{few} eyJhbGciOiJIUzI1NiIs-{_numbered(0)}") == f"{few} ***"
    assert _numbered(0) not in values.mask(f"{similar}eyJhbGciOiJIUzI1NiIs-{_numbered(0)}")


def _numbered(number: int) -> str:
    return f"{number:03d}-{number * 7919:010x}"
