"""Second round of attacks: a secret in every part of a skill or a turn, and dynamic access to APIs in skills."""

import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec

from app.base.secrets import SecretValues
from app.base.values import Call, Json, Use
from app.skills.checks import static_access
from app.skills.extract import Draft, extract
from app.skills.keeping import without_secrets
from app.tasks.masking import masked
from tests.support.every_row import every_row
from tests.support.written_functions import CATALOG, ran, rollout

SECRET = "Launch8Code4711Straße"
_ASCII = "Launch8Code4711xyz"
_DRAFT = Draft(
    name="f", signature="f()", source="def f(): pass", apis=(), instruction="go", slots=(), calls=1,
    returned=1,
)  # fmt: skip

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "case-folded": str.casefold,
    "swapped case": str.swapcase,
    "reversed and case-folded": lambda text: text[::-1].casefold(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 reversed first": lambda text: base64.urlsafe_b64encode(text[::-1].encode()).decode(),
    "base64 within other bytes": lambda text: base64.b64encode(b"to:" + text.encode() + b"!").decode(),
    "hex": lambda text: text.encode().hex(),
    "hex reversed": lambda text: text.encode().hex()[::-1],
    "hex of the reverse": lambda text: text[::-1].encode().hex(),
    "hex as numbers": lambda text: str([f"0x{byte:02x}" for byte in text.encode()]),
    "bytes": lambda text: repr(text.encode()),
    "codes in a list": lambda text: str(list(text.encode())),
    "HTML entities": lambda text: "".join(f"&#{byte};" for byte in text.encode()),
    "octal escapes": lambda text: "".join(f"\\{byte:03o}" for byte in text.encode()),
    "one letter a line": "\n".join,
    "concatenated letters": lambda text: " + ".join(map(repr, text)),
}


def _known() -> SecretValues:
    secrets = SecretValues()
    secrets.note("mail.log_in", {"password": SECRET}, {"session": {"access_token": _ASCII}})
    return secrets


PLACES: dict[str, Callable[[str], Draft]] = {
    "source": lambda text: msgspec.structs.replace(_DRAFT, source=f"def f():\n    return {text!r}"),
    "docstring": lambda text: msgspec.structs.replace(_DRAFT, source=f'def f():\n    """{text}"""'),
    "comment": lambda text: msgspec.structs.replace(_DRAFT, source=f"def f():\n    return 1  # {text}"),
    "name": lambda text: msgspec.structs.replace(_DRAFT, name=f"f_{text}"),
    "signature": lambda text: msgspec.structs.replace(_DRAFT, signature=f"f(key: str = {text!r})"),
    "instruction": lambda text: msgspec.structs.replace(_DRAFT, instruction=f"log in with {text}, please"),
    "slots": lambda text: msgspec.structs.replace(_DRAFT, slots=("iris", text)),
    "operations": lambda text: msgspec.structs.replace(_DRAFT, apis=(f"mail.{text}",)),
}


def test_a_skill_that_holds_a_secret_is_not_kept() -> None:
    with every_row() as row:
        for spelling in SPELLINGS:
            for place in PLACES:
                with row(spelling, place):
                    secrets = _known()
                    for secret in (SECRET, _ASCII):
                        draft = PLACES[place](SPELLINGS[spelling](secret))
                        assert without_secrets([_DRAFT, draft], secrets) == [_DRAFT]


CARRIERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "key": lambda text: {text: 1},
    "nested key": lambda text: [{"a": [{"b": {f"x {text}": None}}]}],
    "nested": lambda text: {"a": [[[{"b": ["fine", text]}]]]},
    "next to a cut": lambda text: {"a": f"{text}...", "b": "cut"},
    "JSON in JSON": lambda text: {"a": json.dumps(json.dumps({"b": text}))},
}


def test_no_value_shows_a_secret() -> None:
    with every_row() as row:
        for spelling in SPELLINGS:
            for carrier in CARRIERS:
                with row(spelling, carrier):
                    secrets = _known()
                    for secret in (SECRET, _ASCII):
                        spelled = SPELLINGS[spelling](secret)
                        shown: Json = secrets.mask_value(CARRIERS[carrier](spelled))
                        text = json.dumps(shown, ensure_ascii=False)
                        assert "***" in text
                        assert spelled not in text
                        assert secrets.mask(text) == text


_CALL = Call(seq=0, turn=0, api="mail.send", arguments={"to": "iris"})
_TURNS: dict[str, Callable[[str], dict[str, Any]]] = {
    "observation": lambda text: {"observation": f"it is {text}"},
    "text": lambda text: {"text": f"```python\nprint({text!r})\n```"},
    "traceback": lambda text: {"observation": f"Traceback (most recent call last):\nValueError: {text}"},
    "arguments": lambda text: {"calls": (msgspec.structs.replace(_CALL, arguments={"to": [text]}),)},
    "names of arguments": lambda text: {"calls": (msgspec.structs.replace(_CALL, arguments={text: 1}),)},
    "result": lambda text: {"calls": (msgspec.structs.replace(_CALL, result={"rows": [{"x": text}]}),)},
    "error": lambda text: {"calls": (msgspec.structs.replace(_CALL, error=f"ApiError: {text}"),)},
}


def test_no_part_of_a_stored_turn_shows_a_secret() -> None:
    plain = msgspec.structs.replace(ran("print(1)\n"), context_ids=(1,), sampled_ids=(2,), logprobs=(-0.1,))
    with every_row() as row:
        for turn, spelling in itertools.product(_TURNS, SPELLINGS):
            with row(turn, spelling):
                written = msgspec.structs.replace(plain, **_TURNS[turn](SPELLINGS[spelling](_ASCII)))
                stored = masked(rollout("go", written), _known())
                text = msgspec.json.encode(stored).decode()
                assert "***" in text
                assert _known().mask(text) == text
                if turn in ("observation", "text", "traceback"):
                    assert stored.masked
                    assert stored.turns[0].sampled_ids == stored.turns[0].context_ids == ()


DYNAMIC_ACCESS: list[str] = [
    "match f:\n        case object(__globals__=g):\n            g['apis'].supervisor.show_passwords()",
    "match apis.mail.fetch_mails:\n        case object(_channel=c):\n            c.send('call')",
    "match who:\n        case object(__class__=k, title=a, __init__=i):\n            print(i)",
    "send = apis.mail.fetch_mails; send._channel.send('call', 'supervisor.show_passwords', [], {})",
    "[each._channel for each in (apis.mail.fetch_mails,)]",
    "from string import Formatter\n    class F(Formatter):\n        def format_field(self, value, spec):\n"
    "            value.supervisor.show_passwords()\n    F().format('{0.x}', f)",
    "import string as s\n    class F(s.Formatter):\n        pass",
    "import cProfile; cProfile.run('apis.supervisor.show_passwords()')",
    "import profile; profile.run('apis.supervisor.show_passwords()')",
    "import bdb; bdb.Bdb().run('1')",
    "import rlcompleter; rlcompleter.Completer().complete('apis.', 0)",
    "from logging.config import BaseConfigurator; BaseConfigurator({}).resolve('sys.modules')",
    "import logging.config as c; c.BaseConfigurator({}).resolve('sys.modules')",
    "from logging import config; config.BaseConfigurator({}).resolve('sys.modules')",
    "import _pickle; _pickle.loads(b'')",
    "import _frozen_importlib as i; i.sys",
    "import _imp",
    "import zipimport",
    "import typing; typing.ForwardRef('apis')._evaluate({}, {}, frozenset(), recursive_guard=frozenset())",
    "from typing import ForwardRef",
    "\uff45val('1')",
    "f.__\uff47lobals__",
    "\uff41pis.__dict__",
    "class A:\n        x = apis",
    "async def g(): return apis",
    "x: object = apis",
    "f'{apis}'",
    "f'{apis.supervisor!r}'",
    "print(*[apis])",
    "print(**{'sep': apis})",
    "lambda: apis",
    "lambda a=apis: a",
    "with apis as a: pass",
    "try: raise apis\n    except apis as e: pass",
    "del apis",
    "apis.mail += 1",
    "apis.mail.fetch_mails.real.name",
    "apis.mail, x = 1, 2",
    "getattr.__call__(f, 'x')",
    "list(map(getattr, [f], ['x']))",
    "import functools; functools.reduce(getattr, ['x'], f)",
    "import operator as o; o.methodcaller('show_passwords')",
    "import traceback; [x.f_globals for x, _ in traceback.walk_stack(None)]",
    "try: 1/0\n    except Exception as e: e.__traceback__.tb_frame",
    "import threading; threading.settrace(lambda frame, *_: frame.f_back)",
    "().__class__.__base__.__subclasses__()",
    "print.__self__.eval('1')",
    "import json; json.codecs.builtins.eval('1')",
    "import random; random._os.sys",
    "super().__getattribute__('x')",
    "import os.path, sys as s",
    "from . import x",
]  # fmt: skip


def test_further_dynamic_access_is_refused() -> None:
    with every_row() as row:
        for body in DYNAMIC_ACCESS:
            with row(body):
                source = f"def f(who: str) -> int:\n    apis.mail.fetch_mails(who)\n    {body}\n"
                assert list(static_access(msgspec.structs.replace(_DRAFT, source=source), rollout("go"), CATALOG))


_GOT = "attrgetter('x')(apis.mail.fetch_mails)"


def test_an_import_of_all_names_gives_none() -> None:
    with every_row() as row:
        for module in ["operator", "string", "builtins", "sys", "inspect"]:
            with row(module):
                code = f"from {module} import *\ndef f(who: str) -> int:\n    return {_GOT}\n"
                trajectory = rollout("go", ran(code, Use("f", False, 1, 1)))
                for draft in extract(trajectory):
                    assert "*" not in draft.source or list(static_access(draft, trajectory, CATALOG))
