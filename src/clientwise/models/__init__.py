"""Networks by name (`networks.py`), a user's own network (`own.py`), and a network as one flat vector (`flat.py`)."""
