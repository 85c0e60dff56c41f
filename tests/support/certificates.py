"""Certificates for this machine, signed by themselves, which openssl makes."""

import subprocess


def make_certificate(folder, name="server", common_name="localhost"):
    """The files of a new certificate and of its key, in place of those of the same name."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={common_name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    return certificate, key


def make_signed(folder, name, *, days, purpose="serverAuth"):
    """The files of a certificate that a CA of its own has signed; days of -1 make one that is over."""
    ca, ca_key = make_certificate(folder, f"{name}-ca", "ca")
    certificate, key, request, extensions = (folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
    extensions.write_text(f"extendedKeyUsage={purpose}\nbasicConstraints=CA:FALSE\n")
    for command in (
        ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
         "-keyout", key, "-out", request],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", str(days),
         "-extfile", extensions, "-out", certificate],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=60)
    return certificate, key
