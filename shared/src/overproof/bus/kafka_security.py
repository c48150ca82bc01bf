"""How to connect to Kafka: encryption, name and password."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from overproof.errors import SettingsError

_SECURITY = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True)
class KafkaSecurity:
    """How to connect: TLS or not, and by which name and password.

    Attributes:
        protocol: plaintext, ssl, sasl_plaintext or sasl_ssl.
        mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, for the sasl protocols.
        username: for the sasl protocols.
        password: for the sasl protocols; never in a message or log.
        cafile: certificates to trust instead of the system's, for the ssl protocols.

    Raises:
        SettingsError: values that do not go together.
    """

    protocol: str = "plaintext"
    mechanism: str = "SCRAM-SHA-512"
    username: str = ""
    password: str = field(default="", repr=False)
    cafile: str | None = None

    def __post_init__(self) -> None:
        if self.protocol not in _SECURITY:
            raise SettingsError(
                f"Kafka security {self.protocol!r} is unknown; use one of {', '.join(_SECURITY)}"
            )
        if not self.protocol.startswith("sasl"):
            return
        if self.mechanism not in _MECHANISMS:
            raise SettingsError(
                f"Kafka mechanism {self.mechanism!r} is unknown; "
                f"use one of {', '.join(_MECHANISMS)}"
            )
        if not (self.username and self.password):
            raise SettingsError(
                f"Kafka security {self.protocol} needs a username and a password; set both"
            )

    def options(self) -> dict[str, Any]:
        """What the client library wants to be told.

        Raises:
            SettingsError: `cafile` cannot be read.
        """
        options: dict[str, Any] = {"security_protocol": self.protocol.upper()}
        if self.protocol.endswith("ssl"):
            try:
                options["ssl_context"] = ssl.create_default_context(cafile=self.cafile)
            except OSError as error:
                raise SettingsError(
                    f"Kafka cafile {self.cafile!r} cannot be used: {error.strerror}; "
                    "name a file of PEM certificates"
                ) from None
        if self.protocol.startswith("sasl"):
            options["sasl_mechanism"] = self.mechanism
            options["sasl_plain_username"] = self.username
            options["sasl_plain_password"] = self.password
        return options
