from turnback.planner.plan import Level, Operator, Plan, Routing, SourcePlan, Wire
from turnback.planner.planner import plan

__all__ = ["Level", "Operator", "Plan", "Routing", "SourcePlan", "Wire", "plan"]
