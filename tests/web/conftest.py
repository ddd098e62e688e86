"""One server and one browser for all tests of the page: a cold pair takes seconds."""

from helpers.browser import browser, opened, server

__all__ = ["browser", "opened", "server"]
