"""A connection between network namespaces that delays and loses packets, without netem's module.

    python bad_wire.py --delay 0.05 --loss 0.01 SERVER CLIENT...

The server has the address 10.77.0.1. Client k has 10.77.k.2, on a point-to-point device of its own.
This program copies packets between the two ends of each device. It prints "ready" when the devices
are up, and the number of packets when it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import os
import random
import signal
import struct
import subprocess

# Constants of Linux: CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI.
NEW_NETWORK = 0x40000000
SET_INTERFACE = 0x400454CA
TUN = 0x0001
NO_HEADER = 0x1000
LIBC = ctypes.CDLL(None, use_errno=True)


def open_device(namespace: str, name: str, mine: str, other: str) -> int:
    """A point-to-point device in a namespace, up."""
    with open(f"/run/netns/{namespace}") as file:
        if LIBC.setns(file.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, SET_INTERFACE, struct.pack("16sH", name.encode(), TUN | NO_HEADER))
    for command in (
        f"addr add {mine} peer {other} dev {name}",
        f"link set {name} up",
        "link set lo up",
    ):
        subprocess.run(["ip", "-n", namespace, *command.split()], check=True)
    return device


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, required=True)
    parser.add_argument("--loss", type=float, required=True)
    parser.add_argument("server")
    parser.add_argument("clients", nargs="+")
    options = parser.parse_args()
    loop = asyncio.get_running_loop()
    chance = random.Random(1)
    seen = 0
    lost = 0

    def copy(source: int, target: int) -> None:
        nonlocal seen, lost
        packet = os.read(source, 65536)
        seen += 1
        if chance.random() < options.loss:
            lost += 1
        else:
            loop.call_later(options.delay, os.write, target, packet)

    for number, client in enumerate(options.clients, 1):
        near, far = f"10.77.{number}.1", f"10.77.{number}.2"
        one = open_device(options.server, f"to{number}", near, far)
        other = open_device(client, "uplink", far, near)
        subprocess.run(
            ["ip", "-n", client, "route", "add", "10.77.0.1", "dev", "uplink"], check=True
        )
        loop.add_reader(one, copy, one, other)
        loop.add_reader(other, copy, other, one)
    subprocess.run(
        ["ip", "-n", options.server, "addr", "add", "10.77.0.1/32", "dev", "lo"], check=True
    )
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    print("ready", flush=True)
    await ended.wait()
    print(f"{seen} packets, {lost} lost", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
