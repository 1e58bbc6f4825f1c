"""The signed record: chain, verification, time stamps, keys."""
