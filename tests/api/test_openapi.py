"""GET /openapi.json: its paths are those of the server's table, its fields those that the server knows, and
responses match it: python test_openapi.py [--binary B] [--demo DIR]"""
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, parse_stream  # noqa: E402

check = Checks()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
         "number": (int, float)}


def source(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def table():
    """Routes of the table: path -> (methods but HEAD, which GET brings, key needed)"""
    text = source("server/api/routes.def").replace("M_READ", "M_GET | M_HEAD")
    found = re.findall(r'^ROUTE\("([^"]+)", (?:NULL|"[^"]*"), ([A-Z_| ]+), ([A-Z_| ]+), \w+\)$', text, re.M)
    assert len(found) == text.count("\nROUTE(")
    open_to_all = {"OPEN", "ROUTE_PREFIX"}
    out = {path + "{model}" if path != "/" and path.endswith("/") else path:
           ({m.strip()[2:].lower() for m in methods.split("|")} - {"head"}, needs not in open_to_all)
           for path, methods, needs in found}
    out["/page/{name}"] = out.pop("/page/{model}")
    out |= {path.removeprefix("/v1"): what for path, what in out.items()}
    below = {  # what the handlers take apart
        "response": {"": {"get", "delete"}, "/input_items": {"get"}, "/cancel": {"post"}},
        "file": {"": {"get", "delete"}, "/content": {"get"}},
        "batch": {"": {"get"}, "/cancel": {"post"}}}
    for name, top in (("response", "responses"), ("file", "files"), ("batch", "batches")):
        for root in ("/v1/", "/"):
            methods, key = out.pop(f"{root}{top}/{{model}}")
            assert methods == set.union(*below[name].values())
            out |= {f"{root}{top}/{{{name}}}{path}": (m, key) for path, m in below[name].items()}
    return out


def pointed(doc, ref):
    node = doc
    for part in ref[2:].split("/"):
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


def at(doc, node):
    """What a node says, behind any reference."""
    while "$ref" in node:
        node = pointed(doc, node["$ref"])
    return node


def all_refs(node):
    if isinstance(node, dict):
        yield from (v for k, v in node.items() if k == "$ref")
        node = list(node.values())
    if isinstance(node, list):
        for v in node:
            yield from all_refs(v)


def faults(doc, schema, value, where="answer"):
    """What of value is not as schema says, or is not in it: enough of JSON Schema for this document."""
    schema = at(doc, schema)
    if "anyOf" in schema or "oneOf" in schema:
        tries = [list(faults(doc, s, value, where)) for s in schema.get("anyOf") or schema["oneOf"]]
        if all(tries):
            yield from tries[0]
        return
    kinds = schema.get("type")
    if kinds:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        fits = any(isinstance(value, KINDS[k]) and (k == "boolean") == isinstance(value, bool) for k in kinds)
        if not fits:
            yield f"{where} is {value!r}, not {kinds}"
            return
    if "enum" in schema and value not in schema["enum"] or "const" in schema and value != schema["const"]:
        yield f"{where} is {value!r}"
    if isinstance(value, dict):
        known = schema.get("properties")
        for key in schema.get("required", []):
            if key not in value:
                yield f"{where}.{key} is missing"
        for key, v in value.items():
            if known and key not in known:
                yield f"{where}.{key} is not described"
            elif known:
                yield from faults(doc, known[key], v, f"{where}.{key}")
    if isinstance(value, list) and "items" in schema:
        for i, v in enumerate(value):
            yield from faults(doc, schema["items"], v, f"{where}[{i}]")


def test_document(doc):
    check.true("OpenAPI", doc["openapi"].startswith("3.1."), doc["openapi"])
    for ref in set(all_refs(doc)):
        try:
            pointed(doc, ref)
        except (KeyError, TypeError):
            check.true(f"{ref} is there", False)
    used = {r.split("/")[3] for r in all_refs(doc) if r.startswith("#/components/schemas/")}
    check.equal("schemas are used", sorted(doc["components"]["schemas"]), sorted(used))


def test_paths(s, doc):
    routes = table()
    check.equal("paths", sorted(doc["paths"]), sorted(routes))
    for path, (methods, key) in routes.items():
        item = at(doc, doc["paths"].get(path, {}))
        got = set(item) - {"parameters"}
        check.equal(f"{path}: methods", got, methods)
        for method in got:
            check.equal(f"{path}: key", item[method].get("security", doc["security"]) != [], key)
    check.equal("another path", s.request("GET", "/openapi.yaml")[0], 404)


def test_fields(s, doc):
    """A field that the document describes is read: another type than its own is a 400 that names it, and
    what is refused is refused; a field that no one has is ignored."""
    say = [{"role": "user", "content": "Hi."}]
    wrong = {"boolean": 5, "integer": "x", "number": "x", "array": 5, "object": 5}
    for path, schema, body in (("/v1/chat/completions", "ChatRequest", {"messages": say, "max_tokens": 1}),
                               ("/v1/completions", "CompletionRequest", {"prompt": "Hi.", "max_tokens": 1}),
                               ("/v1/responses", "ResponsesRequest", {"input": "Hi."}),
                               ("/v1/messages", "MessagesRequest", {"messages": say, "max_tokens": 1}),
                               ("/api/chat", "OllamaRequest", {"messages": say, "stream": False}),
                               ("/tokenize", "TokenizeRequest", {"messages": say})):
        fields = doc["components"]["schemas"][schema]["properties"]
        check.true(f"{schema}: fields", len(fields) >= 12, len(fields))
        tried = 0
        for name, field in fields.items():
            why, kind = field.get("description", ""), field.get("type")
            lenient = name in OTHERS.get(path, ()) or name in LENIENT
            refused = why.startswith("Refused")
            if "ignored" in why or lenient or not (refused or isinstance(kind, str) and kind in wrong):
                continue
            value = [1] if refused else wrong[kind]
            status, answer = s.post(path, {**body, name: value})
            check.equal(f"{path}: {name} of a wrong type", status, 400)
            check.true(f"{path}: the error names {name}", name in json.dumps(answer), answer)
            tried += 1
        check.true(f"{path}: some are tried", tried > 10, tried)
        check.equal(f"{path}: a field of nobody", s.post(path, {**body, "of_nobody": [1]})[0], 200)


# Read leniently; or of another endpoint with the same schema.
OTHERS = {"/api/chat": ("images", "raw"), "/v1/responses": ("type",), "/tokenize": ("prompt", "content")}
LENIENT = ("documents", "modalities", "thinking", "type")


def test_answers(s, doc):
    """Real answers, and errors, are as the document says."""
    chat = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 6, "temperature": 0}

    def fits(what, path, method, status, kind, value):
        answer = at(doc, doc["paths"][path])[method]["responses"]
        answer = at(doc, answer.get(str(status), answer.get("default")))
        wrong = list(faults(doc, answer["content"][kind]["schema"], value))
        check.equal(what, wrong, [])

    ollama = {"messages": chat["messages"], "stream": False, "options": {"num_predict": 4, "temperature": 0}}
    wide = {**chat, "logprobs": True, "top_logprobs": 2, "return_token_ids": True, "return_cache_info": True}
    text = {"prompt": "One, two", "max_tokens": 4, "temperature": 0}
    for path, body in (("/v1/chat/completions", chat), ("/v1/chat/completions", {**wide, "n": 2}),
                       ("/v1/completions", text), ("/v1/messages", chat), ("/messages", chat),
                       ("/v1/messages/count_tokens", chat), ("/cache_tree", chat),
                       ("/v1/responses", {"input": "Hi.", "max_output_tokens": 6, "top_logprobs": 1}),
                       ("/v1/responses/input_tokens", {"input": chat["messages"]}),
                       ("/tokenize", {"prompt": "Hi."}), ("/tokenize", {"messages": chat["messages"]}),
                       ("/v1/tokenize", {"prompt": "Hi.", "return_token_strs": True}),
                       ("/detokenize", {"tokens": [5, 6]}),
                       ("/apply-template", {"messages": chat["messages"]}),
                       ("/api/chat", {**ollama, "logprobs": True}), ("/api/show", {}),
                       ("/api/generate", {**ollama, "prompt": "One, two"}), ("/api/embed", {"input": ["a"]}),
                       ("/api/embeddings", {"prompt": "a"})):
        fits(path, path, "post", 200, "application/json", s.ok(path, body))
        status, answer = s.post(path, {**body, "model": 5})
        check.equal(f"{path}: status", status, 400)
        fits(f"{path}: error", path, "post", status, "application/json", answer)
    for path, body in (("/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}}),
                       ("/v1/completions", text)):
        for chunk in parse_stream(s.request("POST", path, {**body, "stream": True})[2]):
            fits(path + ", streamed", path, "post", 200, "text/event-stream", chunk)
    for path, body in (("/v1/messages", chat), ("/v1/responses", {"input": "Hi.", "max_output_tokens": 6})):
        events = s.request("POST", path, {**body, "stream": True})[2].decode().split("\n")
        for event in [json.loads(line[6:]) for line in events if line.startswith("data: ")]:
            fits(path + ", streamed", path, "post", 200, "text/event-stream", event)
    for row in s.request("POST", "/api/chat", {**ollama, "stream": True})[2].splitlines():
        fits("/api/chat, streamed", "/api/chat", "post", 200, "application/x-ndjson", json.loads(row))
    kept = s.ok("/v1/responses", {"input": "Hi.", "max_output_tokens": 6})["id"]
    for method, under in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
        answer = json.loads(s.request(method, f"/v1/responses/{kept}{under}")[2])
        path = "/v1/responses/{response}" + under
        fits(f"{method} {path}", path, method.lower(), 200, "application/json", answer)
    model = json.loads(s.request("GET", "/v1/models")[2])["data"][0]["id"]
    for path, target in (("/v1/models", "/v1/models"), ("/v1/models/{model}", "/v1/models/" + model),
                         ("/version", "/version"), ("/load", "/load"), ("/cache_tree", "/cache_tree"),
                         ("/api/tags", "/api/tags"), ("/api/ps", "/api/ps"), ("/api/version", "/api/version"),
                         ("/tokenizer_info", "/tokenizer_info"), ("/props", "/props")):
        fits(path, path, "get", 200, "application/json", json.loads(s.request("GET", target)[2]))


if __name__ == "__main__":
    args = arguments(__doc__)
    server = Server(args.binary, args.demo)
    status, head, data = server.request("GET", "/openapi.json")
    check.equal("served", (status, head["content-type"]), (200, "application/json"))
    document = json.loads(data)
    tests = {"document": (test_document, document), "paths": (test_paths, server, document),
             "fields": (test_fields, server, document), "answers": (test_answers, server, document)}
    for name, function in tests.items():
        if not args.only or name in args.only:
            check.run(*function)
    check.run(server.stop)
    check.end()
