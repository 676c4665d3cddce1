"""A hub on this machine that speaks what huggingface_hub asks: infos, files in ranges, gates, and commits."""

from __future__ import annotations

import base64
import json
import re
import threading
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub.repo import READER, WRITER, Repo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LARGE = (".safetensors", ".bin")
"""What is kept beside git, and sent from another place."""


class HubServer:
    """The hub: its models, what was asked of it, and how it shall fail."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        """What was uploaded beside git, by its hash."""
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and Range of every request."""
        self.tokens_elsewhere: list[str] = []
        """Those that came with requests for large files."""
        self.cut: dict[str, int] = {}
        """By the end of a path: after how many bytes the next answer breaks off."""
        self.failing: dict[str, int] = {}
        """By a part of a path: the status of every answer."""
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.other_place = self.url.replace("127.0.0.1", "localhost")
        """Where large files are sent from: another host, which gets no token."""
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, name: str, folder: Path | None = None, **settings: Any) -> Repo:
        """A model with the files of a folder as its first commit."""
        self.repos[name] = repo = Repo(**settings)
        if folder is not None:
            repo.commit(files_of(folder))
        return repo

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fetched(self, name: str) -> list[str]:
        """The Ranges with which the data of a file were asked for; "" is all of it."""
        digests = {sha256(f[name]).hexdigest() for r in self.repos.values() for f in r.commits if name in f}
        ends = (f"/{name}", *(f"/objects/{digest}" for digest in digests))
        direct = name.endswith(LARGE)
        return [
            asked
            for method, path, asked in self.asked
            if method == "GET" and path.endswith(ends) and (not direct or "/objects/" in path)
        ]


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    @property
    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _get(self) -> None:
        hub, url = self.server_hub, urlsplit(self.path)
        path = unquote(url.path)
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        if status := next((code for part, code in hub.failing.items() if part in path), 0):
            return self._fail(status)
        if path == "/api/whoami-v2":
            return self._json({"name": "ada", "type": "user"}) if self._token in (READER, WRITER) else self._fail(401)
        if found := re.fullmatch(r"/objects/(\w+)", path):
            hub.tokens_elsewhere += [self._token] if self._token else []
            return self._bytes(hub.objects[found[1]], {})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/refs", path):
            return self._refs(found[1])
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._info(found[1], found[2] or "main", "blobs" in parse_qs(url.query))
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+|refs/pr/\d+)/(.+)", path):
            return self._resolve(*found.groups())
        return self._fail(404)

    def _commit(self, name: str, revision: str, *, data: bool) -> tuple[Repo, str, dict[str, bytes]] | None:
        """A model's commit; None where it is refused, which is answered then."""
        repo = self.server_hub.repos.get(name)
        if self._token and self._token not in (READER, WRITER):
            return self._fail(401, "", "Invalid credentials in Authorization header")
        if repo is None or (repo.private and self._token not in repo.members):
            return self._fail(404 if self._token else 401, "RepoNotFound", "Repository not found")
        if (found := repo.at(revision)) is None:
            return self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if data and repo.gated and self._token not in repo.members:
            return self._fail(403 if self._token else 401, "GatedRepo", f"Access to model {name} is restricted.")
        return repo, *found

    def _info(self, name: str, revision: str, blobs: bool) -> None:
        if (found := self._commit(name, revision, data=False)) is None:
            return
        repo, sha, files = found
        siblings: list[dict[str, Any]] = [{"rfilename": file} for file in files]
        for one in siblings if blobs else ():
            content = files[one["rfilename"]]
            one |= {"size": len(content), "blobId": sha1(content).hexdigest()}
            if one["rfilename"].endswith(LARGE):
                one["lfs"] = {"sha256": sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        self._json({"id": name, "modelId": name, "sha": sha, "siblings": siblings, "private": repo.private, "tags": []})

    def _refs(self, name: str) -> None:
        if (found := self._commit(name, "main", data=False)) is None:
            return
        repo = found[0]
        lists = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
        told = {
            key: [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": repo.sha(i)} for n, i in names.items()]
            for key, (kind, names) in lists.items()
        }
        self._json({**told, "converts": []})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        if (found := self._commit(name, revision, data=True)) is None:
            return None
        _, sha, files = found
        if file not in files:
            return self._fail(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
        content, head = files[file], {"X-Repo-Commit": sha}
        if not file.endswith(LARGE):
            return self._bytes(content, {**head, "ETag": f'"{sha1(content).hexdigest()}"'})
        digest = sha256(content).hexdigest()
        self.server_hub.objects[digest] = content
        head |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content)), "ETag": '"other"'}
        return self._answer(302, b"", {**head, "Location": f"{self.server_hub.other_place}/objects/{digest}"})

    def _bytes(self, content: bytes, head: Mapping[str, str]) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(200, content, {"Accept-Ranges": "bytes", **head})
        start, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
        return self._answer(
            206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}", **head}
        )

    def do_PUT(self) -> None:
        hub, content = self.server_hub, self._body()
        hub.asked.append(("PUT", self.path, ""))
        if status := next((code for part, code in hub.failing.items() if part in self.path), 0):
            return self._fail(status)
        digest = self.path.rpartition("/")[2]
        assert sha256(content).hexdigest() == digest
        hub.objects[digest] = content
        return self._answer(200, b"", {"ETag": digest})

    def do_POST(self) -> None:
        hub, body, path = self.server_hub, self._body(), unquote(urlsplit(self.path).path)
        hub.asked.append(("POST", path, ""))
        if status := next((code for part, code in hub.failing.items() if part in path), 0):
            return self._fail(status)
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self._token != WRITER:
            return self._fail(
                403 if self._token else 401, "", "You don't have the rights to create a model under this namespace"
            )
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self._batch(json.loads(body))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/(.+)", path):
            return self._change(*found.groups(), body)
        return self._fail(404)

    def _create(self, wanted: Mapping[str, Any]) -> None:
        hub, name = self.server_hub, f"{wanted['organization']}/{wanted['name']}"
        if name in hub.repos:
            told = {"error": "You already created this model repo", "url": f"{hub.url}/{name}"}
            return self._answer(409, json.dumps(told).encode(), {})
        private = wanted.get("private", False) or wanted.get("visibility") == "private"
        hub.add(name, private=private).commit({".gitattributes": b""})
        return self._json({"url": f"{hub.url}/{name}", "name": name})

    def _change(self, name: str, what: str, branch: str, body: bytes) -> None:
        repo = self.server_hub.repos[name]
        if what == "branch":
            if branch in repo.branches:
                return self._fail(409, "", f"Reference already exists: {branch}")
            if ".." in branch:
                return self._fail(400, "", f"Invalid reference name: {branch}")
            repo.branches[branch] = repo.branches["main"]
            return self._answer(200, b"", {})
        if branch not in repo.branches:
            return self._fail(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        return self._preupload(body) if what == "preupload" else self._add_commit(name, branch, body)

    def _preupload(self, body: bytes) -> None:
        files = [
            {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(LARGE) else "regular", "shouldIgnore": False}
            for f in json.loads(body)["files"]
        ]
        self._json({"files": files})

    def _batch(self, wanted: Mapping[str, Any]) -> None:
        hub = self.server_hub
        objects = [
            one
            if one["oid"] in hub.objects
            else {**one, "actions": {"upload": {"href": f"{hub.url}/put/{one['oid']}"}}}
            for one in wanted["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _add_commit(self, name: str, branch: str, body: bytes) -> None:
        hub, repo = self.server_hub, self.server_hub.repos[name]
        files = dict(repo.commits[repo.branches[branch]])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = hub.objects[value["oid"]]
        sha = repo.commit(files, branch)
        self._json({"success": True, "commitOid": sha, "commitUrl": f"{hub.url}/{name}/commit/{sha}", "hookOutput": ""})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, data: Any) -> None:
        self._answer(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str = "", message: str = "", head: Mapping[str, str] | None = None) -> None:
        said = {"X-Error-Code": code} if code else {}
        self._answer(
            status, json.dumps({"error": message}).encode(), {**said, "X-Error-Message": message, **(head or {})}
        )

    def _answer(self, status: int, content: bytes, head: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**head, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        ends = [end for end in self.server_hub.cut if self.path.endswith(end)]
        if ends and status in (200, 206):
            self.wfile.write(content[: self.server_hub.cut.pop(ends[0])])
            self.close_connection = True
            return
        self.wfile.write(content)
