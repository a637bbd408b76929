"""Names of skills that look like no other name. Pure."""

import unicodedata
from string import ascii_letters

_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK", "HANGUL": "CJK"}  # are written together
_LIKE_ASCII = frozenset(  # letters of Cyrillic and Greek, and two of Latin
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b\u051d\u0475\u04cf"
    "\u03bf\u03bd\u03c1\u03b9\u03b1\u0251\u0261"
    "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u04ae\u050c\u051a\u051c"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
)


def name_objection(name: str) -> str | None:
    """Why a function of this name becomes no skill; None if it may.

    >>> name_objection("send_mail2"), name_objection("отправить_письмо"), name_objection("メール送信")
    (None, None, None)
    >>> name_objection("s\N{CYRILLIC SMALL LETTER IE}nd_mail")
    'Its name mixes the scripts CYRILLIC and LATIN.'
    >>> name_objection("\N{MATHEMATICAL BOLD SMALL S}end_mail")
    'Its name is not in the normal form NFKC.'
    """
    if unicodedata.normalize("NFKC", name) != name:
        return "Its name is not in the normal form NFKC."
    scripts = {_script(letter) for letter in name if unicodedata.category(letter)[0] == "L"}
    if len(scripts) > 1:
        return f"Its name mixes the scripts {' and '.join(sorted(scripts))}."
    letters = {letter for letter in name if letter.isalpha() and letter not in ascii_letters}
    return "Its name looks like one of other letters." if letters and letters <= _LIKE_ASCII else None


def _script(letter: str) -> str:
    """The first word of a letter's name, which is its script for all but rare ones."""
    word = unicodedata.name(letter, "unknown").split()[0].split("-")[0]
    return _TOGETHER.get(word, word)
