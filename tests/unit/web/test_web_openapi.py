import json

from starlette.routing import Route

from turnback.web.api import PREFIX
from turnback.web.server import ENDPOINTS


def refs(value) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(refs, value.values()), set())
    return set().union(*map(refs, value), set()) if isinstance(value, list) else set()


def test_the_document_and_the_routes_agree(world, browser):
    document = browser.api("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    documented = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    routed = {
        (method, route.path)
        for route in world.app().routes
        if isinstance(route, Route) and route.path.startswith(PREFIX)
        for method in route.methods - {"HEAD"}
    }
    assert documented == routed - {("GET", f"{PREFIX}/openapi.json")}
    assert len(documented) == len(ENDPOINTS)


def test_every_reference_leads_somewhere(browser):
    document = browser.api("/openapi.json").json()
    for ref in refs(document):
        name = ref.removeprefix("#/components/schemas/")
        assert name in document["components"]["schemas"]


def test_parameters_bodies_and_names(browser):
    paths = browser.api("/openapi.json").json()["paths"]
    for endpoint in ENDPOINTS:
        operation = paths[PREFIX + endpoint.path][endpoint.method.lower()]
        given = [(p["name"], p["in"]) for p in operation["parameters"]]
        wanted = [(name, "path") for name in endpoint.names]
        assert given == wanted + [(p.name, "query") for p in endpoint.query]
        assert ("requestBody" in operation) == (endpoint.body is not None)
        assert str(endpoint.status) in operation["responses"]
        assert endpoint.doc.endswith(".")
    ids = [op["operationId"] for item in paths.values() for op in item.values()]
    assert len(ids) == len(set(ids))


def test_bodies_are_those_that_are_taken(browser):
    document = browser.api("/openapi.json").json()
    operation = document["paths"][f"{PREFIX}/jobs/{{job}}/stop"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/StopBody"}
    body = document["components"]["schemas"]["StopBody"]
    assert set(body["properties"]) == {"savepoint", "drain"}
    assert body["additionalProperties"] is False
    assert json.dumps(operation["security"]) == '[{"token": []}]'
