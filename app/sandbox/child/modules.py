"""The standard library modules of the agent's code, imported before files become inaccessible."""

import hashlib
import importlib
import zoneinfo

_NAMES = """
abc argparse array ast asyncio base64 binascii bisect calendar cmath codecs collections collections.abc colorsys
concurrent.futures concurrent.futures.thread contextlib contextvars copy csv dataclasses datetime decimal
difflib dis email email.mime.text email.utils enum errno fnmatch fractions functools gc getpass glob graphlib
gzip hashlib heapq hmac html html.entities html.parser inspect io ipaddress itertools json keyword linecache
locale logging math mimetypes numbers opcode operator os pathlib pickle platform pprint queue random re reprlib
sched secrets shlex shutil signal socket stat statistics string stringprep struct subprocess sys tempfile
textwrap threading time timeit token tokenize traceback types typing unicodedata urllib.error urllib.parse uuid
warnings weakref xml.dom.minidom xml.etree.ElementTree xml.sax.saxutils zipfile zlib zoneinfo _strptime
encodings.ascii encodings.base64_codec encodings.cp1252 encodings.hex_codec encodings.idna encodings.latin_1
encodings.punycode encodings.raw_unicode_escape encodings.rot_13 encodings.unicode_escape encodings.utf_16
encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.utf_8_sig
"""


def preload() -> list[object]:
    """Import all modules. Keep the result: time zones are cached only while they are referenced."""
    modules: list[object] = [importlib.import_module(name) for name in _NAMES.split()]
    hashlib.sha256(b"").hexdigest()  # OpenSSL reads its configuration at the first use
    return modules + [zoneinfo.ZoneInfo(key) for key in sorted(zoneinfo.available_timezones())]
