"""The secrets of a task, in every spelling in which code may print them."""

import base64
import json
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest

from app.records import Call
from app.security.secret_values import SecretValues

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


@pytest.mark.parametrize("spelling", [*SPELLINGS, *LONG_SPELLINGS])
def test_each_spelling_is_found_and_masked(spelling: str) -> None:
    text = (SPELLINGS | LONG_SPELLINGS)[spelling](SECRET)
    values = known(SECRET)
    assert values.found_in(f"it is {text} here")
    masked = values.mask(f"it is {text} here")
    assert masked.startswith("it is ")
    assert masked.endswith(" here")
    assert len(masked) < 30
    assert not values.found_in(masked)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_short_secret_is_found_as_a_whole_word(spelling: str) -> None:
    assert known(SHORT).mask(f"it is {SPELLINGS[spelling](SHORT)} here").startswith("it is ***")


def test_a_pin_does_not_mask_the_numbers_that_contain_it() -> None:
    values = known("4711")
    assert values.mask("4711, 1174; 47110 and 14711") == "***, ***; 47110 and 14711"
    assert values.mask_json({"a": 4711, "b": [47110, 4711.5, True]}) == {"a": "***", "b": [47110, 4711.5, True]}


def test_non_ascii_and_json_escaped_secrets_are_found() -> None:
    secret = 'pässwörd "quoted"\\9'
    values = known(secret)
    for text in (secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), secret.upper(), repr(secret)):
        assert values.found_in(f"<{text}>"), text


def test_only_telling_names_count_and_their_details_do_not() -> None:
    values = SecretValues()
    answer = {"access_token": "tok-abcdef", "token_type": "opaque-bearer", "expires_in": 123456, "user": "iris.m"}
    values.note("mail.log_in", {"username": "iris.m", "password": "hunter2!"}, answer)
    text = "hunter2! tok-abcdef opaque-bearer 123456 iris.m"
    assert values.mask(text) == "***! *** opaque-bearer 123456 iris.m"
    assert values.mask_json(answer) == {**answer, "access_token": "***"}


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
    assert harmless == "YOUR" or not values.found_in(f"the {harmless} here")


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
    assert values.mask_record(call) == Call(
        seq=0, turn=0, api="a.b", arguments={"***": "***"}, result=["a ***"], error=None
    )
    assert values.mask_fields({"arguments": "arguments"}) == {"arguments": "***"}


def test_a_megabyte_is_searched_for_fifty_secrets_in_time() -> None:
    values = known(*(f"{number:02d}-{number * 7919:010x}" for number in range(50)))
    text = "the quick brown fox jumps over the lazy dog. " * 22_000
    values.mask(text)
    best = min(_seconds(lambda: values.mask(text)) for _ in range(3))
    assert best < 0.05


def test_hostile_text_is_searched_in_linear_time() -> None:
    values = known(*(f"{number:03d}-{number * 7919:010x}" for number in range(200)))
    half = "".join(f"{number % 200:03d}-{number % 200 * 7919:010x}"[:9] for number in range(50_000))
    whole = half * 2
    once = min(_seconds(lambda: values.mask(half)) for _ in range(2))
    twice = min(_seconds(lambda: values.mask(whole)) for _ in range(2))
    assert twice < 4 * once + 0.05
    assert twice < 2


def test_with_too_many_secrets_every_text_counts_as_one() -> None:
    values = known(*(f"{number:05d}-{number * 7919:020x}" for number in range(2_000)))
    assert values.mask("anything") == "***"
    assert values.mask("") == ""


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@pytest.mark.parametrize(
    "text", ["x" * 20_000 + "é", "*." * 10_000 + "!", "-_" * 10_000 + "é", "a" * 20_000 + "!"]
)
def test_a_long_value_is_judged_in_linear_time(text: str) -> None:
    started = time.process_time()
    SecretValues().note("", {"access_token": text})
    assert time.process_time() - started < 1
