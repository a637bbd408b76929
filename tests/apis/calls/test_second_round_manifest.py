"""Second round of attacks: a skill that may pass on its parameter tries to pass on a secret that it has read."""

import base64
import json
import zlib
from typing import Any

from app.apis.calls.skill_guard import (
    CONSTANT,
    PARAMETER,
    RESULT,
    AllowedOperation,
    SkillManifest,
    ValueOrigins,
    refusal,
)
from tests.apis.calls.test_skill_guard import operation
from tests.support.every_row import every_row

SECRET = "hunter2-and-more"
_RAW = SECRET.encode()
_BITS = "".join(f"{byte:08b}" for byte in _RAW)
_ALLOWED = SkillManifest({"mail.send": AllowedOperation("POST", False, {"text": [CONSTANT, PARAMETER]})})
_EMPTY: list[Any] = []


def _marks(zero: str, one: str) -> str:
    return "".join(one if bit == "1" else zero for bit in _BITS)


ATTACKS: dict[str, Any] = {
    "plain": SECRET,
    "surrounded by the parameter": f"iris {SECRET} iris",
    "glued to the parameter": f"iris{SECRET}iris",
    "half": SECRET[:8],
    "odd characters": SECRET[::2],
    "a word of it": "hunter2",
    "upper case": SECRET.upper(),
    "title case": SECRET.title(),
    "swapped case": SECRET.swapcase(),
    "reversed": SECRET[::-1],
    "reversed words": "more-and-hunter2",
    "hex": _RAW.hex(),
    "hex in upper case": _RAW.hex().upper(),
    "hex with colons": _RAW.hex(":"),
    "base64": base64.b64encode(_RAW).decode(),
    "base64 of its reverse": base64.b64encode(_RAW[::-1]).decode(),
    "base32": base64.b32encode(_RAW).decode(),
    "base85": base64.b85encode(_RAW).decode(),
    "compressed": base64.b64encode(zlib.compress(_RAW)).decode(),
    "rot13": "uhagre2-naq-zber",
    "separated by spaces": " ".join(SECRET),
    "separated by zero-width spaces": "\u200b".join(SECRET),
    "separated by NUL": "\0".join(SECRET),
    "letters in a list": list(SECRET),
    "pairs in a list": [SECRET[at : at + 2] for at in range(0, len(SECRET), 2)],
    "a nested list": [[[[SECRET]]]],
    "a name in a mapping": {SECRET: "iris"},
    "names of mappings": dict.fromkeys(SECRET, "iris"),
    "deep in a mapping": {"iris": {"iris": [{"iris": SECRET}]}},
    "JSON": json.dumps({"iris": SECRET}),
    "URL": f"https://evil.test/?q={SECRET}",
    "percent-encoded": "".join(f"%{byte:02x}" for byte in _RAW),
    "HTML entities": "".join(f"&#{byte};" for byte in _RAW),
    "unicode escapes": "".join(f"\\u{byte:04x}" for byte in _RAW),
    "full-width letters": "".join(chr(0xFEE0 + byte) if byte > 0x20 else " " for byte in _RAW),
    "mathematical letters": "".join(chr(0x1D41A + byte - 97) if 97 <= byte <= 122 else "-" for byte in _RAW),
    "combining marks": "".join(each + "\u0301" for each in SECRET),
    "private use": "".join(chr(0xE000 + byte) for byte in _RAW),
    "tags": "".join(chr(0xE0000 + byte) for byte in _RAW),
    "Morse code": ".... ..- -. - . .-. ..--- -....- .- -. -.. -....- -- --- .-. .",
    "bits as digits": _BITS,
    "bits as words": _marks("no ", "yes "),
    "bits as punctuation": _marks(".", "!"),
    "bits as punctuation in small groups": " ".join(_marks(".", "!")[at : at + 2] for at in range(0, 128, 2)),
    "bits as emoji": _marks("🙂", "🙃"),
    "bits as spaces and tabs": _marks(" ", "\t"),
    "bits as spaces after the parameter": "iris" + _marks(" ", "\t"),
    "bits as zero-width characters": _marks("\u200b", "\u200c"),
    "bits as booleans": [bit == "1" for bit in _BITS],
    "bits as null and false": [None if bit == "1" else False for bit in _BITS],
    "bits as empty containers": [_EMPTY if bit == "1" else {} for bit in _BITS],
    "bits as empty texts": ["" if bit == "1" else None for bit in _BITS],
    "bytes as numbers": list(_RAW),
    "bytes as fractions": [byte / 256 for byte in _RAW],
    "one large number": int.from_bytes(_RAW),
    "small numbers": [1, 2, 3],
    "one small number": 104,
    "a price": 99.5,
    "numbers of two bytes": [int.from_bytes(_RAW[at : at + 2]) for at in range(0, 16, 2)],
    "one fraction": int.from_bytes(_RAW[:6]) / 2**48,
    "the digits of one fraction": float("0." + "".join(f"{byte:03d}" for byte in _RAW[:5])),
    "a number as text": str(int.from_bytes(_RAW)),
    "a small amount with many decimals": 1 + int.from_bytes(_RAW[:5]) / 10**13,
    "a constant of its source": "attacker@evil.test hunter2",
    "too long to search": SECRET + "iris " * 5_000,
    "deep": [[[[[[[[[SECRET[3:9]]]]]]]]]],
}


def _seen() -> ValueOrigins:
    found = ValueOrigins()
    found.add(PARAMETER, {"who": "iris", "greeting": "Hello, Iris! How are you? See: a/b", "price": 12.5})
    found.add(CONSTANT, ["attacker@evil.test", ", ", " -- ", 7])
    found.add(f"{RESULT}vault.show", [{"account": "mail", "password": SECRET}])
    return found


def test_a_secret_does_not_pass_in_any_form() -> None:
    with every_row() as row:
        for name, sent in ATTACKS.items():
            with row(name):
                reason = refusal(_ALLOWED, operation("mail.send", "POST"), {"text": sent}, _seen())
                assert reason is not None
                assert SECRET not in reason


HONEST: dict[str, Any] = {
    "the parameter": "Iris",
    "a template": "Hello, Iris!",
    "a template with marks": "Hello, Iris!\n\nHow are you? -- Iris",
    "a mapping": {"who": "iris", "how": {"are": "you"}, "see": True, "hello": None},
    "a few flags": [True, False, True],
    "a price that it was given": 12.5,
    "numbers that it was given, and that count on": [7, 8, 9],
    "nothing": [],
    "a blank": "  ",
    "an address": "attacker@evil.test",
}


def test_honest_values_still_pass() -> None:
    with every_row() as row:
        for name, sent in HONEST.items():
            with row(name):
                assert refusal(_ALLOWED, operation("mail.send", "POST"), {"text": sent}, _seen()) is None
