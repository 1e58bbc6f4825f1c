"""The live page: a read-only web server over run folders.

`listen.py` starts it, `app.py` answers requests, and `served_runs.py` reads and caches runs. `security.py`
has headers and the check of tokens, and `roles.py` says what a token opens. `responses.py` has the forms of
an answer, and `prometheus.py` one for monitoring. What is shown is in `report/views.py`, how it is drawn in
`report/page/`.
"""

from __future__ import annotations

from ...errors import needing

with needing("serve", "the live page"):
    from .app import make_app
    from .listen import ServeError, is_loopback, serve
    from .roles import Roles

__all__ = ["Roles", "ServeError", "is_loopback", "make_app", "serve"]
