from turnback.web.app import create_app
from turnback.web.server import serve
from turnback.web.site import Site

__all__ = ["Site", "create_app", "serve"]
