"""``python -m inferometer``"""

from .cli import main

main()
