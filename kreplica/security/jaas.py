"""Reads a login of Java's JAAS, as Kafka's property sasl.jaas.config has it: a module and its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="sesame" user_bob="b";

Only Kafka's own modules are known, and they are data here: no class is ever loaded (CVE-2023-25194). No
state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kreplica.common.errors import InvalidConfig
from kreplica.security.sasl import Secret

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_MODULES = (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE)
_LOGIN = re.compile(
    r"\s*(?P<module>[\w.]+)\s+(?P<flag>\w+)(?P<options>(?:\s+\w[\w.-]*\s*=\s*(?:\"(?:[^\"\\]|\\.)*\"|[^\s\";]+))*)\s*;\s*"
)
_OPTION = re.compile(r"(?P<name>\w[\w.-]*)\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<bare>[^\s\";]+))")
USER_PREFIX = "user_"


class JaasLogin(NamedTuple):
    """One login. `options`: all of them are treated as secrets."""

    module: str
    options: Mapping[str, Secret]

    @property
    def passwords(self) -> dict[str, Secret]:
        """The passwords of PLAIN, by user."""
        return {
            name.removeprefix(USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(USER_PREFIX)
        }


def parse_jaas(name: str, text: str) -> JaasLogin:
    """Return the login in the property `name`. Raises InvalidConfig, which does not show the text."""
    found = _LOGIN.fullmatch(text)
    if found is None:
        raise InvalidConfig(f'{name} must be a module, a flag and options: MODULE required name="value" ...;')
    module = found["module"]
    if module not in _MODULES:
        raise InvalidConfig(f"{name}: the login module {module[:120]} is not one of {', '.join(_MODULES)}")
    options = {
        option["name"]: Secret(
            option["bare"] if option["quoted"] is None else re.sub(r"\\(.)", r"\1", option["quoted"])
        )
        for option in _OPTION.finditer(found["options"])
    }
    return JaasLogin(module, options)
