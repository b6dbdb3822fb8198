"""The OpenAPI document: valid by others' judgement, complete, and true of what the server answers and takes."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from poot_serve.app import make_routes
from poot_serve.openapi.document import openapi_document
from poot_serve.protocol.errors import RULES

DOCUMENT = json.loads(openapi_document("1.2.3", keyed=False))
KEYED = json.loads(openapi_document("1.2.3", keyed=True))
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5]},
}
# Nobody asks for these by a documented operation, or is there to read them: 403 answers preflights.
UNDOCUMENTED = {403, 405, 499}


def check(value, schema):
    jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def operation(path, method, document=DOCUMENT):
    return document["paths"][path][method]


def documented(answer, path, method):
    """The documented content for what the server answered."""
    response = operation(path, method)["responses"][str(answer.status_code)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    assert set(response["headers"]) <= {name.title() for name in answer.headers} | set(answer.headers)
    return response["content"][answer.headers["content-type"].partition(";")[0]]


@pytest.mark.parametrize("document", [DOCUMENT, KEYED])
def test_the_document_is_valid(document):
    OpenAPIV31SpecValidator(document).validate()
    assert document["info"]["version"] == "1.2.3"


def test_schemas_are_valid_and_all_used():
    text = json.dumps(DOCUMENT)
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert f'"#/components/schemas/{name}"' in text


def test_the_server_gives_the_document(served):
    answer = served.client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    made = answer.json()
    assert made["paths"] == DOCUMENT["paths"]
    assert served.client.get("/openapi.json").content == answer.content


def test_every_route_is_documented_and_the_other_way_round(served):
    """A path that is documented answers its method, and refuses others by naming those that it has."""
    for path, methods in DOCUMENT["paths"].items():
        answer = served.client.request("DELETE", path.replace("{id}", "tiny"))
        assert answer.status_code == 405
        assert {name.strip().lower() for name in answer.headers["allow"].split(",")} == set(methods)
    assert {route.path.replace(":path", "") for route in make_routes(served.service)} == set(DOCUMENT["paths"])


def test_keys(served):
    """A server that asks for a key says so of all routes but the public one."""
    assert KEYED["security"] == [{"apiKey": []}]
    assert [path for path, methods in KEYED["paths"].items() for one in methods.values() if "security" in one] == [
        "/health"
    ]
    assert all("401" in one["responses"] for one in KEYED["paths"]["/tokenize"].values())
    assert "security" not in DOCUMENT
    assert "401" not in operation("/tokenize", "post")["responses"]


def test_every_status_that_the_server_knows_is_documented():
    known = {rule.status for rule in RULES.values()} - UNDOCUMENTED
    assert {int(status) for one in KEYED["paths"].values() for op in one.values() for status in op["responses"]} == {
        200,
        *known,
    }


@pytest.mark.parametrize("path", [path for path, methods in DOCUMENT["paths"].items() if "get" in methods])
def test_what_is_read_is_as_documented(served, path):
    answer = served.client.get(path.replace("{id}", "tiny"))
    content = documented(answer, path, "get")
    check(answer.json() if "json" in answer.headers["content-type"] else answer.text, content["schema"])


def test_refusals_are_as_documented(served):
    missing = served.client.get("/v1/models/none")
    check(missing.json(), documented(missing, "/v1/models/{id}", "get")["schema"])
    for path, asked in BODIES.items():
        for body, headers in (("{", {"content-type": "application/json"}), ("{}", {"content-type": "text/plain"})):
            refused = served.client.post(path, content=body, headers=headers)
            check(refused.json(), documented(refused, path, "post")["schema"])
        unknown = served.client.post(path, json={**asked, "model": "none"})
        check(unknown.json(), documented(unknown, path, "post")["schema"])


@pytest.mark.parametrize("path", BODIES)
def test_answers_are_as_documented(served, path):
    asked = BODIES[path]
    check(asked, operation(path, "post")["requestBody"]["content"]["application/json"]["schema"])
    logprobs = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2, "echo": True}
    for more in ({}, {"n": 2, "poot": {"report": True}}, {"max_tokens": 3, **logprobs}):
        served.answer("hello world")
        answer = served.client.post(path, json={**asked, **(more if path.startswith("/v1") else {})})
        assert answer.status_code == 200, answer.text
        check(answer.json(), documented(answer, path, "post")["schema"])


@pytest.mark.parametrize("path", BODIES)
def test_examples_are_as_documented_and_served(served, path):
    served.answer("hello")
    content = operation(path, "post")["requestBody"]["content"]["application/json"]
    check(content["example"], content["schema"])
    assert served.client.post(path, json=content["example"]).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("finish", ["stop", "error"])
def test_events_are_as_documented(served, path, finish):
    served.answer("hello world", finish=finish, error_code="engine_fault" if finish == "error" else None)
    more = {"stream": True, "stream_options": {"include_usage": True}, "poot": {"report": True}, "logprobs": True}
    answer = served.client.post(path, json={**BODIES[path], **more, "logprobs": True if "chat" in path else 1})
    content = documented(answer, path, "post")
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    if finish == "stop":
        assert data.pop() == "[DONE]"
    else:
        check(json.loads(data.pop()), {"$ref": "#/components/schemas/ErrorBody"})
    assert len(data) > 2
    for one in data:
        check({"data": one}, content["schema"])
        check(json.loads(one), content["schema"]["properties"]["data"]["anyOf"][0]["contentSchema"])


def test_texts_of_the_document_are_plain():
    """No line breaks where a viewer would show them, no empty texts, one operation a name."""
    ids = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids)) == 10
    for text in re.findall(r'"summary": "([^"]*)"', json.dumps(DOCUMENT)):
        assert text and "\\n" not in text and not text.endswith(".")
