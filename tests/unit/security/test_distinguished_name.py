"""Names in certificates as text; Java's answers are in the conformance tests."""

from __future__ import annotations

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.distinguished_name import name_text, subject_of


def name(*parts: tuple[x509.ObjectIdentifier, str]) -> bytes:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts]).public_bytes()


def test_the_most_specific_part_comes_first() -> None:
    der = name(
        (NameOID.COUNTRY_NAME, "US"), (NameOID.ORGANIZATION_NAME, "Org"), (NameOID.COMMON_NAME, "Duke")
    )
    assert name_text(der) == "CN=Duke,O=Org,C=US"
    assert name_text(name()) == ""


def test_special_characters_are_escaped_wherever_they_stand() -> None:
    der = name((NameOID.COMMON_NAME, ' a,b=c+d<e>f#g;h"i\\j '))
    assert name_text(der) == 'CN=\\ a\\,b\\=c\\+d\\<e\\>f\\#g\\;h\\"i\\\\j\\ '


def test_what_java_has_no_keyword_for_is_hex() -> None:
    der = name((NameOID.EMAIL_ADDRESS, "a@b"), (NameOID.SERIAL_NUMBER, "7"))
    assert name_text(der) == "2.5.4.5=#130137,1.2.840.113549.1.9.1=#1603614062"


def test_parts_with_several_values_are_joined() -> None:
    values = [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "u")]
    text = name_text(x509.Name([x509.RelativeDistinguishedName(values)]).public_bytes())
    assert sorted(text.split("+")) == ["CN=a", "UID=u"]


def test_the_subject_of_a_certificate() -> None:
    made = trustme.CA().issue_cert("a@example.org", common_name="alice")
    certificate = x509.load_pem_x509_certificate(made.cert_chain_pems[0].bytes())
    assert subject_of(certificate.public_bytes(Encoding.DER)).startswith("CN=alice,OU=")


@given(st.binary(max_size=60))
def test_what_is_no_name_is_refused(data: bytes) -> None:
    for read in (name_text, subject_of):
        try:
            read(data)
        except SaslAuthenticationFailed:
            continue


@given(st.data())
def test_a_name_that_is_cut_short_is_refused(data: st.DataObject) -> None:
    der = name((NameOID.COMMON_NAME, "Duke"), (NameOID.EMAIL_ADDRESS, "a@b"))
    cut = data.draw(st.integers(0, len(der) - 1))
    with pytest.raises(SaslAuthenticationFailed):
        name_text(der[:cut])
