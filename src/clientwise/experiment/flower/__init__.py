"""An experiment on Flower: its two apps, a simulation of both on this machine, and the data of a real federation.

The server's app runs the experiment exactly as `clientwise run` does, with its clients reached through the grid. In a
simulation a client's data come from the config, so any node can play any client; in a deployment a node is the client
under whose name its key was registered, and its data come from the path in its own node config.
"""

from ...engine import flower as _no_reports  # noqa: F401  before Flower itself: switches its reports home off
