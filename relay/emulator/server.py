"""The parts of one running server, as the routes get them."""

from __future__ import annotations

from dataclasses import dataclass

from relay.emulator.events import Events
from relay.emulator.faults import Faults
from relay.emulator.ledger import Ledger
from relay.emulator.oidc import Issuer
from relay.emulator.runner.runs import Runs
from relay.emulator.settings import Settings
from relay.emulator.state import State
from relay.emulator.webhooks import Webhooks


@dataclass(frozen=True)
class Server:
    """Everything that a route may use."""

    settings: Settings
    state: State
    ledger: Ledger
    faults: Faults
    webhooks: Webhooks
    issuer: Issuer
    runs: Runs
    events: Events
    app_key: bytes
