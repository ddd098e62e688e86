"""The page's files as they are sent: compressed once, with an ETag, and kept for good under the address of a version.

files = PageFiles(b"0.1.0")
files.index()                        # index.html, whose files have addresses like /static/3f9c…/main.js
files.get("main.js").response(request)
"""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..base.errors import BadFile
from ..base.extras import install_line
from ..views.plots.palette import palette_css

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
FOREVER = "public, max-age=31536000, immutable"  # what the address of a version holds never changes
ASK_AGAIN = "no-cache"  # may be cached, but is requested each time: 304 where it is the same
CHARTS = "plotly.js"


class PageFile(NamedTuple):
    """One file, plain and compressed."""

    body: bytes
    zipped: bytes
    kind: str
    digest: str

    def response(self, request: Request, cache: str = ASK_AGAIN) -> Response:
        """All of it; or 304 for a browser that has it already."""
        from starlette.responses import Response

        zipped = "gzip" in request.headers.get("accept-encoding", "")
        body = self.zipped if zipped else self.body
        etag = f'"{self.digest}{"-gzip" if zipped else ""}"'
        headers = {"etag": etag, "cache-control": cache, "vary": "Accept-Encoding"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        headers |= {"content-encoding": "gzip"} if zipped else {}
        return Response(body, media_type=self.kind, headers=headers)


class PageFiles:
    """All files of the page by name; ``salt`` is what else makes another version of it."""

    def __init__(self, salt: bytes = b"") -> None:
        self.paths = {path.name: path for path in sorted(static().iterdir()) if path.suffix in KINDS}
        contents = b"".join(path.read_bytes() for path in self.paths.values())
        self.version = _digest(salt + palette_css().encode() + contents)
        self.page = self.paths.pop("index.html")
        self.made: dict[str, tuple[int, PageFile]] = {}  # with the time at which the file was last written

    def get(self, name: str) -> PageFile | None:
        """One of the files that there are; never a path. One that was edited meanwhile is read again."""
        if name == "palette.css":
            return self._made(name, 0, palette_css().encode())
        path = plotly() if name == CHARTS else self.paths.get(name)
        if path is None:
            return None
        written = path.stat().st_mtime_ns
        return self._made(name, written, None if self._is_made(name, written) else path.read_bytes())

    def index(self) -> PageFile:
        """The page itself: its files have addresses of this version, and its scripts are requested at once."""
        html = self.page.read_text(encoding="utf-8")
        ahead = "".join(
            f'<link rel="modulepreload" href="/static/{name}">\n  ' for name in self.paths if name.endswith(".js")
        )
        html = html.replace('<script type="module"', f'{ahead}<script type="module"', 1)
        body = html.replace('="/static/', f'="/static/{self.version}/').encode()
        return self._made("index.html", hash(body), body)

    def _is_made(self, name: str, written: int) -> bool:
        return name in self.made and self.made[name][0] == written

    def _made(self, name: str, written: int, body: bytes | None) -> PageFile:
        if body is not None and not self._is_made(name, written):
            zipped, kind = gzip.compress(body, 6, mtime=0), KINDS[Path(name).suffix]
            self.made[name] = written, PageFile(body, zipped, kind, _digest(body))
        return self.made[name][1]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def static() -> Path:
    """The folder of the page's own files."""
    return Path(str(files(__package__))) / "static"


def plotly() -> Path:
    """The charts' library, out of the installed package."""
    from importlib.util import find_spec

    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    raise BadFile(f"the page's charts need plotly.min.js of the package plotly: {install_line('plotly')}")
