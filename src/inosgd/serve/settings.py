"""Settings: what a server is asked for."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from inosgd.errors import InvalidArgumentError

PORT = 8750


@dataclass(frozen=True)
class Settings:
    """Which book is shown, and where.

    Attributes:
        book: The URL of the account book.
        host: The address to listen at; one of the loopback interface, unless there is a proxy.
        port: The port; 0 for any.
        public: The address that people use, https://..., of a proxy that ends TLS; None without one.
    """

    book: str
    host: str = "127.0.0.1"
    port: int = PORT
    public: str | None = None

    def __post_init__(self) -> None:
        if self.public is not None:
            if not _is_public(self.public):
                raise InvalidArgumentError(
                    f"behind_proxy={self.public!r}: give the address that owners use, such as https://budgets.example.org"
                )
        elif not _is_loopback(self.host):
            raise InvalidArgumentError(
                f"host={self.host!r}: other machines could reach the page, and secrets would travel openly; leave it "
                "at 127.0.0.1, or put a proxy that ends TLS before it and name its address with --behind-proxy"
            )

    @property
    def origin(self) -> str:
        """Where pages come from, as browsers say it."""
        if self.public is not None:
            parts = urlsplit(self.public)
            host = str(parts.hostname).encode("idna").decode()
            named = f"[{host}]" if ":" in host else host
            return f"https://{named}" if parts.port in (None, 443) else f"https://{named}:{parts.port}"
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def secure(self) -> bool:
        """Whether people come by TLS."""
        return self.public is not None

    @property
    def hosts(self) -> frozenset[str]:
        """What requests may name as their host; any other is a page of somebody else that points here."""
        own = urlsplit(self.origin).netloc
        return frozenset([own] if self.secure else [own, f"localhost:{self.port}"])


def _is_public(address: str) -> bool:
    """Whether an address is https:// with a host and perhaps a port, and nothing else."""
    try:
        parts = urlsplit(address)
        rest = (parts.username, parts.query, parts.fragment, parts.path.removesuffix("/"), parts.port == 0)
        return parts.scheme == "https" and bool(str(parts.hostname or "").encode("idna")) and not any(rest)
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
