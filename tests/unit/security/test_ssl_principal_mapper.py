"""Rules that make principals of names in certificates; Kafka's answers are in the conformance tests."""

from __future__ import annotations

import pytest

from kreplica.common.errors import InvalidConfig, SaslAuthenticationFailed
from kreplica.security.ssl_principal_mapper import SslPrincipalMapper

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"
CASES = [
    ("", DUKE, DUKE),
    ("DEFAULT", DUKE, DUKE),
    (" DEFAULT , DEFAULT ", DUKE, DUKE),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", DUKE, "Duke"),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$1/", DUKE, "Duke@Duke"),
    ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L", DUKE, "duke@serviceusers"),
    ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", DUKE, "DUKE"),
    ("RULE:^CN=Other$/no/,RULE:^CN=(.*?),.*$/$1/,DEFAULT", DUKE, "Duke"),
    ("RULE:^CN=Other$/no/,DEFAULT", DUKE, DUKE),
    # The empty end is a match of its own.
    ("RULE:.*/x/", DUKE, "xx"),
    # The longest number of a group, and what is not one.
    ("RULE:^(CN)=(.*?),.*$/$12/", DUKE, "CN2"),
    ("RULE:^(CN)=.*$/$2/", DUKE, "$2"),
    ("RULE:^CN=(.*?),.*$/a\\/b\\$1/", DUKE, "a/b$1"),
    ("RULE:^(?<name>CN=.*?),.*$/$1/", DUKE, "CN=Duke"),
    ("RULE:^CN=.*$/$0/", DUKE, DUKE),
    ("RULE:^CN=a\\/b$/c/", "CN=a/b", "c"),
]


@pytest.mark.parametrize(("rules", "name", "principal"), CASES)
def test_a_principal_is_made(rules: str, name: str, principal: str) -> None:
    assert SslPrincipalMapper(rules).name(name) == principal


def test_whom_no_rule_takes_is_refused() -> None:
    with pytest.raises(SaslAuthenticationFailed, match="no rule"):
        SslPrincipalMapper("RULE:^CN=other$/x/").name(DUKE)


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "RULE:(.*)/$1",
        "RULE:a/b/X",
        "RULE:a/b/ RULE:c/d/L",
        "RULE:(/b/",
        "RULE:\\p{Alpha}+/x/",
        "RULE:\\Qa\\E/x/",
        "RULE:[a-z&&[^b]]/x/",
        "RULE:CN=.*/$1/",
        "RULE:(CN)=.*/$/",
        "DEFAULT RULE",
    ],
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidConfig, match=r"ssl\.principal\.mapping\.rules"):
        SslPrincipalMapper(rules)
