"""Everything that clientwise replaces inside Flower: two parts of a node, two parts of the server.

A SuperLink has no option for where it stores messages: `replace_object_store`, see `retention.py`.

The SuperLink has no option for a check of its own. `add_to_superlink` adds one to the functions
that Flower calls before it handles a request (`_get_middleware`).

A node starts a process for each message. `replace_popen` lets it fork one instead, see `zygote.py`.

A node needs five things that Flower has no option for:

- a TLS client certificate, which the proxy in front of the SuperLink asks for;
- a Unix socket to the server, for a node that has no network;
- a bundle check against a file of the node's own operator;
- a notice of every answer, for the watchdog, and a retry after a stalled TLS handshake;
- a call for messages that waits for one, instead of a call every three seconds.

All five belong to `FleetHttpClient`, the client with which a SuperNode talks to its SuperLink.
Flower creates that client inside `http_request_response` and offers no way to pass another one, so
the class is replaced by a subclass.

The bundle check itself is Flower's. The public option `--trusted-entities` makes a SuperNode refuse
a bundle without the signature of a trusted key. Here that key is made anew at every start and never
leaves the process. The subclass signs a bundle with it if the operator approved the bundle, and
removes every signature that the SuperLink sent. If Flower stops using the subclass, no bundle has a
valid signature and the node refuses all of them.

`tests/flower/test_flower_patches.py` checks that the installed Flower has and calls what is used
here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import ssl
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .known_flower import known_flower, unknown_flower

with known_flower(__name__):
    from flwr.common.serde import fab_from_proto
    from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
    from flwr.supercore.fab import Fab
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
    from flwr.superlink import config_loader
    from flwr.supernode import fleet_http_connection
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from starlette.middleware import Middleware

log = logging.getLogger("flwr.clientwise")
Certificate = tuple[Path, Path]  # and its key
SIGNER = "operator"  # the name of the node's own key among the trusted entities
HELD = 1.0  # seconds: a SuperLink that answers later than this holds calls, see `link.py`


class BundleSigner:
    """Signs bundles with a key that exists only in this process."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()

    def trusted_entities(self) -> str:
        """The content of the file for `--trusted-entities`: JSON, which is YAML too."""
        public = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return json.dumps({SIGNER: public.decode()})

    def verifications(self, content: bytes) -> dict[str, str]:
        """What Flower's own check accepts for this bundle."""
        signed_at = int(time.time())
        digest = hashlib.sha256(content).digest()
        signature = self._key.sign(create_message_to_sign(digest, signed_at))
        signed = {"signed_at": signed_at, "signature": urlsafe_b64encode(signature).decode()}
        # Without "valid_license" Flower refuses before it looks at signatures.
        return {"valid_license": "approved by this node's operator", SIGNER: json.dumps(signed)}


def replace_fleet_client(
    signer: BundleSigner,
    is_approved: Callable[[Fab], bool],
    certificate: Certificate | None = None,
    uplink: Path | None = None,
    on_answer: Callable[[], None] = lambda: None,
) -> None:
    """Let Flower's SuperNode use our client.

    Args:
        signer: signs approved bundles.
        is_approved: whether the operator of this node approved a bundle.
        certificate: shown to the server before any message, with its key.
        uplink: Unix socket that leads to the server; None to connect by TCP.
        on_answer: called after every call that the server answered.
    """

    class NodeClient(FleetHttpClient):
        def __init__(self, base_url: str, *, verify: ssl.SSLContext, **options: Any) -> None:
            if certificate is not None:
                verify.load_cert_chain(*certificate)
            super().__init__(base_url, verify=verify, **options)
            if uplink is not None:
                usual = self._client
                transport = httpx.HTTPTransport(verify=verify, uds=str(uplink))
                self._client = httpx.Client(transport=transport, timeout=usual.timeout)
                usual.close()

        def _unary_unary(self, **call: Any) -> Any:
            try:
                response = super()._unary_unary(**call)
            except httpx.TimeoutException as error:
                # Flower gives up for good where the text mentions SSL, as in a stalled handshake.
                raise httpx.ConnectTimeout("the server does not answer") from error
            on_answer()
            return response

        def PullMessages(  # noqa: N802  Flower's name
            self, request: PullMessagesRequest
        ) -> PullMessagesResponse:
            """Call again at once where the server holds calls; else return, and Flower waits three seconds."""
            quick = 0
            while True:
                began = time.monotonic()
                response = super().PullMessages(request)
                quick += time.monotonic() - began < HELD
                if response.messages_list or quick > 1:  # the first one may follow a message
                    return response

        def GetFab(self, request: GetFabRequest) -> GetFabResponse:  # noqa: N802  Flower's name
            response = super().GetFab(request)
            fab = fab_from_proto(response.fab)
            response.fab.verifications.clear()
            if is_approved(fab):
                response.fab.verifications.update(signer.verifications(fab.content))
            return response

    if getattr(fleet_http_connection, "FleetHttpClient", None) is not FleetHttpClient:
        raise unknown_flower("fleet_http_connection does not use FleetHttpClient")
    fleet_http_connection.FleetHttpClient = NodeClient  # type: ignore[attr-defined, assignment]


def replace_popen(module: ModuleType, start: Callable[..., object]) -> None:
    """Let a module of Flower start programs by `start` instead of `subprocess.Popen`.

    This makes a node faster and nothing else: another version of Flower starts them by itself.
    """
    if getattr(module, "subprocess", None) is not subprocess:
        log.warning("%s starts no programs in this version of Flower: rounds take longer", module)
        return
    module.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined]


def add_to_superlink(middleware: Middleware) -> None:
    """Let Flower's SuperLink call this middleware after its own, so also after authentication."""
    from flwr.superlink import main  # the whole server; a node does not need it

    flowers = getattr(main, "_get_middleware", None)
    if flowers is None:
        raise unknown_flower("flwr.superlink.main has no _get_middleware")
    main._get_middleware = lambda: [*flowers(), middleware]


def replace_object_store(factory: type[ObjectStoreFactory]) -> None:
    """Let Flower's SuperLink create its store of messages with `factory`."""
    if getattr(config_loader, "ObjectStoreFactory", None) is not ObjectStoreFactory:
        raise unknown_flower("config_loader does not use ObjectStoreFactory")
    config_loader.ObjectStoreFactory = factory  # type: ignore[attr-defined]
