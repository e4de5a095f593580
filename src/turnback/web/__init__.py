from turnback.web.server import create_app, serve
from turnback.web.site import Site

__all__ = ["Site", "create_app", "serve"]
