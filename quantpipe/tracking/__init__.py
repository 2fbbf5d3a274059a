"""Tracking: the one place that knows MLflow. It is imported when a run starts, never by importing this package."""

from quantpipe.tracking.mlflow_tracker import MlflowTracker, TrackingConfig
from quantpipe.tracking.parent import finish_sweep
from quantpipe.tracking.protocol import Metrics, NullTracker, Tracker

__all__ = ["Metrics", "MlflowTracker", "NullTracker", "Tracker", "TrackingConfig", "finish_sweep"]
