"""``python -m hud``."""

from hud.cli import main

main()
