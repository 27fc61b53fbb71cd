"""Who may see the console, and what a browser may do with the page."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from kreplica.broker.api_versions import Scope
from kreplica.common.errors import InvalidConfig, InvalidRequest
from kreplica.runtime.console import PAGE, Arguments, ConsoleAccess, console_access, policy, read_passwords
from kreplica.runtime.listener import Listener, Login
from kreplica.security.protocol import SecurityProtocol

OPEN = Listener("PLAINTEXT", Scope.ALL)
WITH_LOGIN = Listener(
    "CLIENTS", Scope.CLIENTS, SecurityProtocol.SASL_PLAINTEXT, Login(mechanisms=("SCRAM-SHA-256",))
)


def access(
    *,
    wanted: bool | None = None,
    host: str = "127.0.0.1",
    listener: Listener = OPEN,
    has_authorizer: bool = False,
    password_file: Path | None = None,
) -> ConsoleAccess | None:
    return console_access(
        wanted=wanted,
        host=host,
        names=("kafka.example.com",),
        password_file=password_file,
        listeners=[listener],
        has_authorizer=has_authorizer,
    )


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    file.write_text("# operators\nada:love:lace\n\n")
    return file


def test_it_is_on_by_itself_only_where_this_machine_sees_it_and_nothing_is_protected() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert access(host=host) is not None
    for host in ("0.0.0.0", "10.0.0.1", "::", "kafka.example.com"):
        assert access(host=host) is None
        assert access(host=host, wanted=True) is not None
    assert access(wanted=False) is None
    assert access(listener=WITH_LOGIN) is None
    assert access(has_authorizer=True) is None


def test_what_rights_protect_needs_a_password(passwords: Path) -> None:
    for listener, has_authorizer in ((WITH_LOGIN, False), (OPEN, True)):
        with pytest.raises(InvalidConfig, match="give it --console-password-file"):
            access(wanted=True, listener=listener, has_authorizer=has_authorizer)
        found = access(wanted=True, listener=listener, password_file=passwords)
        assert found is not None
        assert found.passwords == {"ada": "love:lace"}
    found = access(host="10.0.0.1", listener=WITH_LOGIN, password_file=passwords)
    assert found is not None


@pytest.mark.parametrize(
    ("text", "what"), [("", "no line"), ("ada", "line 1 is not NAME:PASSWORD"), ("a:b\n:x", "line 2 is not")]
)
def test_a_bad_password_file_is_refused(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "passwords"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=what):
        read_passwords(file)
    with pytest.raises(InvalidConfig, match="No such file"):
        read_passwords(tmp_path / "missing")


def test_a_name_of_another_machine_is_refused() -> None:
    found = access()
    assert found is not None
    for header in ("127.0.0.1:9404", "10.1.2.3", "[::1]:9404", "[::1]", "localhost:9404", "LOCALHOST"):
        assert found.admits_host(header), header
    for header in ("kafka.example.com:9404", "kafka.example.com.", "Kafka.Example.Com"):
        assert found.admits_host(header), header
    for header in ("", "evil.example:9404", "127.0.0.1.evil.example", "localhost.evil.example", "[evil]:1"):
        assert not found.admits_host(header), header


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_a_login_has_a_right_name_and_password(passwords: Path) -> None:
    found = access(password_file=passwords)
    assert found is not None
    assert found.admits_login(basic("ada:love:lace"))
    for header in (
        "",
        "Basic",
        "Basic !",
        basic("ada:"),
        basic("ada:love"),
        basic(":"),
        basic("bob:love:lace"),
    ):
        assert not found.admits_login(header), header
    assert not found.admits_login("Bearer " + basic("ada:love:lace").split()[1])
    assert not found.admits_login("Basic " + base64.b64encode(b"\xff:x").decode())


def test_only_the_page_s_own_script_runs() -> None:
    page = PAGE.read_bytes()
    found = policy(page)
    assert re.search(r"script-src 'sha256-[^ ]{44}'; style-src 'sha256-[^ ]{44}'; connect-src 'self'", found)
    assert "unsafe" not in found
    assert policy(page.replace(b"REFRESH_MS = 5000", b"REFRESH_MS = 5001")) != found


def test_the_page_needs_no_other_host_and_writes_no_html() -> None:
    page = PAGE.read_text()
    assert re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(| style=", page) == []


def test_arguments_that_do_not_fit_are_refused() -> None:
    asked = Arguments("topic=a%20b&partition=3&limit=&bad=-1&large=" + "9" * 19)
    assert (asked.required("topic"), asked.partition(), asked.number("limit", 50)) == ("a b", 3, 50)
    assert asked.optional_number("missing") is None
    with pytest.raises(InvalidRequest, match="the argument name is missing"):
        asked.required("name")
    for name in ("bad", "large", "topic"):
        with pytest.raises(InvalidRequest, match="is not a number from 0 on"):
            asked.optional_number(name)
    with pytest.raises(InvalidRequest, match="more than 20 arguments"):
        Arguments("&".join(f"a{number}=1" for number in range(21)))
