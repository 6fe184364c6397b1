"""Choose the address that a node binds: loopback, one interface, or, if requested, all interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct

from hpcps.errors import LaunchError

ALL = "all"
"""As `DMLC_INTERFACE`: bind every interface."""

_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def resolve(host: str) -> str:
    """Return the IPv4 address of a host name; an address stays as it is.

    Raises:
        LaunchError: the name has no IPv4 address.
    """
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        where = "DMLC_NODE_HOST, DMLC_PS_ROOT_URI or a host file names it"
        raise LaunchError(f"{host!r} has no IPv4 address: {error}; {where}") from None
    return str(found[0][4][0])


def interface_address(name: str) -> str:
    """Return the IPv4 address of a network interface.

    Raises:
        LaunchError: there is no such interface, or it has no IPv4 address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            there = ", ".join(interface for _, interface in socket.if_nameindex())
            raise LaunchError(
                f"the interface {name!r} (DMLC_INTERFACE) has no IPv4 address: {error.strerror}; this host has {there}"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def own_address(host: str, interface: str, root: str) -> tuple[str, str]:
    """Choose the address to announce and the address to bind.

    Args:
        host: a name or address of this host to announce (`DMLC_NODE_HOST`); "" for none.
        interface: the interface to use (`DMLC_INTERFACE`); "" for none.
        root: the host of the scheduler. Without the two above, the address is the source address of packets to that
            host: on one machine the loopback address, on a cluster the address in the network of the scheduler.

    Raises:
        LaunchError: there is no such address.
    """
    if interface and interface != ALL:
        own = interface_address(interface)
    elif host:
        own = resolve(host)
    else:
        target = resolve(root)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))  # chooses a route and sends nothing
            except OSError as error:
                raise LaunchError(f"there is no route from this host to {root}: {error.strerror}") from None
            own = str(probe.getsockname()[0])
    return host or own, "0.0.0.0" if interface == ALL else own
