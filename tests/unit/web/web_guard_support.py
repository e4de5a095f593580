"""What callers send, and what browsers send back."""

from http.cookies import SimpleCookie

OWN = {"Origin": "http://127.0.0.1:8081"}
FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "http://evil.example:8081"},
    {"Origin": "http://localhost:8081"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": "http://127.0.0.1:8081.evil.example"},
    {"Origin": "http://["},
    {"Origin": "null"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]
PATHS = ["/", "/jobs/likes", "/api/v1/jobs", "/api/v1/about", "/metrics", "/static/icon.svg", "/x"]


def cookie_of(response) -> dict[str, str]:
    """What a browser would send back."""
    jar = SimpleCookie(response.headers["set-cookie"])
    return {"Cookie": "; ".join(f"{name}={morsel.value}" for name, morsel in jar.items())}


def post(browser, **headers):
    return browser.post("/jobs/likes/savepoint", {}, headers=headers)
