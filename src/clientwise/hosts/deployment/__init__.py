"""A real federation: the node's gate and ledger, the SuperLink, and what is replaced in Flower."""

from .. import flower as flower  # sets the switches that Flower reads when it is imported
