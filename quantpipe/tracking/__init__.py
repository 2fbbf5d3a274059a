"""Tracking: the one place that knows MLflow. It is imported when a run starts, never by importing this package."""

from quantpipe.tracking.fetch import RUN_ID, fetch_runs
from quantpipe.tracking.mlflow_tracker import MlflowTracker
from quantpipe.tracking.parent import finish_sweep
from quantpipe.tracking.record import filed_in
from quantpipe.tracking.tracker import FOLDER, NullTracker, Tracker
