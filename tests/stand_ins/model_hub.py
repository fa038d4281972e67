"""A Hugging Face Hub on the loopback: repositories of models, for the client `huggingface_hub`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class ModelHub(ThreadingHTTPServer):
    """The server.

    It answers the requests that create a repository, commit small files, list the newest commit and read a file.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.messages: list[str] = []
        self.rejects_token = False
        self.unreadable: set[str] = set()
        """Names of files that are listed, but cannot be read."""

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running_hub() -> Iterator[ModelHub]:
    """Run a server."""
    hub = ModelHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ModelHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def _answer(self, tree: object, status: int = 200) -> None:
        self._send(status, json.dumps(tree).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _missing(self) -> None:
        self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        """Create a repository, or commit files to it."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if self.server.rejects_token:
            self._answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            given = json.loads(body)
            name = "/".join(part for part in (given.get("organization"), given["name"]) if part)
            self.server.repositories.setdefault(name, {})
            self._answer({"url": f"{self.server.endpoint}/{name}", "name": name, "id": name})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self._answer({"files": [{**file, "shouldIgnore": False, "oid": None} for file in files]})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.server.messages.append(line["value"]["summary"])
                elif line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.repositories[found[1]][line["value"]["path"]] = content
                elif line["key"] == "deletedFile":
                    del self.server.repositories[found[1]][line["value"]["path"]]
            url = f"{self.server.endpoint}/{found[1]}/commit/{_commit(found[1])}"
            self._answer({"commitUrl": url, "commitOid": _commit(found[1]), "success": True})
        else:
            self._missing()

    def do_GET(self) -> None:
        """Describe a repository, or send a file."""
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            files = self.server.repositories.get(found[1])
            if files is None:
                self._missing()
                return
            siblings: list[dict[str, Any]] = [{"rfilename": name} for name in files]
            self._answer({"id": found[1], "sha": _commit(found[1]), "siblings": siblings, "private": False, "tags": []})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/.*", path):
            files = self.server.repositories.get(found[1], {})
            self._answer([_entry(name, content) for name, content in files.items()])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            content = self.server.repositories.get(found[1], {}).get(found[2])
            if content is None or found[2] in self.server.unreadable:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                etag = f'"{hashlib.sha1(content).hexdigest()}"'
                self._send(200, content, {"ETag": etag, "X-Repo-Commit": _commit(found[1])})
        else:
            self._missing()

    def do_HEAD(self) -> None:
        """Describe a file."""
        self.do_GET()


def _commit(repository: str) -> str:
    """Return the only commit of a repository."""
    return hashlib.sha1(repository.encode()).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
