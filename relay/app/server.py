"""Running a relay process: uvicorn for the endpoints, or the workers alone."""

from __future__ import annotations

import asyncio
import signal
import socket

import uvicorn

from relay.app import sweeper
from relay.app.api import create_app
from relay.app.service import Service
from relay.app.settings import ConfigurationError, Settings
from relay.app.workers import Workers


def serve(settings: Settings, host: str, port: int, *, workers: bool, endpoints: bool) -> None:
    """Serve HTTP until SIGTERM or SIGINT.

    Args:
        host, port: where to listen; port 0 takes a free one.
        workers, endpoints: as :func:`relay.app.api.create_app`.

    Raises:
        ConfigurationError: the address is taken or not ours.
    """
    config = uvicorn.Config(
        create_app(settings, workers=workers, endpoints=endpoints),
        log_config=None,
        access_log=False,
        proxy_headers=True,
        forwarded_allow_ips=settings.forwarded_allow_ips,
        server_header=False,
        timeout_graceful_shutdown=15,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    # uvicorn raises the signal again after an orderly end; it is dealt with by then, so the exit code is 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])


def work(settings: Settings) -> None:
    """Do what is owed, without HTTP, until SIGTERM or SIGINT."""
    asyncio.run(_work(settings))


async def _work(settings: Settings) -> None:
    service = Service.create(settings)
    await asyncio.to_thread(service.database.migrate)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    workers = Workers(service)
    try:
        await asyncio.gather(workers.run(stop), sweeper.run(service, workers, stop))
    finally:
        await service.close()
