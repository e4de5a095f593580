from turnback.sources.collection import collection_frame
from turnback.sources.files import file_frame

__all__ = ["collection_frame", "file_frame"]
