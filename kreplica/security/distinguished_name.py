"""The name in a certificate as text: RFC 2253, in the form that Java gives it, as rules name principals.

The most specific part comes first. Java has keywords for nine attributes; the value of any other is the hex
of its DER. These characters are escaped wherever they stand: , = + < > # ; " and the backslash. No state.
"""

from __future__ import annotations

from collections.abc import Iterator

from kreplica.common.errors import SaslAuthenticationFailed

KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
ESCAPED = frozenset(',=+<>#;"\\')
# Tags of DER: strings of all kinds that Java shows as text, and the structures of a name.
STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
OBJECT_IDENTIFIER, SEQUENCE, SET = 0x06, 0x30, 0x31


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate, which is DER and checked by TLS.

    Raises SaslAuthenticationFailed.
    """
    from cryptography.x509 import load_der_x509_certificate

    try:
        subject = load_der_x509_certificate(certificate).subject.public_bytes()
    except ValueError as error:
        raise SaslAuthenticationFailed(f"the certificate cannot be read: {error}") from None
    return name_text(subject)


def name_text(der: bytes) -> str:
    """Return a Name of X.501 as text. Raises SaslAuthenticationFailed if it is not one."""
    ((tag, parts, _),) = _exactly(der, 1)
    if tag != SEQUENCE:
        raise SaslAuthenticationFailed("the certificate's subject is no name")
    return ",".join(
        "+".join(map(_part, _contents(part, SEQUENCE))) for part in reversed(_contents(parts, SET))
    )


def _part(attribute: bytes) -> str:
    (kind, identifier, _), (tag, content, whole) = _exactly(attribute, 2)
    if kind != OBJECT_IDENTIFIER:
        raise SaslAuthenticationFailed("a part of the certificate's subject has no type")
    oid = _dotted(identifier)
    keyword = KEYWORDS.get(oid)
    if keyword is None or tag not in STRINGS:
        return f"{keyword or oid}=#{whole.hex()}"
    return f"{keyword}={_escaped(content.decode('utf-8', errors='replace'))}"


def _escaped(text: str) -> str:
    inner = text.strip(" \r")
    lead = len(text) - len(text.lstrip(" \r"))
    shown = "".join("\\00" if each == "\0" else f"\\{each}" if each in ESCAPED else each for each in inner)
    outer = ["".join(f"\\{each}" for each in part) for part in (text[:lead], text[lead + len(inner) :])]
    return f"{outer[0]}{shown}{outer[1]}"


# ---- DER -------------------------------------------------------------------------------------------------


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield each element: its tag, its content, and all of its bytes."""
    at = 0
    while at < len(data):
        start, tag = at, data[at]
        size, at = _size(data, at + 1)
        if size > len(data) - at:
            raise SaslAuthenticationFailed("the certificate's subject is cut short")
        yield tag, data[at : at + size], data[start : at + size]
        at += size


def _exactly(data: bytes, count: int) -> list[tuple[int, bytes, bytes]]:
    found = list(_elements(data))
    if len(found) != count:
        raise SaslAuthenticationFailed("the certificate's subject is no name")
    return found


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Return the size that is encoded there, and the position behind it."""
    if at >= len(data):
        raise SaslAuthenticationFailed("the certificate's subject is cut short")
    first = data[at]
    if first < 0x80:
        return first, at + 1
    count = first & 0x7F
    if not 0 < count <= 4 or count > len(data) - at - 1:
        raise SaslAuthenticationFailed("the certificate's subject is cut short")
    return int.from_bytes(data[at + 1 : at + 1 + count], "big"), at + 1 + count


def _contents(data: bytes, tag: int) -> list[bytes]:
    return [content for found, content, _ in _elements(data) if found == tag]


def _dotted(identifier: bytes) -> str:
    numbers, value = [], 0
    for byte in identifier:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise SaslAuthenticationFailed("a part of the certificate's subject has no type")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
