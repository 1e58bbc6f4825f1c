"""Trains and evaluates clients on this machine or a Ray cluster. The protocol is `core.engine.Engine`.

`local.py` is the engine of clients in this process. It gives jobs to `executor.py`, which runs them on a backend:
`loop.py` (client by client) or `stacked/` (many models at once). `scheduler.py` joins the jobs of several lanes.
`hostile.py` and `timed.py` add hostile clients and slow devices, `shards.py` divides a cohort over machines.
"""
