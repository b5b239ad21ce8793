# SPDX-License-Identifier: LGPL-2.1-only
"""A certificate for a server on this machine, as XenServer makes one for a host: signed by itself."""

import ssl
import subprocess


def self_signed(directory, address="127.0.0.1"):
    """(ssl.SSLContext of a server, path of the certificate), both for this IP address. Runs openssl."""
    key, certificate = str(directory / "key.pem"), str(directory / "certificate.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=" + address, "-addext", "subjectAltName=IP:" + address,
            "-keyout", key, "-out", certificate,
        ],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
