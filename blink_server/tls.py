"""A server's side of TLS: a certificate chain and its private key, out of two files."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from blink_server.errors import BlinkError
from blink_server.file_signature import file_signature

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Two PEM files: the certificate followed by those that vouch for it, and its private key."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For a server. Raises BlinkError naming the file; no passphrase is asked for."""
        self._client_that_trusts_it()  # names the file; the call below does not say which it means
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                problem = f"is not the key of the certificate {self.certificate}"
            else:
                problem = f"is no private key in PEM form that TLS can use: {error}"
            raise BlinkError(f"TLS key {self.key}: {problem}") from None
        except OSError as error:
            raise BlinkError(f"TLS key {self.key}: {error.strerror}") from None
        except ValueError as error:
            raise BlinkError(f"TLS key {self.key}: {error}") from None
        return context

    def warn_if_refused(self) -> None:
        """Log what clients have against the certificate today: it may have expired.

        Raises as `context`. Whether they trust who has signed it, and its names, is not looked at.
        """
        try:
            _shake_hands(self.context(), self._client_that_trusts_it())
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error
            log.warning("TLS certificate %s: clients will refuse it: %s", self.certificate, reason)

    def signature(self) -> tuple[object, object]:
        """Another one when a file has changed."""
        return file_signature(self.certificate), file_signature(self.key)

    def _client_that_trusts_it(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.certificate)
        except ssl.SSLError:
            problem = "holds no certificate in PEM form"
        except OSError as error:
            problem = str(error.strerror)
        else:
            return context
        raise BlinkError(f"TLS certificate {self.certificate}: {problem}") from None


class FollowedCertificate:
    """Its context serves each new connection with the files as they are by then.

    Changed files that cannot be used leave the certificate as it was.
    """

    def __init__(self, files: CertificateFiles) -> None:
        """Raises BlinkError naming the file that cannot be used."""
        self._files = files
        self._seen = files.signature()
        self._newest = self.context = files.context()
        self.context.sni_callback = self._choose

    def _choose(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        if (seen := self._files.signature()) != self._seen:
            self._seen = seen
            try:
                context = self._files.context()
                self._files.warn_if_refused()
                self._newest = context
                log.info("TLS certificate %s: read again", self._files.certificate)
            except BlinkError as error:
                log.error("%s; the certificate stays as it was", error)
        connection.context = self._newest


def _no_passphrase() -> str:
    raise ValueError("is protected by a passphrase: give a key without one")


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """In memory. Raises SSLError where the sides do not agree."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, True)]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)
