"""Networks whose addresses count as one client. Pure; performs no I/O."""

from __future__ import annotations

import ipaddress

_IPV6_PREFIX = 64


def network_of(address: str) -> str:
    """Return the text of the addresses that count as one client: an IPv4 address, or the /64 network of an IPv6 address, since a client
    has many addresses of it.

    An IPv6 address that maps an IPv4 address counts as that address. A text that is no address is returned unchanged.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((address.partition("%")[0], _IPV6_PREFIX), strict=False))
