from turnback.web.app import create_app
from turnback.web.server import serve

__all__ = ["create_app", "serve"]
