"""The time for which a certificate is valid."""

import os
import subprocess
import sys
import time

import pytest

from collector.access.validity import Validity, read_validity
from tests.support.certificates import make_certificate, make_signed


def test_the_time_of_a_certificate_is_told_also_when_it_is_over(tmp_path):
    now, day = time.time(), 86_400
    for files, days in (
        (make_certificate(tmp_path), 2),
        (make_signed(tmp_path, "valid", days=7), 7),
        (make_signed(tmp_path, "over", days=-1), -1),
    ):
        validity = read_validity(*files)
        assert abs(validity.not_before_s - now) < 600
        assert validity.not_after_s - validity.not_before_s == days * day
        assert bool(validity.problem(now + 600)) is (days < 0)


def test_the_time_of_a_certificate_is_told_where_openssl_allows_no_tls_1_3(tmp_path):
    """The collector did not start there: its look at the certificate ended before the handshake of TLS 1.2 was over."""
    configuration = tmp_path / "openssl.cnf"
    configuration.write_text(
        "openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\nMaxProtocol = TLSv1.2\n"
    )
    certificate, key = make_certificate(tmp_path)
    code = "import sys; from pathlib import Path; from collector.access.validity import read_validity as read; "
    code += "print(read(*map(Path, sys.argv[1:])))"
    environment = {**os.environ, "OPENSSL_CONF": str(configuration)}
    command = [sys.executable, "-c", code, certificate, key]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == str(read_validity(certificate, key)), done.stderr


@pytest.mark.parametrize(
    ("at_s", "problem"),
    [
        (99, "it is not valid before 1970-01-01T00:01:40Z"),
        (100, None),
        (200, None),
        (201, "it has been over since 1970-01-01T00:03:20Z"),
    ],
)
def test_a_certificate_is_valid_from_its_first_second_to_its_last(at_s, problem):
    assert Validity(100, 200).problem(at_s) == problem
