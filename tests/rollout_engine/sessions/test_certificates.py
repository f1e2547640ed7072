"""TLS contexts made before the fork can't be told from those that a session would have made, but for the time."""

import ssl
import subprocess
import sys

import certifi
import httpx
import pytest

from rollout_engine.sessions.forkserver import certificates


@pytest.fixture
def kept(monkeypatch):
    """``ssl.create_default_context`` as a session finds it, and what the true one was called with."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.delenv(name, raising=False)
    made, make = [], ssl.create_default_context

    def counted(*args, **kwargs):
        made.append(kwargs)
        return make(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", counted)

    def keep(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        certificates.keep()
        return made

    return keep


def test_a_context_is_given_once_and_is_the_one_asked_for(kept):
    made = kept()
    assert made == [{"cafile": certifi.where()}] * certificates.CONTEXTS
    contexts = [ssl.create_default_context(cafile=certifi.where()) for _ in range(certificates.CONTEXTS + 1)]
    assert len({id(context) for context in contexts}) == certificates.CONTEXTS + 1 == len(made)
    first, last = contexts[0], contexts[-1]
    assert first.cert_store_stats() == last.cert_store_stats() and first.verify_mode == last.verify_mode
    assert ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).verify_mode is ssl.CERT_NONE


def test_a_client_takes_what_was_kept(kept):
    made = kept()
    with httpx.Client(), httpx.Client():
        assert len(made) == certificates.CONTEXTS
        with httpx.Client():
            assert len(made) == certificates.CONTEXTS + 1


def test_certificates_that_the_environment_names(kept, tmp_path):
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(open(certifi.where(), "rb").read())
    assert kept(SSL_CERT_FILE=str(bundle)) == [{"cafile": str(bundle)}] * certificates.CONTEXTS


def test_nothing_is_kept_of_certificates_that_cannot_be_read_or_of_connections_that_are_logged(kept, tmp_path):
    assert len(kept(SSL_CERT_FILE=str(tmp_path / "none"))) == 1
    assert len(kept(SSLKEYLOGFILE=str(tmp_path / "log"))) == 1


def test_a_server_without_httpx_is_left_as_it_is():
    code = (
        "import ssl, sys; make = ssl.create_default_context; from forkserver import certificates; certificates.keep(); "
    )
    code += "print(ssl.create_default_context is make, 'certifi' in sys.modules)"
    folder = certificates.__file__.rpartition("/forkserver/")[0]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {folder!r}); {code}"]
    done = subprocess.run(command, capture_output=True)
    assert done.stdout.split() == [b"True", b"False"], done.stderr
