"""Keeps members' updates off the server's disk.

Flower's SuperLink stores messages as objects in its database. Deleted objects stay in its free pages
and in its write-ahead log. Here the objects are in memory: the SuperLink deletes a message once its
receiver has it, and the last ones end with the process. Nothing is lost by this. A SuperLink that
ends fails its run in any case, and the run is resumed after its last finished round.

The database still holds what outlasts a restart: the members' keys, the runs and the apps.
"""

from __future__ import annotations

from pathlib import Path

from flwr.supercore.object_store import ObjectStoreFactory

from ...record.wipe import wipe_tables
from .patches import replace_object_store

KEEP = "CLIENTWISE_KEEP_UPDATES"  # environment variable; "true": as Flower does
# Flower's tables of messages: their objects, the relations of these, and the runs they belong to.
TABLES = ("object_children", "run_objects", "objects")


class InMemory(ObjectStoreFactory):
    """Creates an object store in memory, whatever the SuperLink's database is."""

    def __init__(self, database: str = "") -> None:
        super().__init__()  # Flower's default


def keep_updates_in_memory(arguments: list[str]) -> None:
    """Let Flower's SuperLink hold messages in memory; wipe those that its database has.

    Args:
        arguments: of `flower-superlink`.
    """
    replace_object_store(InMemory)
    if "--database" in arguments:
        database = Path(arguments[arguments.index("--database") + 1])
        if database.is_file():
            wipe_tables(database, TABLES)
