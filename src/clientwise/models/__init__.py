"""Networks by name (`networks.py`), any network (`modules.py`), and a network as one flat vector (`flat.py`)."""
