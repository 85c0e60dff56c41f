"""What is said of an error, wherever a file, a port or a server cannot be used."""

import errno
import os
import ssl

import pytest

from tokentrail.shared.folders import words_of


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "slos.yaml"), "No such file or directory"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("no system has said this"), "no system has said this"),
        (ssl.SSLError(1, "[SSL] bad"), "[SSL] bad"),
        (ValueError("no number"), "no number"),
    ],
)
def test_the_systems_words_come_without_number_and_file(error, words):
    assert words_of(error) == words
