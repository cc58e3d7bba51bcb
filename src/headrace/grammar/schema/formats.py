"""What ``format`` means here, as regexes where the library's own are loose or missing.

Formats the library gets right stay with it. Those nobody defines are annotations: they say nothing about validity, as
draft 2020-12 has it. A format that can be asserted in part only (``regex``, ``iri``, the international ones) is an
annotation too, and the lint says so.
"""

from __future__ import annotations

from typing import Final

LIBRARY_FORMATS: Final = frozenset({"duration", "uri", "uuid", "ipv4"})

_DAY_29 = "(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    f"(?:[0-9]{{4}}-(?:(?:0[13578]|1[02])-(?:{_DAY_29}|29|30|31)|(?:0[469]|11)-(?:{_DAY_29}|29|30)|02-{_DAY_29})"
    f"|{_LEAP_YEAR}-02-29)"
)
_OFFSET = "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?{_OFFSET}"


def _leap_seconds() -> str:
    """The last second of a day in UTC, in UTC and at every offset of whole quarters of an hour."""
    spellings = ["23:59:60(?:\\.[0-9]+)?[zZ]"]
    for minutes in range(0, 24 * 60, 15):
        for sign, local in (("\\+", 23 * 60 + 59 + minutes), ("-", 23 * 60 + 59 - minutes)):
            hour, minute = divmod(local % (24 * 60), 60)
            offset = f"{minutes // 60:02d}:{minutes % 60:02d}"
            spellings.append(f"{hour:02d}:{minute:02d}:60(?:\\.[0-9]+)?{sign}{offset}")
    return "|".join(spellings)


_LEAP_SECOND = _leap_seconds()
_CLOCK = f"(?:{_TIME}|{_LEAP_SECOND})"

_LABEL_NO_ACE = (
    "(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-][A-Za-z0-9]"
    "|[A-Za-z0-9][A-Za-z0-9-]{2}[A-Za-z0-9]"
    "|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])(?:[A-Za-z0-9-]{0,58}[A-Za-z0-9])"
    ")"
)
"""A label without ``--`` in its third and fourth places, which RFC 5891 keeps for encoded international names."""
_HOSTNAME = f"{_LABEL_NO_ACE}(?:\\.{_LABEL_NO_ACE})*"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_OCTET}(?:\\.{_OCTET}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [
        f"(?:{_H16}:){{6}}{_LS32}",
        f"::(?:{_H16}:){{5}}{_LS32}",
        f"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
        f"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}",
        f"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
        f"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        f"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        f"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    ]
)
"""RFC 3986's ``IPv6address``, which is RFC 4291's text form."""

_ATEXT = "[A-Za-z0-9!#$%&'*+\\/=?^_`{|}~-]"
_QTEXT = '"(?:[ !#-\\[\\]-~]|\\\\[ -~])*"'
_EMAIL = f"(?:{_ATEXT}+(?:\\.{_ATEXT}+)*|{_QTEXT})@(?:{_HOSTNAME}|\\[(?:{_IPV4}|IPv6:(?:{_IPV6}))\\])"
"""RFC 5321's ``Mailbox``."""

_PCT = "%[0-9A-Fa-f]{2}"
_PCHAR = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_PCT})"
_USERINFO = f"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_PCT})*"
_REG_NAME = f"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_PCT})*"
_AUTHORITY = (
    f"(?:{_USERINFO}@)?(?:\\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|{_REG_NAME})(?::[0-9]*)?"
)
_TAIL = f"(?:\\?(?:{_PCHAR}|[\\/?])*)?(?:#(?:{_PCHAR}|[\\/?])*)?"
_SEGMENT_NC = f"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_PCT})+"
_PATH_ABEMPTY = f"(?:\\/{_PCHAR}*)*"
_PATH_ABSOLUTE = f"\\/(?:{_PCHAR}+(?:\\/{_PCHAR}*)*)?"
_HIER = f"(?:\\/\\/{_AUTHORITY}{_PATH_ABEMPTY}|{_PATH_ABSOLUTE}|{_PCHAR}+(?:\\/{_PCHAR}*)*|)"
_RELATIVE = f"(?:\\/\\/{_AUTHORITY}{_PATH_ABEMPTY}|{_PATH_ABSOLUTE}|{_SEGMENT_NC}(?:\\/{_PCHAR}*)*|)"
_URI_REFERENCE = f"(?:[A-Za-z][A-Za-z0-9+.-]*:{_HIER}|{_RELATIVE}){_TAIL}"
"""RFC 3986's ``URI-reference``."""

_JSON_POINTER = "(?:\\/(?:[^~\\/]|~[01])*)*"

_REGEXES: Final = {
    "date": _DATE,
    "time": _CLOCK,
    "date-time": f"{_DATE}[tT]{_CLOCK}",
    "hostname": f"(?:{_HOSTNAME})",
    "email": _EMAIL,
    "ipv6": f"(?:{_IPV6})",
    "json-pointer": _JSON_POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_JSON_POINTER})",
    "uri-reference": _URI_REFERENCE,
}


MAX_HOSTNAME_CHARS: Final = 253


def format_regex(name: str) -> str | None:
    """The regex of a format whose texts are defined here; ``None`` for the library's and for annotations."""
    regex = _REGEXES.get(name)
    return None if regex is None else f"^(?:{regex})$"
