from turnback.runtime.spark.runner import JobRunner
from turnback.runtime.spark.session import spark_session

__all__ = ["JobRunner", "spark_session"]
