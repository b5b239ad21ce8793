# SPDX-License-Identifier: LGPL-2.1-only
"""Log in to a pool over HTTPS, on the master, through any host that the caller names. Certificates are verified.

    https://HOST    the usual form; HOST alone means the same
    http://HOST     not encrypted: for tests, or inside a tunnel
    local           the socket of this dom0, where root needs no password

`url_of` reads them.
"""

import http.client
import ipaddress
import re
import socket
import ssl
import urllib.parse
from contextlib import contextmanager
from functools import partial
from typing import Iterator, NamedTuple, Optional, Type

from relvmoiscsi.errors import (
    LoginRefused,
    Lost,
    NoAddress,
    NoConnection,
    RelvmoiscsiError,
    Unreachable,
    UsageError,
    refuse_if_short,
)
from relvmoiscsi.host.own_path import NotOwn, read_named
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import rpc
from relvmoiscsi.host.xapi.api import NO_XAPI
from relvmoiscsi.host.xapi.rpc import GONE, reason
from relvmoiscsi.pool.calls import EVENT_SECONDS, Calls, NotConnected, failure
from relvmoiscsi.wording import repr_without

__all__ = ["LOCAL", "TIMEOUT_SECONDS", "Where", "connect", "url_of"]

LOCAL = "local"
TIMEOUT_SECONDS = 2 * EVENT_SECONDS  #: for one answer; every longer call is a task
_NEVER = ("SESSION_AUTHENTICATION_FAILED", "SESSION_AUTHORIZATION_FAILED")  #: xapi does not take this user or password
_MOST_MASTERS = 3  #: redirects to follow: the master may change during a login
_LONGEST_NAME = 253  #: of DNS
_MOST_CA_BYTES = 16 << 20  #: more than all certificates of a system
_HOST = re.compile(r"\[[0-9a-f:.]+\]|[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


class Where(NamedTuple):
    """Address of a pool, and the credentials."""

    pool: str  #: URL, name or address of any host of the pool; or LOCAL
    user: str = "root"
    password: str = ""
    ca: Optional[str] = None  #: file of trusted certificates; None: the certificates that this machine trusts
    insecure: bool = False  #: accept any certificate
    timeout: float = TIMEOUT_SECONDS
    socket_path: str = THIS_HOST.xapi_socket

    def __repr__(self) -> str:
        return repr_without(self, "password", *(["pool"] if "@" in self.pool else []))  # `url_of` refuses such a pool


@contextmanager
def connect(where: Where) -> Iterator[Calls]:
    """Open a session for the block. Raises NoConnection or UsageError."""
    url = url_of(where)
    calls = _logged_in(where, url, _tls(where) if url.startswith("https:") else None)
    try:
        yield calls
    finally:
        try:
            calls.log_out()
        except RelvmoiscsiError:
            pass  # the pool stopped answering; xapi ends an unused session
        calls.close()


def _logged_in(where: Where, url: str, tls: Optional[ssl.SSLContext]) -> Calls:
    """Return a session on the master. Raises NoConnection."""
    for _ in range(_MOST_MASTERS):
        calls = Calls(url, partial(_http, where, tls, url), where.user, where.password)
        try:
            calls.log_in()
            return calls
        except rpc.Refusal as refusal:
            calls.close()
            if refusal.details[0] != "HOST_IS_SLAVE":
                refused = failure("session.login_with_password", refusal.details)
                if refusal.details[0] in _NEVER:
                    raise LoginRefused(refused.message).advising(refused.advice) from refusal
                raise NotConnected(refused.message, refused.description).advising(refused.advice) from refusal
            url = _at(url, (*refusal.details, "")[1])
        except GONE as error:
            calls.close()
            raise _no_login(where, url, error) from error
    raise NotConnected(f"The hosts of the pool disagree about the master; the last answer was {url}.").advising(
        "Repeat the command in a minute."
    )


def _http(where: Where, tls: Optional[ssl.SSLContext], url: str) -> http.client.HTTPConnection:
    """Return a new connection to a host of the pool; without `tls`, the connection is not encrypted."""
    address = urllib.parse.urlsplit(url).netloc
    if where.pool == LOCAL:
        return rpc.UnixConnection(where.socket_path, where.timeout)
    if tls is None:
        made = http.client.HTTPConnection(address, timeout=where.timeout)
    else:
        made = http.client.HTTPSConnection(address, timeout=where.timeout, context=tls)
    made.response_class = rpc.BoundedResponse
    return made


def _no_login(where: Where, url: str, error: BaseException) -> NoConnection:
    if isinstance(error, ssl.CertificateError) or isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(error):
        if url != url_of(where):
            return NotConnected(
                f"The host {where.pool} is a member of the pool, and the certificate of its master, at {url}, is "
                f"not trusted: {reason(error)}."
            ).advising(
                "Give --pool the host name of the master from its certificate. The file of --ca may hold the "
                "certificates of several hosts."
            )
        return NotConnected(f"The certificate of {url} is not trusted: {reason(error)}.").advising(
            "Give --ca a file with the certificate, or use --insecure. A host keeps its own certificate in "
            "/etc/xensource/xapi-ssl.pem: copy the certificate without the key."
        )
    if isinstance(error, OSError):
        refuse_if_short(error)
        if where.pool == LOCAL and rpc.is_nobody(error):
            return NotConnected(NO_XAPI).advising("Give --pool, the URL of a host of the pool.")
        kind: Type[NoConnection] = Unreachable
        if isinstance(error, ssl.SSLError):
            kind = NotConnected
        elif isinstance(error, socket.gaierror):
            kind = NoAddress
        elif isinstance(error, (ConnectionResetError, BrokenPipeError)):
            kind = Lost
        return kind(f"No pool answers at {url}: {reason(error)}.").advising("Check --pool and the network.")
    return NotConnected(f"What answers at {url} is no XenAPI: {reason(error)}.").advising("Check --pool.")


def url_of(where: Where) -> str:
    """Return the URL of a pool; HTTPS by default. Raises UsageError."""
    if where.pool == LOCAL:
        return "http://localhost/"
    if "@" in where.pool:  # the message hides the URL, which may contain a password
        raise UsageError("The pool's URL contains a user or a password.").advising(
            "Use --user and --password-file instead."
        )
    try:
        parts = urllib.parse.urlsplit(where.pool if "://" in where.pool else "https://" + where.pool)
        is_pool = parts.scheme in ("http", "https") and parts.port != 0 and not parts.query and where.pool.isprintable()
        is_pool = is_pool and bool(parts.hostname) and bool(str(parts.hostname).encode("idna"))
    except ValueError:  # of the address, the port or the name
        is_pool = False
    if not is_pool:
        raise UsageError(f"{where.pool!r} is not a pool.").advising("Give HOST, https://HOST, or `local` in dom0.")
    if parts.scheme == "http" and where.ca:
        raise UsageError(f"{where.pool} uses no certificate.").advising("Give an https:// URL, or remove --ca.")
    return f"{parts.scheme}://{parts.netloc}"


def _at(url: str, master: str) -> str:
    """Return the same URL with the address that a member has answered. Raises PoolFailure."""
    try:
        host = f"[{ipaddress.IPv6Address(master)}]" if ":" in master else master
    except ValueError:
        host = ""
    if not _HOST.fullmatch(host) or len(host) > _LONGEST_NAME:
        raise NotConnected(
            f"The host at {url} is a member of a pool, and answers {master[:_LONGEST_NAME]!r} for the address of the "
            "master."
        ).advising("Check --pool, or give the address of the master.")
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def _tls(where: Where) -> ssl.SSLContext:
    """Return the TLS settings of all connections of a session. The file is read once: it may be a pipe.

    Raises UsageError, also for a file that another user could replace: that user would say who gets the password.
    """
    content = None
    if where.ca is not None:
        try:
            content = read_named(where.ca, _MOST_CA_BYTES)
        except NotOwn as problem:
            copy = "Copy it into a directory of your own."
            raise UsageError(f"The file of --ca is not safe: {problem}.").advising(copy) from None
        except OSError as error:
            raise UsageError(f"{where.ca} cannot be read: {error.strerror}.").advising("Give a file in PEM.") from error
        if len(content) > _MOST_CA_BYTES:
            raise UsageError(f"{where.ca} has more than {_MOST_CA_BYTES} bytes.").advising("Give a file in PEM.")
    try:  # the names of certificates are in comments, in any encoding
        cadata = None if content is None else content.decode("ascii", "ignore") or "none"
        context = ssl.create_default_context(cadata=cadata)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{where.ca} holds no readable certificates: {reason(error)}.").advising(
            "Give a file in PEM."
        ) from error
    if where.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
