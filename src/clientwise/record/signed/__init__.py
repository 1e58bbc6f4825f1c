"""The signed record: chain, verification, receipts of clients, time stamps, keys."""
